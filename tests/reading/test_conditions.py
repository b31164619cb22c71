"""A pruned plan gives what the query wants: the same rows as evaluating its conditions on all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from hypothesis import given, settings
from hypothesis import strategies as st

from mpbroker.reading.catalogs import open_catalog
from mpbroker.reading.conditions import Condition, Operator, pruning_of
from mpbroker.reading.options import parse_options
from mpbroker.reading.plan import TaskRange, plan
from mpbroker.records.record import NewRecord
from ops.bench.brokers import Broker
from tests.support.forms import rounds
from tests.support.polling import PATIENCE_S
from tests.support.reading_rows import rows_of
from tests.support.real_brokers import create_topic
from tests.support.spark_logs import PartitionWriter, checkpoint, new_log_dir

AT = 1_700_000_000_000
TIMES = range(40)
OFFSETS = st.sampled_from([None, -5, 0, 1, 7, 8, 20, 33, 60, 1 << 40])
NUMBERS = st.sampled_from([None, -1, 0, 1, 2])
NAMES = st.sampled_from([None, "", "alpha", "beta", "Alpha", "al", "a"])


def instant(step: float | None) -> datetime | None:
    """Return the moment so many milliseconds after AT."""
    return None if step is None else datetime.fromtimestamp(AT // 1000, UTC) + timedelta(milliseconds=step)


INSTANTS = st.sampled_from([None, -1, 0, 3, 3.5, 12, 20, 39, 40, 1000]).map(instant) | st.just(
    datetime(1969, 12, 31, tzinfo=UTC)
)
COMPARISONS: list[Operator] = ["=", "<=>", "<", "<=", ">", ">="]


def conditions_on(
    column: str, values: st.SearchStrategy[Any], *more: Operator
) -> st.SearchStrategy[Condition]:
    compared = st.builds(
        Condition, st.just(column), st.sampled_from([*COMPARISONS, *more]), values, st.booleans()
    )
    listed = st.builds(
        Condition, st.just(column), st.just("in"), st.lists(values, max_size=3).map(tuple), st.booleans()
    )
    null = st.builds(Condition, st.just(column), st.just("null"), st.none(), st.booleans())
    return compared | listed | null


CONDITIONS = st.lists(
    conditions_on("topic", NAMES, "starts", "ends", "contains")
    | conditions_on("partition", NUMBERS)
    | conditions_on("offset", OFFSETS)
    | conditions_on("timestamp", INSTANTS)
    | st.just(Condition("key", "=", b"k1")),
    max_size=4,
)
BATCHES = st.lists(
    st.tuples(
        # Times of the records; that of the append, if the broker gave it; a gap; a roll.
        st.lists(st.sampled_from(TIMES), min_size=1, max_size=8),
        st.none() | st.sampled_from(TIMES),
        st.sampled_from([0, 0, 3]),
        st.sampled_from([False, False, True]),
    ),
    max_size=8,
)


def fulfils(row: dict[str, Any], condition: Condition) -> bool:
    """What SQL says, written down once more and in other words than those of the product."""
    value, other = row[condition.column], condition.value
    answer: bool | None
    if condition.operator == "null":
        answer = value is None
    elif condition.operator == "<=>":
        answer = value == other
    elif condition.operator == "in":
        answers = [None if one is None else value == one for one in other]
        answer = True if True in answers else None if None in answers else False
    elif other is None:
        answer = None
    else:
        tests: dict[str, Callable[[], bool]] = {
            "=": lambda: value == other,
            "<": lambda: value < other,
            "<=": lambda: value <= other,
            ">": lambda: value > other,
            ">=": lambda: value >= other,
            "starts": lambda: value[: len(other)] == other,
            "ends": lambda: not other or value[-len(other) :] == other,
            "contains": lambda: value.find(other) >= 0,
        }
        answer = tests[condition.operator]()
    return answer is not None and answer is not condition.negated


def check(where: dict[str, str], conditions: Sequence[Condition]) -> list[TaskRange]:
    """Reads with and without the conditions in the plan; the tasks of the pruned one."""
    options = parse_options(where)
    pruning, exact = pruning_of(conditions)
    with closing(open_catalog(options)) as catalog:
        everything, tasks = plan(catalog, options), plan(catalog, options, pruning)
    wanted = [row for row in rows_of(everything, options) if all(fulfils(row, one) for one in conditions)]
    left = [one for one, decided in zip(conditions, exact, strict=True) if not decided]
    assert [row for row in rows_of(tasks, options) if all(fulfils(row, one) for one in left)] == wanted
    return tasks


@settings(deadline=None, max_examples=rounds(50))
@given(logs=st.lists(BATCHES, min_size=3, max_size=3), conditions=CONDITIONS, start=st.integers(0, 12))
def test_any_conditions_on_any_log(
    logs: list[list[tuple[list[int], int | None, int, bool]]], conditions: list[Condition], start: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        log_dir = new_log_dir(Path(name) / "log")
        marks = {}
        for (topic, number), batches in zip([("alpha", 0), ("alpha", 1), ("beta", 0)], logs, strict=True):
            writer = PartitionWriter(log_dir, topic, number)
            for times, append_time, gap, roll in batches:
                writer.skip(gap)
                if roll and writer.position:
                    writer.roll()
                writer.append(
                    [NewRecord(key=b"k%d" % time, value=b"." * 900, timestamp=AT + time) for time in times],
                    append_time=None if append_time is None else AT + append_time,
                )
            marks[topic, number] = writer.next_offset
        checkpoint(log_dir, marks)
        where = {"subscribePattern": ".*", "log.dir": str(log_dir), "failOnDataLoss": "false"}
        check(where, conditions)
        offsets = f'{{"alpha":{{"0":{start},"1":-2}},"beta":{{"0":0}}}}'
        check(where | {"startingOffsets": offsets, "minPartitions": "5"}, conditions)


@pytest.fixture
def out_of_order(broker: Broker, request: pytest.FixtureRequest) -> dict[str, str]:
    """A topic whose records' times go to and fro, unless the broker overrides what the producer says."""
    topic = f"pruned-{request.param}"
    create_topic(broker.bootstrap, topic, 2, {"message.timestamp.type": request.param})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for number in range(200):
        producer.produce(topic, b"v", b"k1", partition=number % 2, timestamp=AT + number * 37 % 40)
        if number % 20 == 0:
            assert producer.flush(PATIENCE_S) == 0
    assert producer.flush(PATIENCE_S) == 0
    return {"subscribe": topic, "kafka.bootstrap.servers": broker.bootstrap}


@pytest.mark.parametrize("out_of_order", ["CreateTime", "LogAppendTime"], indirect=True)
def test_times_asked_of_a_broker(out_of_order: dict[str, str]) -> None:
    for step in (0, 3, 20, 39, 40, 1000):
        for operator in COMPARISONS:
            check(out_of_order, [Condition("timestamp", operator, instant(step))])
    late = [Condition("timestamp", ">", datetime(2100, 1, 1, tzinfo=UTC))]
    assert check(out_of_order, late) == []


def test_plans_get_smaller(tmp_path: Path) -> None:
    log_dir = new_log_dir(tmp_path / "log")
    for number in range(3):
        writer = PartitionWriter(log_dir, "t", number)
        for first in range(0, 100, 10):
            writer.append([NewRecord(key=b"", value=b"", timestamp=AT + first + n) for n in range(10)])
    checkpoint(log_dir, {("t", number): 100 for number in range(3)})
    where = {"subscribe": "t", "log.dir": str(log_dir)}

    def ranges(*conditions: Condition) -> list[tuple[int, int, int]]:
        return [(task.partition, task.start, task.end) for task in check(where, conditions)]

    assert ranges(Condition("partition", "in", (2, None, 7))) == [(2, 0, 100)]
    assert ranges(Condition("partition", "=", 1, negated=True)) == [(0, 0, 100), (2, 0, 100)]
    one = Condition("partition", "=", 1)
    assert ranges(one, Condition("offset", ">", 7), Condition("offset", "<=", 9)) == [(1, 8, 10)]
    assert ranges(one, Condition("offset", "in", (30, 12))) == [(1, 12, 31)]
    assert ranges(one, Condition("timestamp", ">=", instant(41.5))) == [(1, 42, 100)]
    assert ranges(one, Condition("timestamp", "<", instant(41.5))) == [(1, 0, 100)]
    assert ranges(one, Condition("offset", ">", 9), Condition("offset", "<", 8)) == []
    assert ranges(Condition("topic", "=", "other")) == []
    assert ranges(Condition("topic", "=", None)) == []
    # Of another type than the column's: not for a plan.
    assert pruning_of([Condition("offset", ">", 1.5), Condition("partition", "=", "1")])[1] == [False, False]


def test_data_loss_is_said_as_without_conditions(tmp_path: Path) -> None:
    log_dir = new_log_dir(tmp_path / "log")
    writer = PartitionWriter(log_dir, "t", first_offset=50)
    writer.append([NewRecord(key=b"", value=b"", timestamp=AT)] * 10)
    checkpoint(log_dir, {("t", 0): 60})
    options = parse_options({"subscribe": "t", "log.dir": str(log_dir), "startingOffsets": '{"t":{"0":5}}'})
    with closing(open_catalog(options)) as catalog, pytest.raises(Exception, match="offsets 5 to 49"):
        plan(catalog, options, pruning_of([Condition("offset", ">", 55)])[0])
