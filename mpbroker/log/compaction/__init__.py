"""Compaction: what is cleaned next, the cleaner process, and its way to the log worker (Kafka: LogCleaner)."""
