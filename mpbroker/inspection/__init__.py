"""Inspection and repair of log directories, mpbroker's and Kafka's, with or without a running broker.

Only `repair` and `recover` change files. (Kafka: DumpLogSegments.)
"""
