"""Counts of usable and of offline partitions, computed from the partition table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mpbroker.ipc.metadata import METADATA_SLOT
from mpbroker.ipc.table import Partition, PartitionFlag, read_partition_surely
from shm.table import SlotTable


@dataclass(frozen=True)
class PartitionCounts:
    """Numbers of partitions. `live` has the usable partitions, by the number of the log directory.

    `live` leaves out the partition of `__cluster_metadata`. `offline` partitions have no leader in Metadata:
    they are damaged, their log directory has failed, or the log worker cannot open or create them now, for
    example because a disk is full.
    """

    live: Mapping[int, int]
    offline: int


def count_partitions(table: SlotTable, waiting: int = 0) -> PartitionCounts:
    """Count the partitions in `table`. `waiting` partitions, which have no slot yet, count as offline."""
    live: Counter[int] = Counter()
    offline = waiting
    for slot, partition in _partitions(table):
        if partition.flags & PartitionFlag.PARTITION_DELETED:
            continue
        if partition.flags & PartitionFlag.PARTITION_OFFLINE:
            offline += 1
        elif partition.flags & PartitionFlag.PARTITION_LIVE and slot != METADATA_SLOT:
            live[partition.log_dir] += 1
    return PartitionCounts(live, offline)


def _partitions(table: SlotTable) -> Iterator[tuple[int, Partition]]:
    for slot in range(table.slots):
        if table.version(slot):
            # Insist on the slot: otherwise the busiest partition would be missed.
            yield slot, read_partition_surely(table, slot)
