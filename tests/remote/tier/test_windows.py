"""Windows: where a segment is cut, which window an offset is in, the indexes of a window."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from mpbroker.remote.tier.windows import ByteRange, SegmentWindows, aborted_of_window
from mpbroker.storage.names import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from mpbroker.storage.transaction_index import AbortedTransaction
from tests.support.stored_segments import TieredLog, tiered_log


def windows_of(log: TieredLog, window_bytes: int, base: int = 0) -> SegmentWindows:
    end = ([one for one in log.bases if one > base] or [log.end])[0]
    size = log.path(base).stat().st_size
    offset, time = (log.path(base, suffix).read_bytes() for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX))
    return SegmentWindows(base, end, size, offset, time, window_bytes)


def spans(windows: SegmentWindows) -> list[ByteRange]:
    return [windows.byte_range(number) for number in range(len(windows))]


def test_windows_are_all_of_the_segment_in_whole_batches(tmp_path: Path) -> None:
    log = tiered_log(tmp_path)
    starts = {batch.header.position: batch.header.base_offset for batch in log.batches(0)}
    windows = windows_of(log, 1000)
    assert len(windows) > 3
    cut = spans(windows)
    assert [one.end for one in cut] == [*(one.position for one in cut[1:]), log.path(0).stat().st_size]
    assert all(one.position in starts and one.size <= 1000 for one in cut)
    # Each is as long as the entries allow.
    assert all(one.size > 1000 - 400 for one in cut[:-1])


def test_a_batch_that_is_larger_is_a_window_of_its_own(tmp_path: Path) -> None:
    log = TieredLog(tmp_path)
    for size in (10, 300, 5000, 300, 300):
        log.append([(b"k", bytes(size))])
    windows = windows_of(log, 1000)
    large = next(batch.header for batch in log.batches(0) if batch.header.length > 5000)
    assert ByteRange(large.position, large.position + large.length) in spans(windows)


@pytest.mark.parametrize(
    "entries",
    [(), ((5, 100), (4, 200)), ((5, 200), (6, 200)), ((5, 100), (0, 0)), ((5, 100), (9, 5000))],
)
def test_an_index_that_does_not_ascend_cuts_nothing(entries: tuple[tuple[int, int], ...]) -> None:
    index = b"".join(struct.pack(">ii", *entry) for entry in entries)
    windows = SegmentWindows(7, 50, 5000, index, b"", 60)
    assert spans(windows) == [ByteRange(0, 5000)]
    assert [(windows.find(offset), windows.unsure(offset)) for offset in (7, 20, 49)] == [(0, None)] * 3


def test_the_window_of_an_offset(tmp_path: Path) -> None:
    """What is not sure is what the entry leaves open: the first offset of a window's first batch."""
    log = tiered_log(tmp_path)
    windows = windows_of(log, 1000)
    batches = [batch.header for batch in log.batches(0)]
    true = {
        offset: next(n for n in range(len(windows)) if windows.byte_range(n).end > one.position)
        for one in batches
        for offset in range(one.base_offset, one.base_offset + one.last_offset_delta + 1)
    }
    unsure = {offset for offset in true if windows.unsure(offset) is not None}
    assert unsure
    # No more than the offsets of a window's first batch, but for its last one, is left open.
    firsts = {windows.byte_range(number).position for number in range(1, len(windows))}
    opening = [one for one in batches if one.position in firsts]
    assert unsure == {one.base_offset + i for one in opening for i in range(one.last_offset_delta)}
    assert {o: windows.find(o) for o in true if o not in unsure} == {
        o: true[o] for o in true if o not in unsure
    }
    for number in range(1, len(windows)):
        first = next(
            one.base_offset for one in batches if one.position == windows.byte_range(number).position
        )
        assert windows.first(number) is None
        windows.learn(number, first)
        assert windows.first(number) == first
    assert {offset: windows.find(offset) for offset in true} == true
    assert not any(windows.unsure(offset) is not None for offset in true)


def test_the_indexes_of_a_window(tmp_path: Path) -> None:
    log = tiered_log(tmp_path)
    windows = windows_of(log, 1000, base=log.bases[1])
    batches = [batch.header for batch in log.batches(log.bases[1])]
    for number in range(len(windows)):
        start, stop = windows.byte_range(number)
        inside = [one for one in batches if start <= one.position < stop]
        base, end = inside[0].base_offset, inside[-1].base_offset + 3
        by_position = {one.position - start: one for one in inside}
        entries = list(struct.iter_unpack(">ii", windows.offset_index(number, base)))
        assert len(entries) >= 2
        for relative, position in entries:
            assert base + relative == by_position[position].base_offset + 2
        times = list(struct.iter_unpack(">qi", windows.time_index(base, end)))
        assert times
        for timestamp_ms, relative in times:
            assert timestamp_ms == max(
                one.max_timestamp for one in inside if one.base_offset <= base + relative
            )


def test_the_offset_of_a_time(tmp_path: Path) -> None:
    log = tiered_log(tmp_path)
    windows = windows_of(log, 1000)
    times = {batch.header.base_offset + 2: batch.header.max_timestamp for batch in log.batches(0)}
    for timestamp_ms in (0, 1000, 1001, 1055, 1100, 1150, 9999):
        offset = windows.offset_of_time(timestamp_ms)
        assert all(time < timestamp_ms for last, time in times.items() if last <= offset)
    assert windows.offset_of_time(0) == 0
    assert windows.offset_of_time(1150) > 10


def test_aborted_transactions_of_a_window_are_those_that_may_have_records_in_it() -> None:
    entries = [
        AbortedTransaction(1, 0, 5, 3),
        AbortedTransaction(2, 3, 12, 8),
        AbortedTransaction(3, 30, 31, 8),
        AbortedTransaction(4, 8, 40, 41),
        AbortedTransaction(5, 50, 60, 61),
    ]
    indexes = entries[:2], entries[2:3], entries[3:]
    assert list(aborted_of_window(indexes, 6, 20)) == [entries[1], entries[3]]
    assert list(aborted_of_window(indexes, 0, 3)) == [entries[0]]

    def unread() -> object:
        raise AssertionError("all transactions of the window are known")

    later = (entries[4] for _ in iter(unread, None))
    assert list(aborted_of_window([entries[:4], later], 9, 20)) == [entries[1], entries[3]]
