"""Positions, slices and times as handlers and Spark ask for them."""

from __future__ import annotations

import pytest

from mpbroker.log.read.reader import (
    NOTHING_FOUND,
    REMEMBERED_SEARCHES,
    Bound,
    FoundOffset,
    OffsetOutOfRange,
    PartitionReader,
    offset_of_largest_time,
    offset_of_time,
)
from mpbroker.records import record_search
from mpbroker.records.validation import at_once

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


def test_those_who_ask_for_a_time_share_one_search(writer, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Check that nothing is kept of one that all have given up."""
    monkeypatch.setattr(record_search, "BEGUN_WITH_BYTES", 10)
    monkeypatch.setattr(record_search, "SEARCHED_AT_ONCE_BYTES", 10)
    w = writer()
    w.append(100, timestamp=T0)
    reader, bound = PartitionReader(w.log.directory), bound_of(w)
    asking = [offset_of_time(lambda: reader, T0 + 99, 0, bound) for _ in range(3)]
    for one in asking:
        next(one)
    (search,) = reader._searches.values()
    asking.pop().close()
    assert list(reader._searches.values()) == [search]
    assert [at_once(one) for one in asking] == [FoundOffset(T0 + 99, 99)] * 2
    assert search.is_over
    assert next(offset_of_time(lambda: reader, T0 + 99, 0, bound), None) is None, "it is remembered"
    given_up = offset_of_time(lambda: reader, T0 + 98, 0, bound)
    next(given_up)
    given_up.close()
    assert list(reader._searches.values()) == [search]


def test_a_large_batch_is_not_read_before_its_turn(writer) -> None:  # type: ignore[no-untyped-def]
    w = writer()
    w.append(100, size=1_000, timestamp=T0)
    reader, bound = PartitionReader(w.log.directory), bound_of(w)
    for asking, expected in (
        (offset_of_time(lambda: reader, T0 + 50, 0, bound), 50),
        (offset_of_largest_time(lambda: reader, bound, 0), 99),
    ):
        before = len(reader._searches)
        next(asking)
        assert len(reader._searches) == before
        assert at_once(asking).offset == expected


def test_only_so_many_searches_are_remembered(writer) -> None:  # type: ignore[no-untyped-def]
    w = writer()
    w.append(2 * REMEMBERED_SEARCHES, timestamp=T0)
    reader, bound = PartitionReader(w.log.directory), bound_of(w)
    for i in range(2 * REMEMBERED_SEARCHES):
        assert reader.find_timestamp(T0 + i, 0, bound).offset == i
    assert len(reader._searches) == REMEMBERED_SEARCHES
