"""Finds which transactions in a partition's files are open or aborted, for read_committed.

While a broker runs, its partition table has the last stable offset. Without a broker the offset is computed
from the files: the newest producer snapshot at or below the high watermark has the transactions that were
open at its offset, and the batches after that offset have all later transactions.

Aborted transactions are in `.txnindex` files. After an unclean stop or a power cut such a file may lack its
last entries. It lacks no entry for a marker below the offset of a producer snapshot, since the broker syncs
the file before it writes a snapshot. Later markers are read from the log instead of the file.
(Kafka: ProducerStateManager, TransactionIndex; mpbroker.log.partition.producer_snapshots.)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mpbroker.reading.errors import CorruptLog
from mpbroker.reading.segments import opened, pieces, position_by_offset, windows
from mpbroker.records.aborted import AbortedRange
from mpbroker.records.markers import ABORT, COMMIT
from mpbroker.storage.checkpoints import read_whole
from mpbroker.storage.names import LOG_SUFFIX, SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX, segment_name
from mpbroker.storage.producer_state import Producers, SnapshotCorrupt
from mpbroker.storage.reader import Bound, SegmentGone
from mpbroker.storage.scan import find_offset, transaction_steps
from mpbroker.storage.segments import offsets_in, offsets_of, segments_of
from mpbroker.storage.transaction_index import (
    AbortedTransaction,
    TransactionIndexCorrupt,
    aborted_between,
    read_aborted,
)

_LISTINGS = 100
# Markers are near: a transaction is rarely longer than this.
_STEPS_BYTES = 8 << 20
_NEVER = (1 << 63) - 1
_ADVICE = (
    "Restore the file from a backup or a replica, or set the option kafka.isolation.level to "
    "read_uncommitted and get the records of aborted transactions, too"
)


class AtRest(NamedTuple):
    """The last stable offset, and the transactions that were aborted after the producer snapshot."""

    last_stable_offset: int
    aborted: tuple[AbortedRange, ...]


def at_rest(directory: Path, bases: Sequence[int], high_watermark: int) -> AtRest:
    """Compute a partition's last stable offset and aborted transactions from its files, without a broker.

    A transaction is open if its marker is at or above the high watermark. Raises SegmentGone, OSError.
    """
    begun, offset = _newest_snapshot(directory, bases, high_watermark)
    aborted = []
    for producer_id, at, marker in _steps(directory, bases, offset, high_watermark):
        if marker not in (ABORT, COMMIT):
            begun.setdefault(producer_id, at)
        else:
            first = begun.pop(producer_id, None)
            if marker == ABORT and first is not None:
                aborted.append(AbortedRange(producer_id, first, at))
    return AtRest(min([high_watermark, *begun.values()]), tuple(aborted))


def _newest_snapshot(
    directory: Path, bases: Sequence[int], high_watermark: int
) -> tuple[dict[int, int], int]:
    """Return (begun, offset) from the newest producer snapshot that is not above the high watermark.

    `begun` has the first offset of each open transaction, by producer id; `offset` is the snapshot's offset.
    If no snapshot can be read, return no open transactions and the base offset of the first segment.
    """
    offsets = offsets_of(directory, SNAPSHOT_SUFFIX)
    for offset in (one for one in reversed(offsets) if bases[0] <= one <= high_watermark):
        producers = Producers()
        try:
            producers.load(read_whole(directory / segment_name(offset, SNAPSHOT_SUFFIX)))
        except (SnapshotCorrupt, FileNotFoundError):
            continue
        return {one: first for one, _, _, first, _ in producers.entries() if first >= 0}, offset
    return {}, bases[0]


def _steps(
    directory: Path, bases: Sequence[int], offset: int, high_watermark: int
) -> Iterator[tuple[int, int, int]]:
    """Yield (producer id, base offset, marker) of the transactional batches in [offset, high_watermark).

    The marker is ABORT, COMMIT, or -1 for a batch of records. (See `transaction_steps`.)
    """
    first = max((base for base in bases if base <= offset), default=bases[0])
    for base, following in zip(bases, [*bases[1:], high_watermark], strict=True):
        if not first <= base < high_watermark:
            continue
        with opened(directory, base) as fd:
            size, start = os.fstat(fd).st_size, 0
            if base == first:
                batch = find_offset(fd, position_by_offset(directory, base, fd, offset), size, offset)
                start = size if batch is None else batch.position
            steps = transaction_steps(fd, start, size)
        # A killed swap leaves a segment together with those that it replaced.
        yield from (step for step in steps if step[1] < min(following, high_watermark))


def first_aborted_at(end: int, aborted: Iterable[AbortedRange | AbortedTransaction]) -> int:
    """Return the start of the first aborted transaction that was open at the offset `end`; `end` if none was.

    A log that was restored to `end` may have committed such a transaction otherwise than the log before.
    """
    return min([end, *(one.first_offset for one in aborted if one.first_offset < end <= one.last_offset)])


def aborted_in(directory: Path, start: int, end: int) -> list[AbortedRange]:
    """Read from `.txnindex` files the aborted transactions that can have records in [start, end).

    Call this before opening the segments. A compaction in between can only remove records of aborted
    transactions, so the result stays complete. Raises CorruptLog, SegmentGone, OSError.
    """
    for left in reversed(range(_LISTINGS)):
        try:
            return _aborted_in(directory, start, end)
        except FileNotFoundError as error:
            # Retention or the cleaner took it after it was listed.
            if not left:
                raise SegmentGone(f"{error.filename} was deleted") from error
    raise AssertionError


def _aborted_in(directory: Path, start: int, end: int) -> list[AbortedRange]:
    names = os.listdir(directory)  # noqa: PTH208
    first = max((base for base in offsets_in(names, LOG_SUFFIX) if base <= start), default=0)
    indexes = (
        _index(directory / segment_name(base, TXN_INDEX_SUFFIX))
        for base in offsets_in(names, TXN_INDEX_SUFFIX)
        if base >= first
    )
    return [
        AbortedRange(one.producer_id, one.first_offset, one.last_offset)
        for one in aborted_between(indexes, start, end)
    ]


def _index(path: Path) -> list[AbortedTransaction]:
    try:
        return read_aborted(path)
    except TransactionIndexCorrupt as error:
        raise CorruptLog(f"{error}. Cannot determine which records are committed. {_ADVICE}") from error


def check_later_markers(directory: Path, bound: Bound, offset: int, unmarked: Iterable[int]) -> None:
    """Check that no later marker aborts the records below `offset` that were read as committed.

    `unmarked` has the ids of the producers of such records that have no marker between these records and
    `offset`. The function reads each such producer's first marker in [offset, bound). An abort marker whose
    index entry begins at or above `offset` ends a later transaction (compaction removed the marker of the
    records that were read). An abort marker without such an entry aborts the records that were read, and its
    index entry was lost: the function raises CorruptLog. It also raises SegmentGone and OSError.
    """
    left = set(unmarked)
    for piece in pieces(directory, bound, offset, bound.offset) if offset < bound.offset else ():
        for position, end in windows(directory, piece, _STEPS_BYTES):
            for producer_id, at, marker in transaction_steps(piece.fd, position, end):
                if marker not in (ABORT, COMMIT) or at < offset or producer_id not in left:
                    continue
                if marker == ABORT and not any(
                    (one.producer_id, one.last_offset) == (producer_id, at) and one.first_offset >= offset
                    for one in aborted_in(directory, at, at + 1)
                ):
                    raise CorruptLog(
                        f"{directory / segment_name(piece.base)}: the marker at offset {at} aborts a "
                        f"transaction of producer {producer_id} that no {TXN_INDEX_SUFFIX} file has. Its "
                        f"records were taken for committed. {_ADVICE}"
                    )
                left.discard(producer_id)
            if not left:
                return


def check_last_index(directory: Path, bound: Bound, aborted_end: int) -> None:
    """Check that the last aborted transaction in the partition table is in its `.txnindex` file.

    `aborted_end`, from the table, is one above the last abort marker, or 0. A missing entry can be detected
    only in a segment that is never cleaned: that of `bound` or a later one. A deleted segment is no error:
    all records of the transaction were deleted, too. Raises CorruptLog, OSError.
    """
    if not bound.segment_base < aborted_end < _NEVER:
        return
    base = max((base for base in segments_of(directory) if base < aborted_end), default=None)
    if base is None:
        return
    path = directory / segment_name(base, TXN_INDEX_SUFFIX)
    try:
        is_known = any(one.last_offset == aborted_end - 1 for one in _index(path))
    except FileNotFoundError:
        is_known = False
    if not is_known:
        raise CorruptLog(
            f"{path} does not have the transaction that was aborted at offset {aborted_end - 1}: cannot "
            f"determine which records are committed. {_ADVICE}"
        )
