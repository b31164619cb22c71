"""Which partition a record goes to: the one Kafka's Java client picks, so that equal keys meet."""

from mpbroker.records.encode import murmur2


def partition_for(key: bytes, partitions: int) -> int:
    """The partition of all records with this key (Kafka: BuiltInPartitioner.partitionForKey)."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
