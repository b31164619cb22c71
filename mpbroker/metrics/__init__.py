"""Kafka's metrics by Kafka's names, read from the broker's shared memory at no cost to the broker."""
