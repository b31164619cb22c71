"""Finds topics in log directories: partitions, readable offsets, and where to split a range into tasks.

Records are read below the high watermark, or below the last stable offset for read_committed. While the
broker runs, both offsets are in its partition table, in shared memory that `mpbroker.json` leads to. Without
a broker the high watermark is the checkpointed one, and the last stable offset is computed from the files
(`transactions`).

The checkpoint is written every few seconds and at a clean stop. After an unclean stop it is outdated: later
records are not read until a broker has recovered the log.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mpbroker.ipc.table import Partition, PartitionFlag, read_partition_surely
from mpbroker.ipc.topology import attach_table
from mpbroker.protocol.messages import ZERO_UUID
from mpbroker.protocol.topic_names import METADATA_TOPIC
from mpbroker.reading.errors import CorruptLog, SourceUnavailable
from mpbroker.reading.log_dirs import (
    Identity,
    RunningBroker,
    one_that_counts,
    permission_needed,
    running_broker,
    with_siblings,
)
from mpbroker.reading.options import TopicPartition
from mpbroker.reading.plan import (
    Catalog,
    Lineage,
    LocalFiles,
    OffsetRange,
    PartitionBounds,
    TaskRange,
    by_offsets,
)
from mpbroker.reading.segments import Piece, cut_offsets, opened, pieces, position_by_offset, weight
from mpbroker.reading.transactions import aborted_in, at_rest, check_last_index, first_aborted_at
from mpbroker.records.aborted import AbortedRange
from mpbroker.records.errors import CorruptBatch
from mpbroker.storage.checkpoints import CheckpointCorrupt, read_epochs, read_offsets, read_topic_id
from mpbroker.storage.leader_epochs import FIRST, NO_OFFSET, Epochs, end_of
from mpbroker.storage.names import HIGH_WATERMARKS, LOG_STARTS, NotAPartition, parse_partition
from mpbroker.storage.reader import Bound, PartitionReader, SegmentGone
from mpbroker.storage.remote_segments import read_remote_segments
from mpbroker.storage.scan import batches, find_offset
from mpbroker.storage.segments import segments_of
from shm.region import Region
from shm.table import SlotTable

if TYPE_CHECKING:
    from mpbroker.reading.bucket_catalog import BucketCatalog

_NOT_SERVED = "the running broker does not serve it (it is being made or deleted)"
# A partition that moves between directories while they are listed may be missing from both lists.
_LISTINGS = 5
_ASK = (
    "Give kafka.bootstrap.servers of the running broker too (and readMode auto), which fetches them, or "
    "mpbroker.bucket, where they are"
)
_ABOVE_EVERYTHING = (1 << 63) - 1
_LOG = logging.getLogger("mpbroker.spark")


class Slot(NamedTuple):
    """An entry in the partition table of a running broker."""

    table: SlotTable
    number: int


Served = Mapping[tuple[bytes, int], tuple[Partition, Slot]]


class Readable(NamedTuple):
    """The readable records of a partition: from offset `log_start` up to `bound`.

    `aborted` are aborted transactions that the `.txnindex` files may lack.
    """

    log_start: int
    bound: Bound
    aborted: tuple[AbortedRange, ...] = ()


@dataclass(frozen=True)
class LocalPartition:
    """A partition's directory, and a function `find` that determines which records may be read."""

    directory: Path
    topic_id: bytes | None
    identity: Identity
    find: Callable[[], Readable]
    # The slot in which a running broker publishes it, and the number of its log directory there.
    slot: Slot | None = None
    log_dir: int = 0

    @cached_property
    def readable(self) -> Readable:
        """Return which records may be read.

        The files are read at the first access, so that damaged files affect only queries of their topic.
        Raises CorruptLog, SourceUnavailable, OSError.
        """
        with permission_needed(self.directory), _faults_named(self.directory):
            return self.find()


class LocalCatalog:
    """All partitions in some log directories and in the other log directories of the same brokers.

    It is a snapshot; a partition's files are read on demand. With `read_committed`, readable offsets end at
    the last stable offset. `stored` opens the catalog of the bucket, `ask` that of the brokers; each may be
    None. What a partition has in the object store alone is read from the bucket, else fetched from a broker.
    Raises OptionError, FilesUnavailable, SourceUnavailable, CorruptLog.
    """

    def __init__(
        self,
        log_dirs: Sequence[str],
        *,
        read_committed: bool = True,
        ask: Callable[[], Catalog] | None = None,
        stored: Callable[[], BucketCatalog] | None = None,
    ) -> None:
        self._read_committed = read_committed
        self._ask = ask
        self._stored = stored
        self._unreadable: dict[TopicPartition, str] = {}
        self._partitions: dict[TopicPartition, LocalPartition] = {}
        # The running broker of each log directory.
        self.brokers: dict[str, RunningBroker | None] = {}
        identities = with_siblings(log_dirs)
        self._log_dirs = tuple(map(str, identities))
        # Read before the listing, so that changes during it are noticed.
        self.changed_ns = self.changes()
        groups: dict[tuple[str, str], list[Path]] = {}
        for log_dir, identity in identities.items():
            groups.setdefault(identity[:2], []).append(log_dir)
        for group in groups.values():
            with permission_needed(group[0]):
                self._add(group, identities[group[0]])

    def topics(self) -> Iterable[str]:
        return sorted({topic for topic, _ in self._partitions})

    def partitions(self, topic: str) -> Sequence[int]:
        for (name, number), reason in self._unreadable.items():
            if name == topic:
                raise SourceUnavailable(f"partition {topic}-{number} cannot be read: {reason}")
        found = sorted(number for name, number in self._partitions if name == topic)
        if not found:
            raise SourceUnavailable(
                f"topic {topic} is not in the log directory. Check its name and option log.dir"
            )
        return found

    def bounds(self, wanted: Sequence[TopicPartition]) -> Mapping[TopicPartition, PartitionBounds]:
        found = {}
        for one in wanted:
            readable = self._partitions[one].readable
            topic_id = self._partitions[one].topic_id
            found[one] = PartitionBounds(readable.log_start, readable.bound.offset, topic_id)
        return found

    def lineages(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Lineage]:
        found = {}
        for one, epoch in epochs.items():
            try:
                known: Epochs = read_epochs(self._partitions[one].directory) or FIRST
            except FileNotFoundError:
                known = FIRST
            except CheckpointCorrupt as error:
                raise CorruptLog(str(error)) from error
            # Nothing is said of the end of the present epoch: at rest it is not known.
            end = end_of(known, epoch, NO_OFFSET).offset
            found[one] = Lineage(known[-1][0], self._committed_end(self._partitions[one], end))
        return found

    def _committed_end(self, partition: LocalPartition, end: int) -> int:
        """Return an epoch's end, or the start of the first transaction that was open there, unless committed.

        Return -1 if it is unknown: a restore begins an epoch before anybody knows where, and what may be read
        at rest may end earlier.
        """
        readable = partition.readable
        if end in (NO_OFFSET, _ABOVE_EVERYTHING):
            return NO_OFFSET
        if partition.slot is None and readable.bound.offset < end:
            return NO_OFFSET
        if not self._read_committed or end <= readable.log_start:
            return end
        aborted = (*readable.aborted, *aborted_in(partition.directory, end - 1, end))
        return min(first_aborted_at(end, aborted), readable.bound.offset)

    def refresh(self, wanted: Iterable[TopicPartition]) -> bool:
        """Read these partitions' offsets again from the running broker's memory, without listing directories.

        Returns False if a partition has no slot, has moved to another log directory, or is not served. Then
        the caller has to open a new catalog.
        """
        for one in wanted:
            known = self._partitions.get(one)
            if known is None or known.slot is None:
                return False
            slot = read_partition_surely(*known.slot)
            is_same = (slot.topic_id, slot.partition, slot.log_dir) == (known.topic_id, one[1], known.log_dir)
            if not is_same or _why_not_served(slot) is not None:
                return False
            self._partitions[one] = self._partition_of(known.directory, slot, known.slot, known.identity)
        return True

    def changes(self) -> tuple[int, ...]:
        """Return the log directories' mtimes: a created or deleted partition changes one. Raises OSError."""
        return tuple(os.stat(log_dir).st_mtime_ns for log_dir in self._log_dirs)  # noqa: PTH116

    def slots(self, wanted: Iterable[TopicPartition]) -> list[Slot]:
        """Return the slots of these partitions; leave out partitions that no running broker publishes."""
        found = (self._partitions[one].slot for one in wanted)
        return [slot for slot in found if slot is not None]

    def directories(self, wanted: Iterable[TopicPartition]) -> list[Path]:
        """Return the directories of these partitions, in the same order."""
        return [self._partitions[one].directory for one in wanted]

    @property
    def unserved(self) -> Mapping[TopicPartition, str]:
        """Return the partitions that the running broker does not serve now, each with the reason."""
        return self._unreadable

    def offsets_for_times(self, wanted: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        answers: dict[TopicPartition, int | None] = {}
        away = {one: time_ms for one, time_ms in wanted.items() if self._is_away(one, time_ms)}
        if away:
            ask = self._stored or self._ask
            if ask is None:
                first = next(iter(away))
                raise SourceUnavailable(
                    f"{first[0]}-{first[1]}: records of {away[first]} ms or later are in the object store "
                    f"and not in the files of the log directory. {_ASK}"
                )
            with closing(ask()) as catalog:
                answers |= catalog.offsets_for_times(away)
        for one, timestamp_ms in wanted.items():
            # The bucket may lack the newest records, which are here.
            if answers.get(one) is not None or (one in away and self._stored is None):
                continue
            partition = self._partitions[one]
            with _faults_named(partition.directory), closing(PartitionReader(partition.directory)) as reader:
                found = reader.find_timestamp(timestamp_ms, *partition.readable[:2])
            answers[one] = None if found.offset < 0 else found.offset
        return answers

    def _is_away(self, one: TopicPartition, timestamp_ms: int) -> bool:
        """Return whether the first record of a time or later is in the object store alone."""
        partition = self._partitions[one]
        with _faults_named(partition.directory):
            local_start = segments_of(partition.directory)[0]
            log_start = partition.readable.log_start
            return log_start < local_start and any(
                segment.largest_ms >= timestamp_ms
                for segment in read_remote_segments(partition.directory)
                if segment.end > log_start and segment.base < local_start
            )

    def weight(self, wanted: OffsetRange) -> int:
        return self._weight_away(wanted) + self._weight_here(wanted)

    def _weight_away(self, wanted: OffsetRange) -> int:
        """Return the bytes of the range's segments that are in the object store alone."""
        partition = self._partitions[wanted.topic_partition]
        with _faults_named(partition.directory):
            local_start = segments_of(partition.directory)[0]
            if wanted.start >= local_start:
                return 0
            end = min(wanted.end, local_start)
            remote = read_remote_segments(partition.directory)
            return sum(one.size for one in remote if one.end > wanted.start and one.base < end)

    def _weight_here(self, wanted: OffsetRange) -> int:
        partition = self._partitions[wanted.topic_partition]
        with _faults_named(partition.directory):
            return weight(_found(partition, wanted))

    def tasks(self, wanted: OffsetRange, parts: int, max_records: int | None) -> list[TaskRange]:
        partition = self._partitions[wanted.topic_partition]
        with _faults_named(partition.directory):
            local_start = segments_of(partition.directory)[0]
        if wanted.start >= local_start:
            return self._tasks_here(wanted, parts, max_records)
        topic, number = wanted.topic_partition
        cut = min(wanted.end, local_start)
        if self._ask is None and self._stored is None:
            raise SourceUnavailable(
                f"offsets {wanted.start} to {cut - 1} of {topic}-{number} are in the object store and not in "
                f"the files of the log directory. {_ASK}, or begin at offset {local_start}"
            )
        share = parts * self._weight_away(wanted) // max(self.weight(wanted), 1)
        parts_away = min(max(share, 1), max(parts - 1, 1))
        away = OffsetRange(wanted.topic_partition, wanted.start, cut)
        if self._stored is not None:
            tasks = self._tasks_away(self._stored, partition, away, parts_away, max_records)
        else:
            tasks = [
                TaskRange(topic, number, start, end, partition.topic_id)
                for start, end in by_offsets(wanted.start, cut, parts_away, max_records)
            ]
        if cut == wanted.end:
            return tasks
        here = OffsetRange(wanted.topic_partition, cut, wanted.end)
        return [*tasks, *self._tasks_here(here, max(parts - parts_away, 1), max_records)]

    def _tasks_away(
        self,
        stored: Callable[[], BucketCatalog],
        partition: LocalPartition,
        away: OffsetRange,
        parts: int,
        max_records: int | None,
    ) -> list[TaskRange]:
        """Cut a range that is in the bucket. Transactions may have ended in a segment that is here alone."""
        aborted: list[AbortedRange] = []
        if self._read_committed:
            with _faults_named(partition.directory):
                found = [*partition.readable.aborted, *aborted_in(partition.directory, away.start, away.end)]
            aborted = [one for one in found if one.first_offset < away.end]
        with closing(stored()) as bucket:
            return bucket.tasks_of(partition.topic_id or b"", away, parts, max_records, aborted)

    def _tasks_here(self, wanted: OffsetRange, parts: int, max_records: int | None) -> list[TaskRange]:
        """Cut a range that is in local segments."""
        partition = self._partitions[wanted.topic_partition]
        cuts = [wanted.start, wanted.end]
        if parts > 1:
            total = self._weight_here(wanted)
            with _faults_named(partition.directory):
                found = _found(partition, wanted)
                cuts[1:1] = cut_offsets(partition.directory, found, total, parts, *cuts)
        cluster_id, node_id, _ = partition.identity
        files = LocalFiles(
            str(partition.directory),
            partition.readable.bound,
            self._log_dirs,
            cluster_id,
            node_id,
            partition.readable.aborted,
        )
        topic, number = wanted.topic_partition
        return [
            TaskRange(topic, number, start, end, partition.topic_id, files)
            for low, high in pairwise(cuts)
            for start, end in by_offsets(low, high, 1, max_records)
        ]

    def close(self) -> None:
        self._partitions.clear()

    def _add(self, log_dirs: Sequence[Path], identity: Identity) -> None:
        """Add the partitions in all log directories of one broker, which may be running."""
        try:
            found = {str(one): running_broker(one) for one in log_dirs}
            self.brokers |= found
            running = [broker for broker in found.values() if broker is not None]
            if running:
                self._add_served(running[0].region, log_dirs, identity)
            else:
                self._add_at_rest(log_dirs, identity)
        except CheckpointCorrupt as error:
            raise CorruptLog(f"{error}. Restore it, or read with readMode remote") from error

    def _add_served(self, region: Region, log_dirs: Sequence[Path], identity: Identity) -> None:
        table = attach_table(region)
        served = _slots_of(table) if len(log_dirs) > 1 else {}
        for _ in range(_LISTINGS):
            before = served
            directories = _directories(log_dirs)
            topic_ids = {one: read_topic_id(path) or ZERO_UUID for one, path in directories.items()}
            served = _slots_of(table)
            elsewhere = _elsewhere(served, topic_ids)
            if not elsewhere and not _has_moved(before, served):
                break
        for one in elsewhere:
            listed = ", ".join(map(str, log_dirs))
            self._unreadable[one] = f"the running broker serves it, but it is not in {listed}"
        for one, directory in directories.items():
            key = (topic_ids[one], one[1])
            reason = _why_not_served(served[key][0]) if key in served else _NOT_SERVED
            if reason is not None:
                self._unreadable[one] = reason
            else:
                self._partitions[one] = self._partition_of(directory, *served[key], identity)

    def _partition_of(self, path: Path, now: Partition, slot: Slot, identity: Identity) -> LocalPartition:
        find = partial(_published, path, now, read_committed=self._read_committed)
        return LocalPartition(path, now.topic_id, identity, find, slot, now.log_dir)

    def _add_at_rest(self, log_dirs: Sequence[Path], identity: Identity) -> None:
        high_watermarks = {one: read_offsets(one / HIGH_WATERMARKS) for one in log_dirs}
        log_starts = {one: read_offsets(one / LOG_STARTS) for one in log_dirs}
        for one, directory in _directories(log_dirs).items():
            bases = segments_of(directory)
            if not bases:
                continue
            log_start = log_starts[directory.parent].get(one, 0)
            high_watermark = high_watermarks[directory.parent].get(one)
            find = partial(
                _at_rest, directory, bases, log_start, high_watermark, read_committed=self._read_committed
            )
            self._partitions[one] = LocalPartition(directory, read_topic_id(directory), identity, find)


def _published(directory: Path, slot: Partition, *, read_committed: bool) -> Readable:
    """Return the readable offsets that a running broker published in the slot. Raises CorruptLog."""
    bound = Bound(slot.high_watermark, slot.high_watermark_segment, slot.high_watermark_position)
    if read_committed:
        bound = Bound(slot.last_stable_offset, slot.last_stable_segment, slot.last_stable_position)
        check_last_index(directory, bound, slot.aborted_end)
    return Readable(slot.log_start_offset, bound)


def _at_rest(
    directory: Path, bases: Sequence[int], log_start: int, high_watermark: int | None, *, read_committed: bool
) -> Readable:
    """Find in the files which records may be read. `log_start`: the checkpointed one.

    Raises SegmentGone, CorruptLog, CheckpointCorrupt, OSError.
    """
    log_start = max(log_start, read_remote_segments(directory).first_offset(bases[0]))
    if high_watermark is None:
        _LOG.warning(
            "no broker runs on %s; without a checkpointed high watermark %s cannot be read",
            *(directory.parent, directory.name),
        )
    bound = bound_at(directory, bases, max(high_watermark or 0, log_start))
    if not read_committed:
        return Readable(log_start, bound)
    stable, aborted = at_rest(directory, bases, bound.offset)
    if stable < bound.offset:
        bound = bound_at(directory, bases, max(stable, log_start))
    return Readable(log_start, bound, aborted)


def _slots_of(table: SlotTable) -> Served:
    """Return the partitions and slots in the table of a running broker, by topic id and partition number."""
    places = (Slot(table, number) for number in range(table.slots) if table.version(number))
    found = ((read_partition_surely(*place), place) for place in places)
    return {
        (slot.topic_id, slot.partition): (slot, place)
        for slot, place in found
        if slot.topic_id != ZERO_UUID and not slot.flags & PartitionFlag.PARTITION_DELETED
    }


def _why_not_served(slot: Partition) -> str | None:
    if slot.flags & PartitionFlag.PARTITION_DELETED:
        return _NOT_SERVED
    if not slot.flags & PartitionFlag.PARTITION_LIVE or slot.flags & PartitionFlag.PARTITION_OFFLINE:
        return "it is offline, see the broker's log"
    return None


def _elsewhere(served: Served, topic_ids: Mapping[TopicPartition, bytes]) -> list[TopicPartition]:
    """Return each served partition that is not in `topic_ids`, if `topic_ids` has its topic."""
    topics = {topic_id: topic for (topic, _), topic_id in topic_ids.items()}
    here = {(topic_id, number) for (_, number), topic_id in topic_ids.items()}
    return [(topics[key[0]], key[1]) for key in served if key[0] in topics and key not in here]


def _has_moved(before: Served, after: Served) -> bool:
    """Return whether a partition has moved to another log directory. Listings made meanwhile may lack it."""
    return any(key in before and before[key][0].log_dir != slot.log_dir for key, (slot, _) in after.items())


@contextmanager
def _faults_named(directory: Path) -> Iterator[None]:
    """Turn errors about a partition's files into SourceUnavailable (file missing) or CorruptLog (damaged)."""
    try:
        yield
    except (SegmentGone, FileNotFoundError) as error:
        raise SourceUnavailable(
            f"{error}: it was deleted while the query was planned. Run it again"
        ) from error
    except (CorruptBatch, CheckpointCorrupt) as error:
        raise CorruptLog(f"{directory} is damaged: {error}") from error


def _found(partition: LocalPartition, wanted: OffsetRange) -> Iterator[Piece]:
    return pieces(partition.directory, partition.readable.bound, wanted.start, wanted.end)


def _directories(log_dirs: Sequence[Path]) -> dict[TopicPartition, Path]:
    found: dict[TopicPartition, list[Path]] = {}
    for log_dir in log_dirs:
        for entry in log_dir.iterdir():
            try:
                name = parse_partition(entry.name)
            except NotAPartition:
                continue
            if not name.suffix and name.topic != METADATA_TOPIC and entry.is_dir():
                found.setdefault((name.topic, name.partition), []).append(entry)
    return {one: one_that_counts(paths) for one, paths in found.items()}


def offsets_in_files(directory: Path) -> tuple[int, int]:
    """Return the first offset in a partition's files, and the offset after their last whole batch.

    The first offset of a tiered partition may be in the object store. Call this only while no broker runs.
    The files may have records that were not acknowledged. Raises SourceUnavailable, CorruptLog, OSError.
    """
    with _faults_named(directory):
        bases = segments_of(directory)
        if not bases:
            return 0, 0
        start = read_remote_segments(directory).first_offset(bases[0])
        return start, bound_at(directory, bases, _ABOVE_EVERYTHING).offset


def bound_at(directory: Path, bases: Sequence[int], high_watermark: int) -> Bound:
    """Return the high watermark's position in the files, at most the end of the last whole batch."""
    base = max((one for one in bases if one <= high_watermark), default=bases[0])
    with opened(directory, base) as fd:
        size = os.fstat(fd).st_size
        start = position_by_offset(directory, base, fd, high_watermark)
        batch = find_offset(fd, start, size, high_watermark)
        if batch is None:
            whole = batches(fd, start, size)
            end = whole[-1].position + whole[-1].length if whole else start
            log_end = whole[-1].last_offset + 1 if whole else base
            # A segment that others follow may end in a gap; above the last one there is nothing.
            offset = high_watermark if base != bases[-1] else min(high_watermark, log_end)
            return Bound(offset, base, end)
        if batch.base_offset >= high_watermark:
            return Bound(high_watermark, base, batch.position)
        if batch.position + batch.length > size:
            return Bound(batch.base_offset, base, batch.position)
        return Bound(high_watermark, base, batch.position + batch.length)
