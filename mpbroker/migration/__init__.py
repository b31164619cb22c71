"""In and out of Apache Kafka: log directories of a stopped node change hands, with all that is in them."""
