"""Import from and export to Apache Kafka: moves the log directories of a stopped node with their contents."""
