"""Import from and export to Apache Kafka: a stopped node's log directories, with all that is in them."""
