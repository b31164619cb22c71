"""All partitions of a log worker: which there are, where they lie, which are open (Kafka: LogManager)."""
