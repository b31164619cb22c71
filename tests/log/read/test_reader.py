"""Positions, slices and times as handlers and Spark ask for them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from mpbroker.log.compaction.cleaner import Buffers, Cleaner
from mpbroker.log.format.names import DELETED_FILE_SUFFIX
from mpbroker.log.partition.segment_swap import begin_swap, swap_in
from mpbroker.log.read.reader import (
    NOTHING_FOUND,
    Bound,
    FoundOffset,
    OffsetOutOfRange,
    PartitionReader,
    SegmentGone,
)
from tests.support.compacted_segments import Segments

# In the future, so that no producer has expired.
T0 = 4_000_000_000_000


def bound_of(w) -> Bound:  # type: ignore[no-untyped-def]
    state = w.log.state
    return Bound(state.log_end, state.segment_base, state.size)


def filled(writer):  # type: ignore[no-untyped-def]
    """Three segments; record n has the time T0 + 10 n, three records a batch."""
    w = writer(segment_bytes="1048576", index_interval_bytes="100000")
    for i in range(30):
        w.append(3, size=30_000, timestamp=T0 + 30 * i)
    assert len(PartitionReader(w.log.directory).segments()) == 3
    return w


def test_every_offset_is_found_in_its_batch(writer) -> None:  # type: ignore[no-untyped-def]
    w = filled(writer)
    reader, bound = PartitionReader(w.log.directory), bound_of(w)
    for offset in [*range(90), *reversed(range(90))]:
        found = reader.locate(offset, bound)
        assert found is not None
        assert found.base_offset == offset // 3 * 3
        assert found.last_offset == found.base_offset + 2
    assert reader.locate(90, bound) is None
    with pytest.raises(OffsetOutOfRange):
        reader.locate(91, bound)


def test_slices_keep_to_their_limits(writer) -> None:  # type: ignore[no-untyped-def]
    w = filled(writer)
    reader, bound = PartitionReader(w.log.directory), bound_of(w)
    first = reader.fetch_slice(1, 1, bound)
    assert first is not None
    assert first.length == reader.locate(0, bound).length  # type: ignore[union-attr]
    assert reader.fetch_slice(1, 1, bound, min_one_batch=False) is None
    whole = reader.fetch_slice(0, 1 << 30, bound)
    assert whole is not None
    assert whole.length == (w.log.directory / "00000000000000000000.log").stat().st_size
    assert len(reader.read(whole)) == whole.length


def test_nothing_behind_the_bound_is_seen(writer) -> None:  # type: ignore[no-untyped-def]
    w = writer()
    w.append()
    early = bound_of(w)
    w.append()
    reader = PartitionReader(w.log.directory)
    piece = reader.fetch_slice(0, 1 << 20, early)
    assert piece is not None
    assert piece.length == early.position
    assert reader.fetch_slice(1, 1 << 20, early) is None


def test_a_reader_follows_appends_and_rolls(writer) -> None:  # type: ignore[no-untyped-def]
    w = writer(segment_bytes="1048576")
    reader = PartitionReader(w.log.directory)
    for offset in range(40):
        w.append(size=100_000)
        piece = reader.fetch_slice(offset, 1 << 20, bound_of(w))
        assert piece is not None
        assert reader.read(piece)[:8] == offset.to_bytes(8, "big")


def test_offsets_by_time_are_exact(writer) -> None:  # type: ignore[no-untyped-def]
    w = filled(writer)
    reader, bound = PartitionReader(w.log.directory), bound_of(w)
    assert reader.find_timestamp(0, 0, bound) == FoundOffset(T0, 0)
    for i in range(30):
        for j in range(3):
            assert reader.find_timestamp(T0 + 30 * i + j, 0, bound) == FoundOffset(T0 + 30 * i + j, 3 * i + j)
        assert reader.find_timestamp(T0 + 30 * i + 3, 0, bound).offset == (3 * i + 3 if i < 29 else -1)
    assert reader.find_timestamp(T0, 4, bound) == FoundOffset(T0 + 31, 4)
    assert reader.find_timestamp(T0 + 10_000, 0, bound) == NOTHING_FOUND
    assert reader.max_timestamp(bound) == FoundOffset(T0 + 872, 89)


def test_the_largest_time_of_what_may_be_seen(writer) -> None:  # type: ignore[no-untyped-def]
    """Check that time index entries beyond the bound (not durable, not committed) are not used."""
    w = writer(index_interval_bytes="0")
    bounds = []
    for timestamp in (50, 10, 70, 20, 80, 30):
        w.append(timestamp=timestamp)
        bounds.append(bound_of(w))
    reader = PartitionReader(w.log.directory)
    found = [reader.max_timestamp(bound) for bound in bounds]
    assert found == [FoundOffset(*one) for one in ((50, 0), (50, 0), (70, 2), (70, 2), (80, 4), (80, 4))]
    assert reader.max_timestamp(bounds[4], 3) == FoundOffset(80, 4)
    assert reader.max_timestamp(bounds[3], 3) == FoundOffset(20, 3)


def test_times_out_of_order(writer) -> None:  # type: ignore[no-untyped-def]
    w = writer(index_interval_bytes="0")
    for timestamp in (50, 10, 70, 20, 70, 30):
        w.append(timestamp=timestamp)
    reader, bound = PartitionReader(w.log.directory), bound_of(w)
    assert reader.find_timestamp(15, 0, bound) == FoundOffset(50, 0)
    assert reader.find_timestamp(15, 1, bound) == FoundOffset(70, 2)
    assert reader.find_timestamp(60, 0, bound) == FoundOffset(70, 2)
    assert reader.find_timestamp(71, 0, bound) == NOTHING_FOUND
    assert reader.max_timestamp(bound) == FoundOffset(70, 2)
    assert PartitionReader(w.log.directory).max_timestamp(Bound(0, 0, 0)) == NOTHING_FOUND


# ---- what is remembered of a segment ends with its file ----

PER_SEGMENT = 45


def compacted(directory: Path, sizes: tuple[int, ...] = (20,)) -> Segments:
    """Twelve sealed segments and an active one, of one-record batches; the cleaner takes the first 20."""
    log = Segments(directory)
    for number in range(12):
        for i in range(PER_SEGMENT):
            is_often = i == 0 if number else i < 20
            key = b"often" if is_often else b"%d" % log.end
            log.append([(key, bytes(sizes[log.end % len(sizes)]))])
        log.roll()
    log.append([(b"last", b"")])
    return log


def clean(log: Segments) -> None:
    """Compact each segment by itself, and put the new ones in place as a log worker does."""
    size = log.path(0).stat().st_size
    cleaner = Cleaner(log.task(segment_bytes=size), Buffers())
    fd = os.open(log.directory, os.O_RDONLY)
    for new in cleaner.run():
        begin_swap(fd, new.bases[0])
        swap_in(fd, new.bases)
        log.bases = [base for base in log.bases if base not in new.bases[1:]]
    os.close(fd)
    for path in log.directory.glob(f"*{DELETED_FILE_SUFFIX}"):
        path.unlink()
    log.clean_up_to = cleaner.end


def end_of(log: Segments) -> Bound:
    return Bound(log.end, log.bases[-1], log.path(log.bases[-1]).stat().st_size)


def first_at(reader: PartitionReader, offset: int, bound: Bound) -> int:
    """Return the base offset of the first batch that a fetch gets, which tries as often as a handler does."""
    for _ in range(3):
        with suppress(SegmentGone):
            piece = reader.fetch_slice(offset, 1, bound)
            assert piece is not None
            return int.from_bytes(reader.read(piece)[:8], "big")
    pytest.fail(f"no try gets on at offset {offset}")


@pytest.mark.parametrize("sizes", [(20,), (20, 300, 7, 90)], ids=["equal", "unequal"])
def test_a_position_in_a_file_that_was_compacted_is_not_used(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """Check a slow consumer whose segment's file was closed for others before it was compacted."""
    log = compacted(tmp_path, sizes)
    reader, bound = PartitionReader(tmp_path), end_of(log)
    for offset in range(22):
        assert first_at(reader, offset, bound) == offset
    for number in range(1, 7):
        assert first_at(reader, number * PER_SEGMENT, bound) == number * PER_SEGMENT
    clean(log)
    assert first_at(reader, 22, end_of(log)) == 22
    assert first_at(reader, 0, end_of(log)) == 20
    reader.close()


@pytest.mark.parametrize("is_compacted", [False, True], ids=["deleted", "merged"])
def test_a_consumer_at_a_segments_first_offset_does_without_the_segment_before(
    tmp_path: Path, is_compacted: bool
) -> None:
    """Check it when retention, DeleteRecords or compaction took the segment that the consumer has read."""
    log = compacted(tmp_path)
    reader, bound = PartitionReader(tmp_path), end_of(log)
    for offset in range(2 * PER_SEGMENT):
        assert first_at(reader, offset, bound) == offset
    for number in range(2, 7):
        assert first_at(reader, number * PER_SEGMENT, bound) == number * PER_SEGMENT
    if is_compacted:
        log.clean()
        bound = end_of(log)
    else:
        log.path(PER_SEGMENT).unlink()
        log.path(0).unlink()
    assert first_at(reader, 2 * PER_SEGMENT, bound) == 2 * PER_SEGMENT + is_compacted
    reader.close()
