"""Committed offsets of all groups, read from the files of `__consumer_offsets` while the broker runs.

Reading the files does not slow down commits, and works while a coordinator is replaced. Reading ends at the
high watermark: only durable commits count. The first call begins to read, a batch at a time, and each later
call continues. The partitions take turns, so that a busy partition delays no other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mpbroker.coordinator.runtime.log_records import UnreadableRecord
from mpbroker.ipc.table import Partition, PartitionFlag, read_partition_surely
from mpbroker.metrics.snapshot import LogSeen
from mpbroker.observe.committed_groups import CommittedGroup, CommittedGroups
from mpbroker.protocol.topic_names import GROUP_TOPIC
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.iterate import iterate_batches
from mpbroker.storage.names import partition_name
from mpbroker.storage.reader import Bound, OffsetOutOfRange, PartitionReader, RangeDamaged, SegmentGone
from shm.table import SlotTable

READ_BYTES = 256 << 10
# The cleaner drops tombstones a day after their compaction. A reader that was late may have missed some, so a
# partition whose end was not reached for this long is read again from its start.
FORGET_AFTER_S = 6 * 3600.0

log = logging.getLogger("mpbroker.exporter")


@dataclass
class _Reading:
    """A partition of `__consumer_offsets`, and its commits as far as they have been read."""

    generation: int
    reader: PartitionReader
    # All records at `whole_at` have been read; those at `goal_at` end at `goal`.
    whole_at: float
    goal_at: float
    goal: int = 0
    committed: CommittedGroups = field(default_factory=CommittedGroups)
    next_offset: int = 0
    end: int = 0  # the high watermark as of the last call
    problem: str = ""

    def begin(self, end: int) -> None:
        """Set the high watermark `end`. Call this before reading up to it."""
        self.end = end
        if self.next_offset >= self.goal:
            self.whole_at, self.goal_at, self.goal = self.goal_at, time.monotonic(), end

    def arrive(self) -> None:
        """Mark the partition as read up to `end`."""
        self.whole_at = self.goal_at


class CommittedOffsets:
    """The groups by name, as far as they have been read."""

    def __init__(self, table: SlotTable, log_dirs: tuple[str, ...]) -> None:
        self._table = table
        self._log_dirs = log_dirs
        self._readings: dict[int, _Reading] = {}
        self._turn = 0  # the partition that is read next

    @property
    def groups(self) -> Mapping[str, CommittedGroup]:
        """Return the groups as read so far. All records of a group are in one partition of the topic."""
        found: dict[str, CommittedGroup] = {}
        for reading in self._readings.values():
            found.update(reading.committed.groups)
        return found

    @property
    def unreadable(self) -> int:
        """Return how many partitions of `__consumer_offsets` cannot be read."""
        return sum(bool(reading.problem) for reading in self._readings.values())

    @property
    def unread(self) -> int:
        """Return how many offsets of `__consumer_offsets` are still to be read."""
        return sum(max(reading.end - reading.next_offset, 0) for reading in self._readings.values())

    def follow(self, logs: list[LogSeen]) -> Iterator[None]:
        """Read the commits since the last call, yielding between batches. `logs`: all partitions."""
        ours = {seen.partition: seen for seen in logs if seen.topic == GROUP_TOPIC}
        self._forget_deleted(ours)
        for partition in sorted(ours, key=lambda one: (one < self._turn, one)):
            # If the caller stops here, the next call begins with the others.
            self._turn = partition + 1
            seen = ours[partition]
            now = read_partition_surely(self._table, seen.slot)
            if now.generation != seen.generation or not now.flags & PartitionFlag.PARTITION_LIVE:
                continue
            reading = self._readings.get(partition)
            if reading is not None and _is_too_old(reading):
                self._forget(partition)
                reading = None
            if reading is None:
                directory = Path(self._log_dirs[now.log_dir]) / partition_name(GROUP_TOPIC, partition)
                clock = time.monotonic()
                reading = _Reading(now.generation, PartitionReader(directory), clock, clock)
                self._readings[partition] = reading
            yield from self._read(partition, reading, now)

    def close(self) -> None:
        for reading in self._readings.values():
            reading.reader.close()

    def _forget_deleted(self, ours: dict[int, LogSeen]) -> None:
        """Forget partitions that were deleted, also if the topic was created again."""
        for partition, reading in list(self._readings.items()):
            if partition not in ours or ours[partition].generation != reading.generation:
                self._forget(partition)

    def _forget(self, partition: int) -> None:
        self._readings.pop(partition).reader.close()

    def _read(self, partition: int, reading: _Reading, end: Partition) -> Iterator[None]:
        bound = Bound(end.high_watermark, end.high_watermark_segment, end.high_watermark_position)
        directory = Path(self._log_dirs[end.log_dir]) / partition_name(GROUP_TOPIC, partition)
        if reading.reader.directory != directory:
            # The partition was moved to another log directory.
            reading.reader.close()
            reading.reader = PartitionReader(directory)
        reading.next_offset = max(reading.next_offset, end.log_start_offset)
        reading.begin(bound.offset)
        try:
            while reading.next_offset < bound.offset:
                piece = reading.reader.fetch_slice(reading.next_offset, READ_BYTES, bound)
                if piece is None:
                    # The rest was compacted away.
                    reading.next_offset = max(reading.next_offset, bound.offset)
                    break
                for batch in iterate_batches(reading.reader.read(piece)):
                    if batch.last_offset >= reading.next_offset:
                        reading.committed.take(partition, batch)
                        reading.next_offset = batch.last_offset + 1
                    yield
            reading.problem = ""
            reading.arrive()
        except SegmentGone:
            pass  # the next call finds the segments again
        except (CorruptBatch, UnreadableRecord, RangeDamaged, OffsetOutOfRange, OSError) as error:
            self._fail(partition, reading, error)
        finally:
            # An open file that the cleaner replaces would keep its space.
            reading.reader.close()

    def _fail(self, partition: int, reading: _Reading, error: Exception) -> None:
        if str(error) != reading.problem:
            reading.problem = str(error)
            log.warning(
                "%s-%d cannot be read from offset %d: %s. The lag of its groups is out of date",
                GROUP_TOPIC,
                partition,
                reading.next_offset,
                error,
            )


def _is_too_old(reading: _Reading) -> bool:
    """Return whether reading may have missed tombstones; False for a partition that cannot be read."""
    return not reading.problem and time.monotonic() - reading.whole_at > FORGET_AFTER_S
