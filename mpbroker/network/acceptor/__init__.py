"""The acceptor process: accepts connections, limits them, hands them to processors (Kafka: Acceptor, ConnectionQuotas)."""
