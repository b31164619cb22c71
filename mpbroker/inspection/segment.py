"""The check of one segment, batch by batch, and of its indexes.

After bytes that are no batch, the check goes on at the next whole batch with a higher offset. So it finds all
damage of a segment, not only the first.
"""

from __future__ import annotations

import errno
import mmap
import os
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mpbroker.inspection.findings import Finding, Severity, finding
from mpbroker.records.batch import BATCH_HEADER_BYTES, CURRENT_MAGIC, MAGIC_AT, BatchFrame, frame_at
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.old_format import old_magic
from mpbroker.storage.index import read_offset_entries, read_time_entries
from mpbroker.storage.leader_epochs import NO_EPOCH, Epochs, epoch_of
from mpbroker.storage.names import INDEX_SUFFIX, OFFSET_SPAN, TIME_INDEX_SUFFIX, parse_segment, segment_name

# Called with the bytes that a walk has passed since the last call.
Seen = Callable[[int], None]
# `Seen` is called after this many bytes and at each segment's end: calls for each small batch would take as
# long as the walk.
SEEN_BYTES = 1 << 20
# The bytes read at a time.
PIECE_BYTES = 1 << 20


@dataclass
class Segment:
    """The result of a segment's check. `end`: the position after the last whole batch."""

    path: Path
    base: int
    size: int
    batches: int = 0
    records: int = 0
    next_offset: int = 0
    end: int = 0
    max_timestamp: int = -1
    # Batches with another leader epoch than their offset's: (position, offset, the offset's epoch).
    odd_epochs: list[tuple[int, int, int]] = field(default_factory=list)
    # The starts of runs of messages from before Kafka 0.11: (position, magic of the first one).
    old_at: list[tuple[int, int]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


@contextmanager
def mapped(path: Path, unreadable: list[int] | None = None) -> Iterator[memoryview]:
    """Yield the file's bytes as they are now.

    Pages that the disk cannot read are zeros, which are no batch; their positions are appended to
    `unreadable`. Raises OSError for other errors.
    """
    with path.open("rb") as file:
        fd = file.fileno()
        size = _readable_bytes(fd)
        if size == 0:
            yield memoryview(b"")  # an empty file cannot be mapped
            return
        if size > 0:
            whole = mmap.mmap(fd, size, access=mmap.ACCESS_READ)
        else:
            whole = _copied(fd, unreadable if unreadable is not None else [])
        with whole, memoryview(whole) as view:
            yield view


def _readable_bytes(fd: int) -> int:
    """Read the whole file. Return its size, -1 if the disk cannot read some of it (EIO).

    Call this before the file is mapped: a process that touches a mapped page which the disk cannot read is
    killed (SIGBUS). Once read, a page is in the page cache.
    """
    piece, size = bytearray(PIECE_BYTES), 0
    try:
        while got := os.preadv(fd, [piece], size):
            size += got
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return -1
    return size


def _copied(fd: int, unreadable: list[int]) -> mmap.mmap:
    """Return a copy of the file in anonymous memory, with zeros for pages that the disk cannot read."""
    size = os.fstat(fd).st_size
    whole = mmap.mmap(-1, size)
    with memoryview(whole) as view:
        for at in range(0, size, mmap.PAGESIZE):
            try:
                os.preadv(fd, [view[at : at + mmap.PAGESIZE]], at)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                unreadable.append(at)
    return whole


def batches(view: memoryview, base: int) -> Iterator[BatchFrame | CorruptBatch]:
    """Yield all batches in order, and an error for each stretch of other bytes, also for a cut-off end."""
    position, next_offset = 0, base
    while position < len(view):
        try:
            frame = _batch_at(view, position, next_offset, base)
        except CorruptBatch as error:
            yield error
            position = _next_batch(view, position + 1, next_offset, base)
            continue
        yield frame
        position += frame.length
        next_offset = frame.base_offset + frame.last_offset_delta + 1


def _batch_at(view: memoryview, position: int, next_offset: int, base: int) -> BatchFrame:
    frame = frame_at(view, position)
    if frame is None:
        left = len(view) - position
        raise CorruptBatch(position, f"the file ends within a batch, {left:,} bytes after its beginning")
    if frame.base_offset < next_offset:
        raise CorruptBatch(position, f"it begins at offset {frame.base_offset:,} after {next_offset - 1:,}")
    if frame.base_offset - base >= OFFSET_SPAN:
        raise CorruptBatch(position, f"offset {frame.base_offset:,} is too far from the segment's base")
    return frame


def _next_batch(view: memoryview, position: int, next_offset: int, base: int) -> int:
    """Return the position of the next whole batch from `next_offset` on, or the end of `view`."""
    whole = view.obj
    assert isinstance(whole, mmap.mmap)
    magic = bytes([CURRENT_MAGIC])
    while (at := whole.find(magic, position + MAGIC_AT)) >= 0:
        position = at - MAGIC_AT
        if len(view) - position < BATCH_HEADER_BYTES:
            break
        try:
            _batch_at(view, position, next_offset, base)
        except CorruptBatch:
            position += 1
        else:
            return position
    return len(view)


def inspect(path: Path, *, is_last: bool, seen: Seen | None = None, epochs: Epochs = ()) -> Segment:
    """Read a whole segment and its indexes, and return the segment with its findings.

    `is_last`: the segment is the partition's last one. `seen`: called with the number of bytes read since
    its last call. `epochs`: the partition's leader epochs. Raises OSError; ValueError if the file's name is
    not the name of a segment.
    """
    base = parse_segment(path.name)
    if base is None:
        raise ValueError(f"{path} is not named as a segment")
    offsets = _offset_entries(path, base)
    wanted = {position for _, position in offsets.entries}
    covered: dict[int, tuple[int, int]] = {}
    damaged: list[range] = []
    unreadable: list[int] = []
    reported = 0
    with mapped(path, unreadable) as view:
        segment = Segment(path, base, len(view), next_offset=base)
        for found in batches(view, base):
            if isinstance(found, CorruptBatch):
                old = old_magic(view[found.position :])
                if old is not None:
                    segment.old_at.append((found.position, old))
                else:
                    judged, resumes_at = _judge(segment, found, view, is_last)
                    segment.findings.append(judged)
                    damaged.append(range(found.position, resumes_at))
                continue
            last = found.base_offset + found.last_offset_delta
            segment.batches += 1
            epoch = epoch_of(epochs, last)
            if NO_EPOCH not in (epoch, found.leader_epoch) and epoch != found.leader_epoch:
                segment.odd_epochs.append((found.position, found.base_offset, epoch))
            segment.records += found.record_count
            segment.next_offset, segment.end = last + 1, found.position + found.length
            segment.max_timestamp = max(segment.max_timestamp, found.max_timestamp)
            if found.position in wanted:
                covered[found.position] = (found.base_offset, last)
            if seen is not None and segment.end - reported >= SEEN_BYTES:
                seen(segment.end - reported)
                reported = segment.end
    if seen is not None:
        seen(segment.size - reported)
    if unreadable:
        text = f"bytes that cannot be read, in {len(unreadable):,} of its pages: {os.strerror(errno.EIO)}"
        segment.findings.append(finding(Severity.DAMAGE, path, text, unreadable[0]))
    for position, magic in segment.old_at:
        text = f"messages of format v{magic}, of before Kafka 0.11, which are not read here"
        segment.findings.append(finding(Severity.DAMAGE, path, text, position))
    segment.findings += offsets.findings
    segment.findings += _check_offset_index(offsets, covered, damaged)
    segment.findings += _check_time_index(segment, base)
    return segment


def _judge(segment: Segment, error: CorruptBatch, view: memoryview, is_last: bool) -> tuple[Finding, int]:
    """Return the finding about bytes that are no batch (TORN at the end of a log), and where they end."""
    resumes_at = _next_batch(view, error.position + 1, segment.next_offset, segment.base)
    if resumes_at < len(view):
        text = f"{error.reason}; whole batches continue at byte {resumes_at:,}"
        return finding(Severity.DAMAGE, segment.path, text, error.position, segment.next_offset), resumes_at
    severity = Severity.TORN if is_last else Severity.DAMAGE
    text = f"{error.reason}; no whole batch follows in the last {len(view) - error.position:,} bytes"
    return finding(severity, segment.path, text, error.position, segment.next_offset), resumes_at


# ---- indexes


@dataclass
class _Entries:
    path: Path
    entries: list[tuple[int, int]]
    findings: list[Finding]


def _offset_entries(path: Path, base: int) -> _Entries:
    return _entries(path.with_name(segment_name(base, INDEX_SUFFIX)), base, read_offset_entries)


def _entries(path: Path, base: int, read: Callable[[Path, int], list[tuple[int, int]]]) -> _Entries:
    try:
        return _Entries(path, read(path, base), [])
    except FileNotFoundError:
        return _Entries(path, [], [finding(Severity.DERIVED, path, "it is missing")])


def _check_offset_index(
    index: _Entries, covered: dict[int, tuple[int, int]], damaged: Sequence[range]
) -> Iterator[Finding]:
    """Check an offset index against the batches, except in damaged ranges. Yield at most one finding."""
    before = (-1, -1)
    for number, (offset, position) in enumerate(index.entries):
        if offset <= before[0] or position <= before[1]:
            text = f"entry {number} ({offset:,} at {position:,}) is not after the one before it"
            yield finding(Severity.DERIVED, index.path, text)
            return
        before = (offset, position)
        first, last = covered.get(position, (0, -1))
        stretch = bisect(damaged, position, key=lambda one: one.start) - 1
        if stretch >= 0 and position in damaged[stretch]:
            continue
        if not first <= offset <= last:
            text = f"entry {number} has offset {offset:,} at byte {position:,} of the log, where it is not"
            yield finding(Severity.DERIVED, index.path, text)
            return


def _check_time_index(segment: Segment, base: int) -> Iterator[Finding]:
    index = _entries(segment.path.with_name(segment_name(base, TIME_INDEX_SUFFIX)), base, read_time_entries)
    yield from index.findings
    before = (-1, -1)
    for number, (timestamp, offset) in enumerate(index.entries):
        if timestamp < before[0] or offset < before[1]:
            text = f"entry {number} ({timestamp}, offset {offset:,}) is older than the one before it"
        elif offset >= segment.next_offset > segment.base:
            text = f"entry {number} has offset {offset:,}, the log ends before it"
        elif timestamp > segment.max_timestamp and segment.batches:
            text = f"entry {number} has time {timestamp}, no record of the segment is that young"
        else:
            before = (timestamp, offset)
            continue
        yield finding(Severity.DERIVED, index.path, text)
        return
