"""The acceptor process: it limits connections and hands them over (Kafka: Acceptor, ConnectionQuotas)."""
