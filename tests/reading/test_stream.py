"""What a streaming query reads next, by a follower that says what the test tells it to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from mpbroker.reading.errors import DataLoss, OptionError, SourceUnavailable
from mpbroker.reading.follow import Bounds
from mpbroker.reading.options import TopicPartition, parse_options
from mpbroker.reading.plan import OffsetRange, PartitionBounds, RestoreHistory, TaskRange
from mpbroker.reading.stream import IDLE_WAIT_S, QUIET_AFTER_S, QUIET_WAIT_S, TRY_S, Stream

OLD, NEW = b"o" * 16, b"n" * 16
BYTES_EACH = 10


@dataclass
class Time:
    """Passes when somebody sleeps."""

    now: float = 1000.0
    slept: list[float] = field(default_factory=list)
    while_asleep: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float, /) -> None:
        self.now += seconds
        self.slept.append(seconds)
        self.while_asleep()


@dataclass
class Topics:
    """A follower and its catalog: bounds by partition, or an error."""

    time: Time
    found: dict[TopicPartition, PartitionBounds] = field(default_factory=dict)
    error: SourceUnavailable | None = None
    # What it says of bytes until somebody looks again.
    stale: SourceUnavailable | None = None
    is_at_rest: bool = False
    restore_history: RestoreHistory | None = None
    looks: int = 0

    @property
    def catalog(self) -> Any:
        return self

    def poll(self) -> Bounds:
        self.looks += 1
        if self.error is not None:
            raise self.error
        self.stale = None
        return dict(self.found)

    def wait(self, timeout_s: float) -> None:
        self.time.sleep(timeout_s)

    def close(self) -> None:
        self.found.clear()

    def put(
        self, end: int, *, topic: str = "t", partition: int = 0, start: int = 0, topic_id: bytes | None = OLD
    ) -> None:
        self.found[topic, partition] = PartitionBounds(start, end, topic_id)

    def offsets_for_times(self, wanted: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        return {one: at if at < self.found[one].end else None for one, at in wanted.items()}

    def weight(self, wanted: OffsetRange) -> int:
        if self.stale is not None:
            raise self.stale
        return BYTES_EACH * (wanted.end - wanted.start)

    def tasks(self, wanted: OffsetRange, parts: int, max_records: int | None) -> list[TaskRange]:
        assert (parts, max_records) == (1, None)
        return [TaskRange(*wanted.topic_partition, wanted.start, wanted.end)]


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def topics(time: Time) -> Topics:
    found = Topics(time)
    found.put(100)
    return found


def stream(topics: Topics, **options: str) -> Stream:
    given = {"subscribePattern": ".*", "log.dir": "/logs", "startingOffsets": "earliest", **options}
    return Stream(parse_options(given, streaming=True), open_follower=lambda: topics, clock=topics.time)


def planned(run: Stream, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[tuple[str, int, int, int]]:
    return [(one.topic, one.partition, one.start, one.end) for one in run.plan(start, end)]


def at(offset: int, topic_id: bytes = OLD) -> dict[str, dict[str, int]]:
    """Offsets of t-0 as Spark has them."""
    ids = {OLD: "t#b29vb29vb29vb29vb29vbw", NEW: "t#bm5ubm5ubm5ubm5ubm5ubg"}
    return {"t": {"0": offset}, ids[topic_id]: {}}


def test_from_the_earliest_on(topics: Topics) -> None:
    topics.put(100, start=7)
    run = stream(topics)
    start = run.initial()
    assert start == at(7)
    end = run.next_end(start)
    assert (end, planned(run, start, end)) == (at(100), [("t", 0, 7, 100)])
    topics.put(130)
    assert planned(run, end, run.next_end(end)) == [("t", 0, 100, 130)]
    assert run.latest() == at(130)


def test_a_start_beyond_the_end_is_data_loss(topics: Topics) -> None:
    beyond = {"subscribePattern": "^t$", "startingOffsets": '{"t":{"0":101}}'}
    with pytest.raises(DataLoss, match="Cannot read up to offset 101 of t-0: its last stable offset is 100"):
        stream(topics, **beyond).initial()
    run = stream(topics, **beyond, failOnDataLoss="false")
    assert run.initial() == at(100)
    topics.put(130)
    assert planned(run, at(100), run.next_end(at(100))) == [("t", 0, 100, 130)]


@pytest.mark.parametrize(
    "starting",
    [
        {"startingOffsets": "latest"},
        {"startingTimestamp": "100", "startingOffsetsByTimestampStrategy": "latest"},
    ],
)
def test_the_first_batch_keeps_a_start_that_moves(topics: Topics, starting: dict[str, str]) -> None:
    """A query that dies in its first batch asks for the start again: the checkpoint must know the first."""
    run = stream(topics, **starting)
    start = run.initial()
    topics.put(150)
    assert run.initial() == start == at(100)
    kept = run.next_end(start)
    assert kept == start
    assert planned(run, start, kept) == []

    again = stream(topics, **starting)
    later = again.initial()
    assert planned(again, later, kept) == [], "as Spark plans it anew"
    assert planned(again, kept, again.next_end(kept)) == [("t", 0, 100, 150)]


def test_the_first_batch_after_a_crash_when_the_log_was_cut(topics: Topics) -> None:
    topics.put(100, start=80)
    run = stream(topics)
    assert run.initial() == at(80)
    assert planned(run, run.initial(), at(60)) == []


def test_nothing_new_is_the_start_again_after_a_short_wait(topics: Topics, time: Time) -> None:
    run = stream(topics)
    assert run.next_end(at(100)) == at(100)
    assert time.now == pytest.approx(1000 + IDLE_WAIT_S)
    time.while_asleep = lambda: topics.put(101)
    assert run.next_end(at(100)) == at(101)


def test_after_a_while_of_quiet_waits_are_longer_until_something_comes(topics: Topics, time: Time) -> None:
    def waited() -> float:
        begun = time.now
        assert run.next_end(at(100)) == at(100)
        return time.now - begun

    run = stream(topics)
    assert waited() == pytest.approx(IDLE_WAIT_S)
    time.now += QUIET_AFTER_S
    assert waited() == pytest.approx(QUIET_WAIT_S)
    time.while_asleep = lambda: topics.put(101)
    assert run.next_end(at(100)) == at(101)
    time.while_asleep = lambda: None
    topics.put(100)
    assert waited() == pytest.approx(IDLE_WAIT_S)


def test_a_checkpoint_of_the_kafka_source_gets_ids(topics: Topics) -> None:
    run = stream(topics)
    assert run.next_end({"t": {"0": 40}}) == at(100)
    assert planned(run, {"t": {"0": 40}}, at(100)) == [("t", 0, 40, 100)]
    assert planned(run, {"t": {"0": 40}}, {"t": {"0": 50}}) == [("t", 0, 40, 50)]


def test_new_partitions_and_topics_begin_at_their_earliest(topics: Topics) -> None:
    run = stream(topics)
    topics.put(5, partition=1)
    topics.put(7, topic="a")
    end = run.next_end(at(100))
    assert planned(run, at(100), end) == [("a", 0, 0, 7), ("t", 1, 0, 5)]
    topics.put(9, partition=2, start=3)
    more = run.next_end(end)
    with pytest.raises(DataLoss, match="Added partition t-2 starts from 3 instead of 0"):
        run.plan(end, more)
    lenient = stream(topics, failOnDataLoss="false")
    assert planned(lenient, end, more) == [("t", 2, 3, 9)]


def test_limits(topics: Topics, time: Time) -> None:
    topics.put(300, partition=1)
    run = stream(topics, maxOffsetsPerTrigger="40")
    start = run.initial()
    end = run.next_end(start)
    assert end["t"] == {"0": 10, "1": 30}
    assert run.next_end(start, everything=True)["t"] == {"0": 100, "1": 300}
    by_bytes = stream(topics, maxBytesPerTrigger=str(40 * BYTES_EACH))
    assert by_bytes.next_end(start)["t"] == {"0": 10, "1": 30}

    patient = stream(topics, minOffsetsPerTrigger="500", maxTriggerDelay="10s")
    first = patient.next_end(start)
    assert first["t"] == {"0": 100, "1": 300}, "the first batch does not wait"
    topics.put(110)
    assert patient.next_end(first) == first
    time.now += 10
    assert patient.next_end(first)["t"] == {"0": 110, "1": 300}


def test_what_is_available_now_stays_what_it_was(topics: Topics) -> None:
    run = stream(topics, maxOffsetsPerTrigger="60", minOffsetsPerTrigger="50", maxTriggerDelay="1h")
    run.prepare_available_now()
    start = run.initial()
    ends = [run.next_end(start)]
    topics.put(1000)
    topics.put(9, topic="late")
    while len(ends) < 2 or ends[-1] != ends[-2]:
        ends.append(run.next_end(ends[-1]))
    assert ends == [at(60), at(100), at(100)]


def test_a_topic_made_anew_is_data_loss(topics: Topics) -> None:
    """Also when the new one has more records: offsets alone would not tell."""
    run = stream(topics)
    topics.put(500, topic_id=NEW)
    end = run.next_end(at(100))
    assert end == at(500, NEW)
    with pytest.raises(DataLoss, match="Topic t was deleted and recreated: t-0 was read up to 100"):
        run.plan(at(100), end)
    lenient = stream(topics, failOnDataLoss="false")
    assert planned(lenient, at(100), end) == [("t", 0, 0, 500)]
    topics.put(20, topic_id=b"x" * 16)
    with pytest.raises(DataLoss, match="Cannot read offsets 100 to 499 of t-0: the topic was deleted"):
        stream(topics).plan(at(100, NEW), end)


def test_a_topic_that_went_away(topics: Topics, time: Time) -> None:
    topics.put(5, topic="a")
    run = stream(topics, **{"fetchOffset.numRetries": "2"})
    both = run.next_end({"t": {"0": 40}})
    del topics.found["t", 0]
    rest = run.next_end(both)
    assert "t" not in rest
    assert time.slept[-2:] == [1.0, 1.0], "it was looked for again"
    with pytest.raises(DataLoss, match="t-0 was deleted after offset 100"):
        run.plan(both, rest)
    assert planned(stream(topics, failOnDataLoss="false"), both, rest) == []


def test_an_end_that_goes_back_is_looked_at_twice(topics: Topics, time: Time) -> None:
    run = stream(topics)
    topics.put(60)
    time.while_asleep = lambda: topics.put(120)
    assert run.next_end(at(100)) == at(120)
    time.while_asleep = lambda: None
    topics.put(60)
    assert run.next_end(at(120)) == at(60)
    with pytest.raises(DataLoss, match="The offset of t-0 was changed from 120 to 60"):
        run.plan(at(120), at(60))
    assert planned(stream(topics, failOnDataLoss="false"), at(120), at(60)) == []


def test_records_that_were_deleted_first(topics: Topics) -> None:
    topics.put(100, start=30)
    with pytest.raises(DataLoss, match="Cannot read offsets 10 to 29 of t-0: its log starts at 30"):
        stream(topics).plan(at(10), at(50))
    lenient = stream(topics, failOnDataLoss="false")
    assert planned(lenient, at(10), at(50)) == [("t", 0, 30, 50)]
    assert planned(lenient, at(10), at(20)) == []


def test_a_broker_that_is_away_stops_nothing_at_once(topics: Topics, time: Time) -> None:
    run = stream(topics)
    assert run.next_end(at(90)) == at(100)
    topics.error = SourceUnavailable("nobody answers")
    assert run.next_end(at(100)) == at(100)
    assert planned(run, at(90), at(100)) == [("t", 0, 90, 100)], "what was planned needs no broker"
    time.now += 3 * TRY_S - 1
    assert run.next_end(at(100)) == at(100)
    topics.error = None
    topics.put(101)
    assert run.next_end(at(100)) == at(101), "patience begins anew"
    topics.error = SourceUnavailable("nobody answers")
    assert run.next_end(at(101)) == at(101)
    time.now += 3 * TRY_S
    with pytest.raises(SourceUnavailable, match="nobody answers"):
        run.next_end(at(101))


def test_a_partition_that_moves_while_it_is_planned_is_looked_for_again(topics: Topics) -> None:
    run = stream(topics, maxBytesPerTrigger=str(20 * BYTES_EACH))
    assert run.next_end(at(0)) == at(20)
    topics.stale = SourceUnavailable("it was deleted")
    assert planned(run, at(0), at(20)) == [("t", 0, 0, 20)]
    run.prepare_available_now()
    assert run.next_end(at(20)) == at(40)
    topics.stale = SourceUnavailable("it was deleted")
    assert run.next_end(at(40)) == at(60)


def test_what_is_available_now_is_waited_for(topics: Topics, time: Time) -> None:
    """Without an answer the run would end as if all had been read."""
    run = stream(topics)
    run.prepare_available_now()
    topics.error = SourceUnavailable("nobody answers")

    def answer() -> None:
        if len(time.slept) > 5:
            topics.error = None

    time.while_asleep = answer
    assert run.next_end(at(90)) == at(100)


def test_a_checkpoint_of_the_broker_behind_that_of_the_query(topics: Topics) -> None:
    """After a crash: what was acknowledged, and read, is still there, but only a broker can say so."""
    topics.put(60)
    topics.is_at_rest = True
    run = stream(topics)
    assert run.next_end(at(100)) == at(100)
    with pytest.raises(SourceUnavailable, match="Start the broker"):
        run.plan(at(80), at(100))
    topics.put(140)
    topics.is_at_rest = False
    assert planned(run, at(80), at(100)) == [("t", 0, 80, 100)]


def test_a_start_that_cannot_be(topics: Topics) -> None:
    topics.error = SourceUnavailable("no such topic")
    with pytest.raises(SourceUnavailable, match="no such topic"):
        stream(topics).initial()
    assert topics.looks == 4, "fetchOffset.numRetries"
    with pytest.raises(OptionError, match="written by another source"):
        stream(topics).next_end({"file": 1})


def test_whoever_watches_lags_is_told(topics: Topics) -> None:
    told: list[tuple[Mapping[TopicPartition, int], bool]] = []

    class Group:
        def reached(self, offsets: Mapping[TopicPartition, int], *, is_last: bool = False) -> None:
            told.append((offsets, is_last))

    options = parse_options({"subscribe": "t", "log.dir": "/logs"}, streaming=True)
    run = Stream(options, open_follower=lambda: topics, clock=topics.time, progress=Group())
    run.next_end(at(90))
    run.committed(at(95))
    run.prepare_available_now()
    run.next_end(at(95))
    run.next_end(at(100))
    assert told == [
        ({("t", 0): 90}, False),
        ({("t", 0): 95}, False),
        ({("t", 0): 95}, False),
        ({("t", 0): 100}, True),
    ]
