"""Groups of the consumer protocol, whose partitions are assigned by the coordinator (KIP-848)."""
