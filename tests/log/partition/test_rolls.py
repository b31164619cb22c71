"""When a new segment is begun: each of Kafka's rules (LogSegment.shouldRoll) at its edge."""

from __future__ import annotations

import random

import pytest

from mpbroker.ipc.table import PartitionFlag
from mpbroker.storage.index import read_offset_entries, read_time_entries
from mpbroker.storage.names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, segment_name
from tests.log.append.test_altered_settings import alter
from tests.support.full_disk import files_take
from tests.support.log_rig import MakeRig
from tests.support.log_writer import T0, MakeWriter, Writer, make_batch
from tests.support.stepped_log import Broker

HOUR_MS = 3_600_000
LARGEST_DELTA = (1 << 31) - 1


def rolls(
    writer: Writer, timestamp: int = T0, *, now_ms: int = T0, length: int = 100, count: int = 1
) -> bool:
    state = writer.log.state
    due: bool = state.roll_due(state.log_end + count - 1, length, timestamp, now_ms)
    return due


def test_by_size_to_the_byte(writer: MakeWriter) -> None:
    w = writer(segment_bytes="1048576")
    assert not rolls(w, length=1048576)
    w.append(size=1000)
    left = 1048576 - w.log.state.size
    assert not rolls(w, length=left)
    assert rolls(w, length=left + 1)


def test_by_the_time_of_messages(writer: MakeWriter) -> None:
    """Check that the time between the first batch and the next one counts, whatever the clock says."""
    w = writer(segment_ms=str(HOUR_MS))
    assert not rolls(w, T0 + 9 * HOUR_MS)
    w.append(timestamp=T0)
    w.append(timestamp=T0 + HOUR_MS)
    assert not rolls(w, T0 + HOUR_MS, now_ms=T0 + 99 * HOUR_MS)
    assert rolls(w, T0 + HOUR_MS + 1)
    assert not rolls(w, T0 - 9 * HOUR_MS)
    assert not rolls(w, -1)


def test_without_times_by_the_clock(writer: MakeWriter) -> None:
    w = writer(segment_ms=str(HOUR_MS))
    fds = w.log.state.fd, *w.log.state.index_fds
    w.log.state.open_segment(0, *fds, T0)
    w.append(timestamp=-1)
    assert not rolls(w, -1, now_ms=T0 + HOUR_MS)
    assert rolls(w, -1, now_ms=T0 + HOUR_MS + 1)
    assert rolls(w, T0, now_ms=T0 + HOUR_MS + 1)


def test_jitter_makes_it_earlier(writer: MakeWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def seventh(below: int) -> int:
        asked.append(below)
        return 7

    monkeypatch.setattr(random, "randrange", seventh)
    w = writer(segment_ms="1000", segment_jitter_ms="600")
    assert asked == [600]
    w.append(timestamp=T0)
    assert not rolls(w, T0 + 993)
    assert rolls(w, T0 + 994)
    # Each segment has its own.
    w.roll()
    assert asked == [600, 600]


def test_jitter_is_less_than_the_time(writer: MakeWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "randrange", lambda below: below - 1)
    w = writer(segment_ms="1000", segment_jitter_ms="5000")
    w.append(timestamp=T0)
    assert not rolls(w, T0 + 1)
    assert rolls(w, T0 + 2)


def test_what_is_compacted_is_rolled_when_it_may_wait_no_longer(writer: MakeWriter) -> None:
    w = writer(segment_ms="1000", max_compaction_lag_ms="100", cleanup_policy="compact,delete")
    w.append(timestamp=T0)
    assert not rolls(w, T0 + 100)
    assert rolls(w, T0 + 101)


def test_what_is_not_compacted_waits(writer: MakeWriter) -> None:
    w = writer(segment_ms="1000", max_compaction_lag_ms="100")
    w.append(timestamp=T0)
    assert not rolls(w, T0 + 1000)
    assert rolls(w, T0 + 1001)


@pytest.mark.parametrize(("index_bytes", "entries"), [(47, 2), (48, 3), (60, 4), (4800, 399)])
def test_a_full_index(writer: MakeWriter, index_bytes: int, entries: int) -> None:
    """Check it with a full time index, which keeps a place for the segment's last entry."""
    w = writer(segment_index_bytes=str(index_bytes), index_interval_bytes="0")
    w.append()
    for i in range(entries):
        assert not rolls(w), i
        w.append(timestamp=T0 + 1 + i)
    assert rolls(w)
    w.append(timestamp=T0 + 9_000)
    base = segment_name(0, INDEX_SUFFIX), segment_name(0, TIME_INDEX_SUFFIX)
    assert len(read_offset_entries(w.log.directory / base[0], 0)) == entries
    times = read_time_entries(w.log.directory / base[1], 0)
    assert times[-1] == (T0 + entries, entries)


def test_a_full_offset_index(writer: MakeWriter) -> None:
    """Check it with timestamps that do not grow, so that the time index has fewer entries."""
    w = writer(segment_index_bytes="48", index_interval_bytes="0")
    for _ in range(7):
        assert not rolls(w)
        w.append(timestamp=T0)
    assert rolls(w)


def test_offsets_that_do_not_fit_behind_the_base(writer: MakeWriter) -> None:
    w = writer()
    w.append()
    w.log.state.finish_rebuilt(LARGEST_DELTA)
    assert not rolls(w)
    assert rolls(w, count=2)
    w.log.state.finish_rebuilt(LARGEST_DELTA + 1)
    assert rolls(w)


@pytest.mark.parametrize("by_reference", [False, True])
def test_an_index_that_holds_nothing(rig: MakeRig, by_reference: bool) -> None:
    """Check that each batch gets a segment, and that no empty segment is replaced."""
    b = Broker(rig(), segment_index_bytes="4")
    b.process.turn.for_tests(by_reference=by_reference)
    for i in range(4):
        (result,) = b.produce(bytes(make_batch(timestamp=T0)))
        assert (result.error, result.base_offset) == (0, i)
    log = b.log()
    assert [segment.base for segment in log.sealed] == [0, 1, 2]
    assert log.state.segment_base == 3


def test_smaller_indexes_begin_with_the_next_segment(rig: MakeRig) -> None:
    """Check that the active index keeps room for its last entry, which has the segment's age."""
    b = Broker(rig(), index_interval_bytes="0")
    for i in range(6):
        b.produce(bytes(make_batch(timestamp=T0 + i)))
    alter(b, 6, index_interval_bytes="0", segment_index_bytes="36", segment_ms="7")
    b.produce(bytes(make_batch(timestamp=T0 + 7)))
    log = b.log()
    assert not log.sealed
    b.produce(bytes(make_batch(timestamp=T0 + 8)))
    assert [segment.largest_ms for segment in log.sealed] == [T0 + 7]
    times = read_time_entries(log.directory / segment_name(0, TIME_INDEX_SUFFIX), 0)
    assert times[-1] == (T0 + 7, 6)


def test_a_full_disk_in_the_middle_of_a_snapshot_passes(rig: MakeRig) -> None:
    """Check it with many producers: a part of the snapshot still finds room."""
    b = Broker(rig(), segment_bytes="1048576")
    for producer in range(200):
        assert b.produce(make_batch(producer=(producer, 0, 0)))[0].error == 0
    large = make_batch(size=900_000)
    assert b.produce(large)[0].error == 0
    with files_take(1 << 12):
        assert b.produce(large)[0].error == 56
    assert b.rig.partition(1).flags == PartitionFlag.PARTITION_LIVE
    assert sorted(path.name for path in (b.rig.directory / "t-0").glob("*.snapshot")) == []
    assert b.produce(large)[0].base_offset == 201
