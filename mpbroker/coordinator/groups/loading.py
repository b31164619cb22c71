"""Reading `__consumer_offsets` in place, up to the durable end that the partition table names.

A piece at a time, so that the coordinator goes on with everything else meanwhile. What lies behind the high
watermark is not there for us; a partition is read only when all of it is durable. Read-only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from mpbroker.coordinator.durable import batches_below
from mpbroker.coordinator.groups.coordinator import GroupCoordinator
from mpbroker.coordinator.groups.records import GroupValue, OffsetKey, OffsetValue, UnreadableRecord, decode
from mpbroker.ipc.metadata import PartitionImage
from mpbroker.ipc.table import Partition, PartitionFlag, read_partition
from mpbroker.log.names import partition_name
from mpbroker.protocol.topic_names import GROUP_TOPIC
from mpbroker.records.errors import CorruptBatch
from shm.table import SlotBusy, SlotTable

log = logging.getLogger("mpbroker")


class Loader:
    """Loads the partitions one after the other; `images` says in which slots they are."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        table: SlotTable,
        log_dirs: tuple[str, ...],
        images: list[PartitionImage],
    ) -> None:
        self._coordinator = coordinator
        self._table = table
        self._log_dirs = log_dirs
        self._waiting = list(reversed(images))
        self._reading: Iterator[None] | None = None

    @property
    def done(self) -> bool:
        return not self._waiting

    def step(self) -> bool:
        """Reads one batch, or begins or ends a partition. False: a partition is not ready to be read yet."""
        image = self._waiting[-1]
        if self._reading is None:
            if image.slot_generation == 0:
                self._fail(image, "it is not open")
                return True
            end = self._ready(image)
            if end is None:
                return False
            if end.flags & PartitionFlag.PARTITION_OFFLINE:
                self._fail(image, "it is offline")
                return True
            self._reading = self._load(image.partition, end)
        try:
            next(self._reading)
        except StopIteration:
            self._reading = None
            self._waiting.pop()
        except (CorruptBatch, UnreadableRecord, OSError) as error:
            self._fail(image, str(error))
        return True

    def _fail(self, image: PartitionImage, why: str) -> None:
        log.error(
            "%s-%d cannot be read: %s. The groups in it are unavailable; restore its directory from a "
            "copy, or repair the disk, and start the broker again",
            GROUP_TOPIC,
            image.partition,
            why,
        )
        self._reading = None
        self._waiting.pop()
        self._coordinator.failed(image.partition)

    def _ready(self, image: PartitionImage) -> Partition | None:
        try:
            now = read_partition(self._table, image.slot)
        except SlotBusy:
            return None
        if now.generation != image.slot_generation or now.flags & PartitionFlag.PARTITION_DELETED:
            return None
        if now.flags & PartitionFlag.PARTITION_OFFLINE:
            return now
        is_whole = now.flags & PartitionFlag.PARTITION_LIVE and now.high_watermark == now.log_end_offset
        return now if is_whole else None

    def _load(self, partition: int, end: Partition) -> Iterator[None]:
        directory = Path(self._log_dirs[end.log_dir]) / partition_name(GROUP_TOPIC, partition)
        groups: dict[str, GroupValue | None] = {}
        offsets = self._coordinator.offsets
        for batch in batches_below(directory, end):
            for record in batch.records() if not batch.is_control else ():
                entry = decode(record.key, record.value)
                if entry is None:
                    continue
                key, value = entry
                if isinstance(key, OffsetKey):
                    assert value is None or isinstance(value, OffsetValue)
                    offsets.apply(key, value)
                else:
                    assert value is None or isinstance(value, GroupValue)
                    groups[key.group] = value
            yield
        self._coordinator.loaded(partition, groups)
