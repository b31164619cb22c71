"""Inspection and repair of log directories, ours and Kafka's, with or without a running broker.

Only `repair` writes. (Kafka: DumpLogSegments.)
"""
