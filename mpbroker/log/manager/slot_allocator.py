"""The slots of the partition table that a log worker gives out: every `count`-th, each to one partition.

The table outlives the worker: what its predecessor had given out, and what was seen of those partitions,
still stands there. A slot that comes back is given to another partition with the next generation, so that
whoever has the old pair does not take one partition for the other.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import TypeAlias

from mpbroker.ipc.metadata import METADATA_SLOT
from mpbroker.ipc.table import Partition, PartitionFlag, pack_partition, read_partition
from mpbroker.log.format.names import LogWorker
from mpbroker.protocol.topic_names import METADATA_TOPIC_ID
from shm.table import SlotTable

# Topic id and partition.
Key: TypeAlias = tuple[bytes, int]


class OwnSlots:
    """`earlier`: what the predecessor had open and nobody has opened since."""

    def __init__(self, table: SlotTable, worker: LogWorker) -> None:
        self._table = table
        self._step = worker.count
        self._free: list[tuple[int, int]] = []
        self.earlier: dict[Key, tuple[int, Partition]] = {}
        # The one that was never used and comes next; the metadata have one of their own.
        self._unused = worker.number if worker.number > METADATA_SLOT else METADATA_SLOT + worker.count
        self._read(worker)

    def _read(self, worker: LogWorker) -> None:
        for slot in range(worker.number, self._table.slots, self._step):
            found = read_partition(self._table, slot)
            if found.generation == 0:
                if slot != METADATA_SLOT:
                    self._unused = slot
                    return
            elif found.flags & PartitionFlag.PARTITION_DELETED:
                self._free.append((slot, found.generation))
            else:
                self.earlier[found.topic_id, found.partition] = (slot, found)
        self._unused = self._table.slots

    def before(self, key: Key) -> Partition | None:
        """What the predecessor said of the partition."""
        return self.earlier[key][1] if key in self.earlier else None

    def has(self, topic_id: bytes) -> bool:
        """Whether the predecessor had a partition of the topic that nobody has opened since."""
        return any(one == topic_id for one, _ in self.earlier)

    def check_for_one(self, key: Key) -> None:
        """Raises OSError if there is none for a partition that has none."""
        is_known = key in self.earlier or key == (METADATA_TOPIC_ID, 0)
        if not is_known and self._unused >= self._table.slots and not self._free:
            raise OSError(errno.ENOSPC, f"the partition table is full: {self._table.slots} partitions")

    def take(self, key: Key) -> tuple[int, int]:
        """Slot and generation for a partition: those that it had before, if any."""
        if key == (METADATA_TOPIC_ID, 0):
            self.earlier.pop(key, None)
            return METADATA_SLOT, 1
        if key in self.earlier:
            slot, before = self.earlier.pop(key)
            return slot, before.generation
        if self._unused < self._table.slots:
            slot = self._unused
            self._unused += self._step
            return slot, 1
        slot, generation = self._free.pop(0)
        return slot, generation + 1

    def give_back(self, slot: int, generation: int) -> None:
        """The table says already that its partition is deleted."""
        self._free.append((slot, generation))

    def forget(self, topic_id: bytes) -> Iterator[int]:
        """A topic is deleted: the numbers of those of its partitions that nobody has opened again."""
        for key in [k for k in self.earlier if k[0] == topic_id]:
            slot, found = self.earlier.pop(key)
            self._table.write(slot, pack_partition(found._replace(flags=PartitionFlag.PARTITION_DELETED)))
            self.give_back(slot, found.generation)
            yield found.partition
