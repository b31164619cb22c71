"""Kafka's metrics by Kafka's names, read from the public region at no cost to the broker."""
