"""Compaction: what is cleaned next, the cleaner process, the swap in the log worker (Kafka: LogCleaner)."""
