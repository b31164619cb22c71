"""A broker that speaks Kafka's protocol: Python processes that share memory, and native turns in between."""
