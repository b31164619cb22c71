"""Groups of the classic protocol, whose partitions are assigned by a member (KIP-62, KIP-345, KIP-394)."""
