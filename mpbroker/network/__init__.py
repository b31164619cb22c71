"""Connections: acceptors, processors and their native turn (Kafka: SocketServer, Selector, KafkaChannel)."""
