"""The log: files in Kafka's format, their recovery, the reader that others import, the writing process."""
