"""Rates, percentiles and lags, of samples that are made here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from mpbroker.ipc.meters import ApiHistogram, TopicMeter
from mpbroker.metrics.snapshot import NOTHING, NS, ApiCounts, Distribution
from mpbroker.observe.model import HISTORY, Model, Row, Summary
from mpbroker.observe.samples import BrokerSeen, Groups, GroupSeen, Health, PartitionSeen, ProcessSeen, Sample
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from tests.support.snapshots import counted, counts, spread

PID = 100
MS = 1_000_000


def sample(seconds: float, pid: int = PID, **parts: Any) -> Sample:
    parts.setdefault("counts", counts(seconds))
    return Sample(int(seconds * NS), BrokerSeen(Health.RUNNING, pid=pid), **parts)


def api(total: int, times_ms: dict[float, int], request_bytes: int = 0) -> ApiCounts:
    """Counts of an API: so many requests took so many milliseconds in all."""
    histograms = [NOTHING] * ApiHistogram.API_HISTOGRAMS
    histograms[ApiHistogram.TOTAL_NS] = spread({int(ms * MS): number for ms, number in times_ms.items()})
    histograms[ApiHistogram.REQUEST_BYTES] = Distribution(NOTHING.buckets, request_bytes, request_bytes)
    return ApiCounts({9: total}, histograms)


def row(rows: Iterable[Row], **wanted: Any) -> Row:
    (found,) = [one for one in rows if all(one[key] == value for key, value in wanted.items())]
    return found


def test_one_look_has_no_rates() -> None:
    model = Model()
    model.add(sample(1, processes=(ProcessSeen("log 0", 7, "running", 0, cpu_s=3.0),)))
    assert model.summary == Summary()
    assert row(model.process_rows(), name="log 0")["cpu_percent"] is None


def test_what_comes_in_between_two_looks_is_told_by_the_second() -> None:
    model = Model()
    before = [0] * TopicMeter.TOPIC_METERS
    after = list(before)
    after[TopicMeter.MESSAGES_IN], after[TopicMeter.BYTES_IN], after[TopicMeter.BYTES_OUT] = 500, 4000, 1000
    model.add(sample(10, counts=counts(10, all_topics=before)))
    model.add(sample(12, counts=counts(12, all_topics=after)))
    assert model.summary.messages_in_per_s == 250
    assert model.summary.bytes_in_per_s == 2000
    assert model.summary.bytes_out_per_s == 500
    assert list(model.history["bytes_in_per_s"]) == [0, 2000]


def test_a_restarted_broker_does_not_count_backwards() -> None:
    many = [10**9] * TopicMeter.TOPIC_METERS
    model = Model()
    model.add(sample(10, counts=counts(10, all_topics=many)))
    model.add(sample(11, pid=PID + 1))
    assert model.summary.bytes_in_per_s is None
    model.add(sample(12, pid=PID + 1))
    assert model.summary.bytes_in_per_s == 0


def test_cpu_is_that_of_one_process_and_its_successor_begins_anew() -> None:
    model = Model()

    def seen(pid: int, cpu_s: float) -> tuple[ProcessSeen, ...]:
        return (ProcessSeen("handler 0", pid, "running", 0, cpu_s, pss_bytes=1000),)

    model.add(sample(1, processes=seen(7, 5.0)))
    model.add(sample(3, processes=seen(7, 6.5)))
    assert row(model.process_rows(), name="handler 0")["cpu_percent"] == pytest.approx(75)
    assert model.summary.cpu_percent == pytest.approx(75)
    assert model.summary.pss_bytes == 1000
    model.add(sample(4, processes=seen(8, 0.1)))
    assert row(model.process_rows(), name="handler 0")["cpu_percent"] is None


def test_percentiles_are_of_the_last_seconds() -> None:
    model = Model()

    def produce(total: int, times_ms: dict[float, int]) -> dict[int, ApiCounts]:
        return {int(ApiKey.PRODUCE): api(total, times_ms, request_bytes=100 * total)}

    model.add(sample(0, counts=counts(0, apis=produce(1000, {400: 1000}))))
    model.add(sample(1, counts=counts(1, apis=produce(1100, {400: 1000, 2: 100}))))
    found = row(model.request_rows(), api="Produce")
    assert found["requests_per_s"] == 100
    assert found["bytes_per_s"] == 10_000
    assert found["total"] == 1100
    # A bucket is an eighth of its value wide; the slow ones were before.
    assert found["p50_ms"] == found["p99_ms"] == pytest.approx(2, rel=0.13)
    assert model.summary.produce_p99_ms == found["p99_ms"]
    # When nothing came within the window there is nothing to tell.
    for second in range(2, 14):
        model.add(sample(second, counts=counts(second, apis=produce(1100, {400: 1000, 2: 100}))))
    found = row(model.request_rows(), api="Produce")
    assert (found["requests_per_s"], found["p99_ms"]) == (0, None)


def test_errors_count_and_fetches_count_once() -> None:
    model = Model()
    fetches = {int(ApiKey.FETCH): api(10, {1: 10})}
    model.add(sample(0, counts=counts(0, apis=fetches)))
    codes = {int(ErrorCode.NONE): 100, int(ErrorCode.OFFSET_OUT_OF_RANGE): 6}
    model.add(sample(2, counts=counts(2, apis=fetches, errors={int(ApiKey.FETCH): codes})))
    (found,) = model.request_rows()
    assert found["api"] == "Fetch"
    assert found["errors_per_s"] == 3


def test_rings_and_arenas_of_processes_that_have_them() -> None:
    counters = counted(
        processor_0={"STARTED_NS": 1, "ARENA_BYTES": 25, "ARENA_LIMIT_BYTES": 100, "QUEUED_REQUESTS": 3},
        log_0={"STARTED_NS": 1, "PRODUCES_DELAYED": 4, "RING_FULL": 2},
        acceptor={"STARTED_NS": 1},
    )
    model = Model()
    model.add(sample(0, counts=counts(0, counters=counters)))
    rows = list(model.memory_rows())
    assert [one["name"] for one in rows] == ["log 0", "processor 0"]
    processor, log = row(rows, name="processor 0"), row(rows, name="log 0")
    assert (processor["arena_percent"], processor["queued"], processor["waiting"]) == (25, 3, None)
    assert (log["arena_percent"], log["queued"], log["waiting"], log["ring_full"]) == (None, None, 4, 2)


def test_partitions_grow_and_new_ones_have_no_rate_yet() -> None:
    def seen(*ends: int) -> tuple[PartitionSeen, ...]:
        return tuple(PartitionSeen("t", number, 0, end, end) for number, end in enumerate(ends))

    model = Model()
    model.add(sample(0, partitions=seen(10)))
    model.add(sample(2, partitions=seen(30, 5)))
    rows = list(model.partition_rows())
    assert [one["records_per_s"] for one in rows] == [10, None]
    assert [one["log_end_offset"] for one in rows] == [30, 5]
    model.add(sample(3, partitions=seen(30, 6)))
    assert [one["trend"] for one in model.partition_rows()] == [[10, 0], [1]]


def test_partitions_take_bytes_across_segments() -> None:
    def seen(end: int, segment: int, position: int) -> tuple[PartitionSeen, ...]:
        return (PartitionSeen("t", 0, 0, end, end, high_watermark_at=(segment, position)),)

    model = Model()
    rates = []
    for second, partitions in (
        (0, seen(100, 0, 1000)),
        (2, seen(120, 0, 1200)),
        # Of ten bytes each, 30 until the roll and 50 behind it.
        (4, seen(200, 150, 500)),
        (5, seen(200, 200, 0)),
    ):
        model.add(sample(second, partitions=partitions))
        rates += [one["bytes_per_s"] for one in model.partition_rows()]
    assert rates == [None, 100, 400, 0]
    model.add(sample(6, partitions=(PartitionSeen("t", 0, 0, 200, 200),)))
    assert [one["bytes_per_s"] for one in model.partition_rows()] == [None], "it does not run"


def test_lag_is_what_groups_have_not_committed_below_the_high_watermark() -> None:
    model = Model()
    model.add(sample(0, partitions=(PartitionSeen("t", 0, 0, 120, 100), PartitionSeen("t", 1, 0, 50, 50))))
    committed = {("t", 0): 90, ("t", 1): 60, ("gone", 0): 5}
    model.add_groups(
        Groups(
            0,
            (
                GroupSeen("g", "Stable", 2, committed),
                GroupSeen("new", "Stable", 1, {}, frozenset({("t", 0)})),
                GroupSeen("half", "Stable", 1, {("t", 0): 70}, frozenset({("t", 0), ("t", 1)})),
                GroupSeen("away", "Empty", 0, {("t", 0): 70}),
            ),
        )
    )
    rows = list(model.group_rows())
    # Behind the end is no lag: the end is of a moment before.
    assert row(rows, group="g")["lag"] == 10
    new, half = row(rows, group="new"), row(rows, group="half")
    assert (new["lag"], new["partitions"], new["uncommitted"], new["topics"]) == (None, 2, 2, "t")
    # Whether a member has the partition or nobody has: nothing is committed of it.
    for one in (half, row(rows, group="away")):
        assert (one["lag"], one["partitions"], one["uncommitted"]) == (30, 2, 1)
    assert model.committed_of("half") == [("t", 0, 70, 100), ("t", 1, None, 50)]
    assert model.committed_of("g") == [("t", 0, 90, 100), ("t", 1, 60, 50)]
    model.add_groups(Groups(2 * NS, (GroupSeen("g", "Stable", 2, {**committed, ("t", 0): 98}),)))
    found = row(model.group_rows(), group="g")
    assert (found["lag"], found["committed_per_s"], found["trend"]) == (2, 4, [10, 2])


def test_groups_that_cannot_be_asked_for_stay_as_they_were() -> None:
    model = Model()
    model.add(sample(0))
    model.add_groups(Groups(0, (GroupSeen("g", "Empty", 0, {}),)))
    model.add_groups(Groups(1, problem="nobody answers"))
    assert [one["group"] for one in model.group_rows()] == ["g"]
    assert model.groups is not None
    assert model.groups.problem == "nobody answers"


def test_what_is_kept_is_bounded() -> None:
    model = Model()
    for second in range(HISTORY + 20):
        model.add(sample(second))
    assert len(model.history["cpu_percent"]) == HISTORY
    assert len(model.window) <= 11
