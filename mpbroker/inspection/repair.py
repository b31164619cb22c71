"""Repair of a damaged partition: all whole batches stay, also those after damage, and can be served again.

The repair holds the lock of the log directory, so no broker runs. A segment with damage is replaced in one
step by a copy of its whole batches with the same offsets: there may be gaps, as after compaction. Batches
with a wrong leader epoch get the epoch that leader-epoch-checkpoint has for their offset. The damaged file is
kept under another name; indexes are rebuilt at the next start. After a kill at any point the partition is as
damaged as before or repaired in part, and the repair can be done again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mpbroker.inspection.directory import locked as locked_directories
from mpbroker.inspection.directory import open_directory
from mpbroker.inspection.findings import Severity
from mpbroker.inspection.partition import Partition, check
from mpbroker.inspection.segment import Segment, batches, mapped
from mpbroker.records.batch import LEADER_EPOCH_AT
from mpbroker.records.errors import CorruptBatch
from mpbroker.storage.checkpoints import fsync_directory, read_offsets, write_offsets
from mpbroker.storage.directory_lock import is_in_use, restricted_new_files
from mpbroker.storage.journal import JournalDamaged, JournalFile, worker_of
from mpbroker.storage.names import (
    HIGH_WATERMARKS,
    INDEX_SUFFIX,
    META_PROPERTIES,
    RECOVERY_POINTS,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_name,
)
from mpbroker.storage.segments import offsets_of
from mpbroker.storage.strict_stat import is_there

DAMAGED_SUFFIX = ".damaged"
REPAIRED_SUFFIX = ".repaired"
PIECE_BYTES = 1 << 20


def helps(partition: Partition) -> bool:
    """Return whether a repair can remove damage that `check` has found in the partition."""
    found = {one.severity for segment in partition.segments for one in segment.findings}
    is_short = partition.durable is not None and partition.end_offset < partition.durable
    return Severity.DAMAGE in found or is_short


class CannotRepair(Exception):
    """Raised when a partition cannot be repaired; the text has the reason and advice."""


@dataclass
class Cut:
    """A damaged segment.

    `whole` has the byte ranges [start, end) of whole batches, `lost` the ranges [start, end) of lost offsets.
    An end of -1 is unknown.
    """

    segment: Segment
    whole: list[tuple[int, int]]
    lost: list[tuple[int, int]]

    @property
    def lost_bytes(self) -> int:
        return self.segment.size - sum(end - start for start, end in self.whole)


@dataclass
class Plan:
    """The changes of a repair. `lowered`: the log's new end, if that is below the durable offset."""

    partition: Partition
    cuts: list[Cut] = field(default_factory=list)
    lowered: int | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to repair."""
        return not self.cuts and self.lowered is None


@contextmanager
def locked(partition: Path) -> Iterator[None]:
    """Hold the lock of the partition's log directory. Raises CannotRepair, FatalError, OSError."""
    home = partition.parent
    if is_there(partition / META_PROPERTIES):
        raise CannotRepair(
            f"{partition} is a whole log directory. Name a partition in it: mpbroker log verify {partition} "
            "lists the damaged ones"
        )
    if not is_there(home / META_PROPERTIES):
        raise CannotRepair(f"{home} has no {META_PROPERTIES}: not a log directory. Name a partition in one")
    if is_in_use(home):
        raise CannotRepair(f"a broker has {home} open. Stop it first")
    with locked_directories([home]), restricted_new_files():
        yield


def plan(path: Path) -> Plan:
    """Return the plan of a repair. The caller holds the lock. Raises CannotRepair, OSError."""
    partition = next((one for one in open_directory(path.parent).partitions if one.path == path), None)
    if partition is None:
        raise CannotRepair(f"{path} is not the directory of a partition (<topic>-<number>)")
    check(partition)
    if any(segment.old_at for segment in partition.segments):
        raise CannotRepair(
            f"{path} has messages of before Kafka 0.11. Serve the directory with Apache Kafka 3 and copy the "
            "topic's records to a new topic there, or delete the topic"
        )
    _refuse_journaled(partition)
    if all(one.severity is not Severity.DAMAGE for one in partition.all_findings):
        # The next start cuts off by itself a torn end that was never durable.
        return Plan(partition)
    holes = {Severity.DAMAGE, Severity.TORN}
    cuts = [_cut(one) for one in partition.segments if any(f.severity in holes for f in one.findings)]
    end = partition.end_offset
    lowered = end if partition.durable is not None and end < partition.durable else None
    return Plan(partition, cuts, lowered)


def _refuse_journaled(partition: Partition) -> None:
    """Raise CannotRepair if a journal has records of the partition that may not be in its segments yet."""
    for path in sorted(partition.path.parent.iterdir()):
        if worker_of(path.name) is not None:
            _refuse_if_in(path, partition)


def _refuse_if_in(path: Path, partition: Partition) -> None:
    try:
        journal = JournalFile(path)
        try:
            is_named = any(
                (one.topic_id, one.partition) == (partition.topic_id, partition.partition)
                for record in journal.records()
                for one in record.extents
            )
        finally:
            journal.close()
    except JournalDamaged as problem:
        raise CannotRepair(f"{problem}: the last records may be nowhere else. Restore it first") from problem
    if is_named:
        raise CannotRepair(
            f"{path} has records of {partition.path.name} that may not be in its segments yet. "
            "Start the broker once, it writes them there, and stop it"
        )


def _cut(segment: Segment) -> Cut:
    whole: list[tuple[int, int]] = []
    lost: list[tuple[int, int]] = []
    next_offset, open_from = segment.base, None
    with mapped(segment.path) as view:
        for found in batches(view, segment.base):
            if isinstance(found, CorruptBatch):
                open_from = next_offset if open_from is None else open_from
                continue
            if open_from is not None:
                lost.append((open_from, found.base_offset))
                open_from = None
            end = found.position + found.length
            if whole and whole[-1][1] == found.position:
                whole[-1] = (whole[-1][0], end)
            else:
                whole.append((found.position, end))
            next_offset = found.base_offset + found.last_offset_delta + 1
    if open_from is not None:
        lost.append((open_from, -1))
    return Cut(segment, whole, lost)


def carry_out(plan: Plan) -> list[Path]:
    """Do the repair under the lock. Return the damaged files under their new names. Raises OSError."""
    directory = plan.partition.path
    kept = [_replace(cut) for cut in plan.cuts]
    for offset in offsets_of(directory, SNAPSHOT_SUFFIX):
        if offset > plan.partition.end_offset:
            (directory / segment_name(offset, SNAPSHOT_SUFFIX)).unlink()
    fsync_directory(directory)
    if plan.lowered is not None:
        _lower(plan.partition, plan.lowered)
    return kept


def _replace(cut: Cut) -> Path:
    path = cut.segment.path
    repaired = path.with_name(path.name + REPAIRED_SUFFIX)
    with path.open("rb") as source, repaired.open("wb") as target:
        for start, end in cut.whole:
            source.seek(start)
            while start < end:
                piece = source.read(min(PIECE_BYTES, end - start))
                target.write(piece)
                start += len(piece)
        for position, _, epoch in cut.segment.odd_epochs:
            target.seek(_kept_before(cut, position) + LEADER_EPOCH_AT)
            target.write(epoch.to_bytes(4, "big"))
        target.flush()
        os.fsync(target.fileno())
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        path.with_name(segment_name(cut.segment.base, suffix)).unlink(missing_ok=True)
    damaged = _free_name(path.with_name(path.name + DAMAGED_SUFFIX))
    os.link(path, damaged)
    repaired.rename(path)
    return damaged


def _kept_before(cut: Cut, position: int) -> int:
    """Return the position in the repaired file of the whole batch that is at `position` in the segment."""
    return sum(min(end, position) - start for start, end in cut.whole if start < position)


def _free_name(path: Path) -> Path:
    """Return `path`, with a number if an earlier repair has left a file of that name."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def _lower(partition: Partition, end: int) -> None:
    """Lower the checkpoints to `end`. The records from there on are lost, as the plan has reported."""
    key = (partition.topic, partition.partition)
    for name in (HIGH_WATERMARKS, RECOVERY_POINTS):
        path = partition.path.parent / name
        offsets = read_offsets(path)
        if offsets.get(key, 0) > end:
            write_offsets(path, {**offsets, key: end})
