"""Looking at log directories from outside, ours and Kafka's, with or without a broker. Nothing here writes.

(Kafka: DumpLogSegments.)
"""
