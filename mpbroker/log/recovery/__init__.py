"""Opening what a start finds, and the clean stop that makes the next start short (Kafka: LogLoader)."""
