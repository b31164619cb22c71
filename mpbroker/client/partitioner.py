"""Partitions of records by key, as Kafka's Java client picks them, so that equal keys meet."""

from mpbroker.records.encode import murmur2


def partition_for(key: bytes, partitions: int) -> int:
    """Return the partition of all records with this key (Kafka: BuiltInPartitioner.partitionForKey)."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
