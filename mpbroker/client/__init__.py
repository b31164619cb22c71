"""Kafka's network client: connections, requests in flight, metadata, idempotent producer, transactions."""
