"""The acceptor process: connections, their limits, their hand-over (Kafka: Acceptor, ConnectionQuotas)."""
