"""Import from and export to Apache Kafka: directories and object store of a stopped node change hands."""
