"""The slots of the partition table that one of `count` log workers assigns: every `count`-th slot.

The table outlives the worker's process. It keeps the slots that a predecessor assigned, and the state of
their partitions. A returned slot goes to another partition with the next generation, so that whoever has the
old slot and generation does not mistake one partition for the other.
"""

from __future__ import annotations

import errno
from typing import NamedTuple, TypeAlias

from mpbroker.ipc.metadata import METADATA_SLOT
from mpbroker.ipc.table import Partition, PartitionFlag, pack_partition, read_partition
from mpbroker.log.directories.log_directory import LogWorker
from mpbroker.protocol.topic_names import METADATA_TOPIC_ID
from shm.table import SlotTable

# (topic id, partition number)
Key: TypeAlias = tuple[bytes, int]


class TakenAway(NamedTuple):
    """A partition that the table shows as deleted, whose slot is not free yet."""

    number: int
    slot: int
    generation: int


class SlotAllocator:
    """The slots of one log worker.

    `earlier`: partitions that only the predecessor has opened. `deleted`: ids of topics that the predecessor
    was removing, or had removed.
    """

    def __init__(self, table: SlotTable, worker: LogWorker) -> None:
        self._table = table
        self._step = worker.count
        self._free: list[tuple[int, int]] = []
        self.earlier: dict[Key, tuple[int, Partition]] = {}
        self.deleted: set[bytes] = set()
        # The next slot that was never used. The metadata has a slot of its own.
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
                self.deleted.add(found.topic_id)
            else:
                self.earlier[found.topic_id, found.partition] = (slot, found)
        self._unused = self._table.slots

    def before(self, key: Key) -> Partition | None:
        """Return the predecessor's state of the partition, or None."""
        return self.earlier[key][1] if key in self.earlier else None

    def has(self, topic_id: bytes) -> bool:
        """Return whether the predecessor had a partition of the topic that this process has not opened."""
        return any(one == topic_id for one, _ in self.earlier)

    def check_for_one(self, key: Key) -> None:
        """Raise OSError if the table has no slot for the partition (EAGAIN, a temporary error)."""
        is_known = key in self.earlier or key == (METADATA_TOPIC_ID, 0)
        if not is_known and self._unused >= self._table.slots and not self._free:
            raise OSError(
                errno.EAGAIN, f"the partition table is full: {self._table.slots} partitions; delete topics"
            )

    def take(self, key: Key) -> tuple[int, int]:
        """Return (slot, generation) for a partition: those it had under the predecessor, else new ones."""
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
        """Free the slot for another partition. The table must already show its old partition as deleted.

        Rename the old partition's directory before this call. A successor learns from the slot that the
        directory is to be deleted, but only until the slot has another partition.
        """
        self._free.append((slot, generation))

    def take_away(self, topic_id: bytes) -> list[TakenAway]:
        """Mark a deleted topic's unopened partitions as deleted, and return them."""
        taken = []
        for key in [k for k in self.earlier if k[0] == topic_id]:
            slot, found = self.earlier.pop(key)
            self._table.write(slot, pack_partition(found._replace(flags=PartitionFlag.PARTITION_DELETED)))
            taken.append(TakenAway(found.partition, slot, found.generation))
        return taken
