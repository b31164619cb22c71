"""The partitions of a log worker: their directories, slots and open files (Kafka: LogManager)."""
