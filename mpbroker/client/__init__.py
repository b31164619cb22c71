"""Kafka's network client: selector, connections, requests in flight, metadata, idempotent producer."""
