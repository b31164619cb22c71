"""Looking at log directories from outside, ours and Kafka's, with or without a broker; and repairing them.

Nothing here writes but `repair`.

(Kafka: DumpLogSegments.)
"""
