"""Topics as they are in log directories: which, from which offset to which, and where ranges are best cut.

While the broker runs its partition table (in the public region that `mpbroker.json` leads to) says what may
be read; without one the checkpointed high watermark does. Nothing at or beyond it is ever planned.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec

from mpbroker.ipc.pointer import POINTER_NAME, PUBLIC_NAME, read_pointer
from mpbroker.ipc.table import PartitionFlag, read_partition_surely
from mpbroker.ipc.topology import LAYOUT_VERSION, PUBLIC_MAGIC, attach_table
from mpbroker.log.checkpoints import read_offsets, read_topic_id
from mpbroker.log.names import (
    HIGH_WATERMARKS,
    LOG_STARTS,
    META_PROPERTIES,
    NotAPartition,
    parse_partition,
)
from mpbroker.log.reader import Bound, PartitionReader, SegmentGone
from mpbroker.log.scan import batches, find_offset
from mpbroker.protocol.topic_names import METADATA_TOPIC
from mpbroker.records.errors import CorruptBatch
from shm.region import Region
from spark_integration.errors import CorruptLog, OptionError, SourceUnavailable
from spark_integration.options import TopicPartition
from spark_integration.plan import LocalFiles, OffsetRange, TaskRange, by_offsets
from spark_integration.segments import Piece, cut_offsets, opened, pieces, position_by_offset, segment_bases

_NO_ID = bytes(16)
_INTERNAL = ("__",)
_LOG = logging.getLogger("mpbroker.spark")


@dataclass(frozen=True)
class LocalPartition:
    """A partition's directory and what of it may be read."""

    directory: Path
    topic_id: bytes | None
    log_start: int
    bound: Bound


class LocalCatalog:
    """All partitions of some log directories at one moment. Raises SourceUnavailable, OptionError."""

    def __init__(self, log_dirs: Sequence[str]) -> None:
        self._log_dirs = tuple(str(Path(name).absolute()) for name in log_dirs)
        self._unreadable: dict[TopicPartition, str] = {}
        self._partitions: dict[TopicPartition, LocalPartition] = {}
        for name in self._log_dirs:
            self._add(Path(name))

    def topics(self) -> Iterable[str]:
        return sorted({topic for topic, _ in self._partitions if not topic.startswith(_INTERNAL)})

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

    def bounds(self, wanted: Sequence[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
        found = {one: self._partitions[one] for one in wanted}
        return {one: (partition.log_start, partition.bound.offset) for one, partition in found.items()}

    def offsets_for_times(self, wanted: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        answers: dict[TopicPartition, int | None] = {}
        for one, timestamp_ms in wanted.items():
            partition = self._partitions[one]
            with _faults_named(partition.directory), closing(PartitionReader(partition.directory)) as reader:
                found = reader.find_timestamp(timestamp_ms, partition.log_start, partition.bound)
            answers[one] = None if found.offset < 0 else found.offset
        return answers

    def weight(self, wanted: OffsetRange) -> int:
        partition = self._partitions[wanted.topic_partition]
        found = _found(partition, wanted)
        return sum(piece.end_position - piece.position for piece in found)

    def tasks(self, wanted: OffsetRange, parts: int, max_records: int | None) -> list[TaskRange]:
        partition = self._partitions[wanted.topic_partition]
        with _faults_named(partition.directory):
            found = _found(partition, wanted)
            inner = cut_offsets(partition.directory, found, parts, wanted.start, wanted.end)
        cuts = [wanted.start, *inner, wanted.end]
        files = LocalFiles(str(partition.directory), partition.topic_id, partition.bound, self._log_dirs)
        topic, number = wanted.topic_partition
        return [
            TaskRange(topic, number, start, end, files)
            for low, high in pairwise(cuts)
            for start, end in by_offsets(low, high, 1, max_records)
        ]

    def close(self) -> None:
        self._partitions.clear()

    def _add(self, log_dir: Path) -> None:
        if not (log_dir / META_PROPERTIES).is_file():
            raise OptionError(
                f"log.dir: {log_dir} is no broker's log directory, it has no {META_PROPERTIES}. "
                "Name a directory of the broker's log.dirs, as this process sees it"
            )
        region = running_broker(log_dir)
        directories = _directories(log_dir)
        if region is None:
            self._add_at_rest(log_dir, directories)
        else:
            self._add_served(region, directories)

    def _add_served(self, region: Region, directories: Mapping[TopicPartition, Path]) -> None:
        table = attach_table(region)
        slots = (read_partition_surely(table, slot) for slot in range(table.slots) if table.version(slot))
        served = {(slot.topic_id, slot.partition): slot for slot in slots if slot.topic_id != _NO_ID}
        for one, directory in directories.items():
            topic_id = read_topic_id(directory)
            slot = served.get((topic_id or _NO_ID, one[1]))
            if slot is None or slot.flags & PartitionFlag.PARTITION_DELETED:
                self._unreadable[one] = "the running broker does not serve it (it is being made or deleted)"
            elif (
                not slot.flags & PartitionFlag.PARTITION_LIVE or slot.flags & PartitionFlag.PARTITION_OFFLINE
            ):
                self._unreadable[one] = "it is offline, see the broker's log"
            else:
                bound = Bound(slot.high_watermark, slot.high_watermark_segment, slot.high_watermark_position)
                self._partitions[one] = LocalPartition(directory, topic_id, slot.log_start_offset, bound)

    def _add_at_rest(self, log_dir: Path, directories: Mapping[TopicPartition, Path]) -> None:
        high_watermarks = read_offsets(log_dir / HIGH_WATERMARKS)
        log_starts = read_offsets(log_dir / LOG_STARTS)
        for one, directory in directories.items():
            bases = segment_bases(directory)
            if not bases:
                continue
            log_start = max(log_starts.get(one, 0), bases[0])
            if one not in high_watermarks:
                _LOG.warning(
                    "no broker runs on %s; without a checkpointed high watermark %s-%s cannot be read",
                    log_dir,
                    *one,
                )
            high_watermark = max(high_watermarks.get(one, 0), log_start)
            bound = bound_at(directory, bases, high_watermark)
            self._partitions[one] = LocalPartition(directory, read_topic_id(directory), log_start, bound)


@contextmanager
def _faults_named(directory: Path) -> Iterator[None]:
    """Raises SourceUnavailable, CorruptLog for what can befall files that are read while they are planned."""
    try:
        yield
    except (SegmentGone, FileNotFoundError) as error:
        raise SourceUnavailable(
            f"{error}: it was deleted while the query was planned. Run it again"
        ) from error
    except CorruptBatch as error:
        raise CorruptLog(f"{directory} is damaged: {error}") from error


def _found(partition: LocalPartition, wanted: OffsetRange) -> list[Piece]:
    with _faults_named(partition.directory):
        return pieces(partition.directory, partition.bound, wanted.start, wanted.end)[1]


def log_dirs_are_here(log_dirs: Sequence[str]) -> bool:
    """Whether this host has them all."""
    return all((Path(name) / META_PROPERTIES).is_file() for name in log_dirs)


def running_broker(log_dir: Path) -> Region | None:
    """The public region of the broker that uses the directory, None if none runs.

    Raises SourceUnavailable, LayoutMismatch.
    """
    try:
        pointer = read_pointer(log_dir)
    except (OSError, msgspec.DecodeError) as error:
        raise SourceUnavailable(f"cannot read {log_dir / POINTER_NAME}: {error}") from error
    if pointer is None:
        return None
    try:
        region = Region.attach(Path(pointer.runtime_dir) / PUBLIC_NAME, PUBLIC_MAGIC, LAYOUT_VERSION)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise SourceUnavailable(
            f"{error}. Run as a member of the broker's group, "
            "or read with kafka.bootstrap.servers and readMode remote"
        ) from error
    return region if region.owner_is_alive() else None


def _directories(log_dir: Path) -> dict[TopicPartition, Path]:
    found = {}
    for entry in log_dir.iterdir():
        try:
            name = parse_partition(entry.name)
        except NotAPartition:
            continue
        if not name.suffix and name.topic != METADATA_TOPIC and entry.is_dir():
            found[name.topic, name.partition] = entry
    return found


def bound_at(directory: Path, bases: Sequence[int], high_watermark: int) -> Bound:
    """Where the high watermark is in the files; the end of the whole batches if they end before it."""
    base = max((one for one in bases if one <= high_watermark), default=bases[0])
    with opened(directory, base) as fd:
        size = os.fstat(fd).st_size
        start = position_by_offset(directory, base, high_watermark)
        batch = find_offset(fd, start, size, high_watermark)
        if batch is None:
            whole = batches(fd, start, size)
            end = whole[-1].position + whole[-1].length if whole else start
            log_end = whole[-1].last_offset + 1 if whole else base
            # A segment that others follow may end in a gap; behind the last one there is nothing.
            offset = high_watermark if base != bases[-1] else min(high_watermark, log_end)
            return Bound(offset, base, end)
        if batch.base_offset >= high_watermark:
            return Bound(high_watermark, base, batch.position)
        if batch.position + batch.length > size:
            return Bound(batch.base_offset, base, batch.position)
        return Bound(high_watermark, base, batch.position + batch.length)
