"""Compaction: the choice of segments, the cleaner process, the swap in the log worker (Kafka: LogCleaner)."""
