"""Reads a coordinator's topic from its files, up to the durable end in the partition table.

The loader reads one batch at a time, so that the coordinator serves other requests meanwhile. It reads a
partition only when all its records are durable: records above the high watermark may still be lost. The files
are not changed. (Kafka: CoordinatorLoaderImpl.)
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mpbroker.coordinator.runtime.log_records import UnreadableRecord
from mpbroker.ipc.metadata import PartitionImage
from mpbroker.ipc.table import Partition, PartitionFlag, read_partition
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.iterate import Batch
from mpbroker.storage.names import partition_name
from mpbroker.storage.segments import batches_below
from shm.table import SlotBusy, SlotTable

log = logging.getLogger("mpbroker.coordinator")


class Contents(Protocol):
    """Receives the records that a loader reads: one partition after the other, batch by batch."""

    def begin(self) -> None:
        """Expect the records of a new partition.

        Records of an earlier partition are dropped if neither `end` nor `fail` was called for it.
        """

    def read(self, partition: int, batch: Batch) -> None:
        """Take the next batch. Raises UnreadableRecord or CorruptBatch."""

    def end(self, end: Partition) -> None:
        """Apply the records since `begin`: the partition was read completely."""

    def fail(self, partition: int) -> None:
        """Note that the partition cannot be read. Records already passed to `read` do not count."""


@dataclass(eq=False)
class Loader:
    """Loads the partitions of a topic one after the other.

    `_images`: the partitions with their slots in the partition table. `_lost`: a sentence for the log line
    about an unreadable partition, which says what is unavailable.
    """

    _topic: str
    _lost: str
    _contents: Contents
    _table: SlotTable
    _log_dirs: tuple[str, ...]
    _images: list[PartitionImage]
    _end: Partition | None = None
    _reading: Iterator[None] | None = None

    def __post_init__(self) -> None:
        self._waiting = self._images[::-1]

    @property
    def done(self) -> bool:
        return not self._waiting

    def step(self) -> bool:
        """Read one batch, or begin or finish reading a partition. Return False if it cannot be read yet."""
        image = self._waiting[-1]
        if self._reading is None:
            end = self._ready(image)
            if end is None:
                return False
            if end.flags & PartitionFlag.PARTITION_OFFLINE:
                self._fail(image, "it is offline")
                return True
            self._end, self._reading = end, self._load(end)
        try:
            next(self._reading)
        except StopIteration:
            self._reading = None
            self._waiting.pop()
        except (CorruptBatch, UnreadableRecord, OSError) as error:
            if isinstance(error, OSError) and self._ready(image) != self._end:
                # It was moved to another log directory, or cleaned: read it as it is now.
                self._reading = None
                return False
            self._fail(image, str(error))
        return True

    def _fail(self, image: PartitionImage, why: str) -> None:
        log.error(
            "%s-%d cannot be read: %s. %s; restore its directory from a "
            "copy, or repair the disk, and start the broker again",
            self._topic,
            image.partition,
            why,
            self._lost,
        )
        self._reading = None
        self._waiting.pop()
        self._contents.fail(image.partition)

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

    def _load(self, end: Partition) -> Iterator[None]:
        directory = Path(self._log_dirs[end.log_dir]) / partition_name(self._topic, end.partition)
        self._contents.begin()
        for batch in batches_below(directory, end):
            self._contents.read(end.partition, batch)
            yield
        self._contents.end(end)
