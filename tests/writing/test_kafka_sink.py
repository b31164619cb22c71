"""The sink without Spark against a real broker: tasks and drivers that die, brokers that are killed.

With MPBROKER_TEST_BROKER=kafka the same goes to Apache Kafka.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from mpbroker.client.topics import partition_for
from mpbroker.client.transactions import ProducerId, Transaction, TransactionFailed, Transactions
from mpbroker.writing.intents import Batch, Intent, Outcome, Prepared, SinkError, State
from mpbroker.writing.kafka_sink import PARTITIONS, TOPIC, KafkaEnds, KafkaIntentLog, prefix_of
from mpbroker.writing.options import WriteOptions, parse_write_options
from mpbroker.writing.rows import open_cluster
from mpbroker.writing.two_phase import abort, commit
from ops.bench.brokers import Broker
from spark_integration.sink import StreamWriter, write_prepared
from tests.support.client_tools import eventually
from tests.support.committed_offsets import read
from tests.support.real_brokers import (
    ADMIN_TIMEOUT_S,
    TRANSACTIONS,
    create_topic,
    make_broker,
    served,
    with_settings,
)

# Enough for tasks and driver on a busy machine, and waited for twice.
TIMEOUT_MS = "5000"
STEPS = ("before the intent", "after the intent", "between two ends", "after all ends")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with served(with_settings(make_broker(tmp_path_factory.mktemp("broker")), TRANSACTIONS)) as running:
        yield running


class Killed(Exception):
    """The driver, by the test."""


class Sink:
    """One query's sink, whose driver dies at a step if it is told to, and its broker with it."""

    def __init__(self, broker: Broker, name: str, **more: str) -> None:
        self.broker = broker
        self.topic = name
        given = {"topic": name, "exactlyOnce": "true", "sinkId": name, **more}
        self.given = given
        self.run = 0

    @property
    def options(self) -> WriteOptions:
        return parse_write_options({"kafka.bootstrap.servers": self.broker.bootstrap, **self.given})

    def known(self) -> Intent | None:
        with closing(open_cluster(self.options)) as cluster:
            return KafkaIntentLog(cluster, self.topic).latest(all_of_it=False)

    @property
    def withdrawn(self) -> bool:
        known = self.known()
        return known is not None and known.state is State.WITHDRAWN

    def tasks(self, number: int, tasks: int = 3) -> tuple[list[Prepared], bool]:
        """What the tasks of a batch return, each with two rows."""
        self.run += 1
        known, batch = self.known(), Batch("query", number)
        prepared, skipped = [], False
        for task in range(tasks):
            rows = [b"%d" % (100 * number + 2 * task + row) for row in range(2)]
            frame = pa.record_batch({"value": pa.array(rows, pa.binary())})
            run = f"run{self.run}-{task}"
            written = write_prepared(self.options, batch, run, known, iter([frame]))
            skipped = skipped or written.skipped
            prepared += [written.prepared] if written.prepared else []
        return prepared, skipped

    def commit(
        self, number: int, told: tuple[Sequence[Prepared], bool], step: str = "", *, kill: bool = False
    ):
        with closing(open_cluster(self.options)) as cluster:
            log, ends = KafkaIntentLog(cluster, self.topic), KafkaEnds(cluster, self.topic)
            if step:
                log, ends = DyingLog(cluster, self.topic), DyingEnds(cluster, self.topic)
                log.step = ends.step = step
                log.broker = ends.broker = self.broker if kill else None
            commit(log, ends, Batch("query", number), told[0], told[1])

    def abort(self, number: int, prepared: Sequence[Prepared]) -> None:
        with closing(open_cluster(self.options)) as cluster:
            abort(
                KafkaIntentLog(cluster, self.topic),
                KafkaEnds(cluster, self.topic),
                Batch("query", number),
                prepared,
            )


def die(broker: Broker | None) -> None:
    if broker is not None:
        broker.kill()
        broker.start()
    raise Killed


class DyingLog(KafkaIntentLog):
    step = ""
    broker: Broker | None = None

    def record(self, intent: Intent) -> None:
        if self.step == STEPS[0] or (self.step == STEPS[3] and intent.state is State.COMMITTED):
            die(self.broker)
        super().record(intent)
        if self.step == STEPS[1]:
            die(self.broker)


class DyingEnds(KafkaEnds):
    step = ""
    broker: Broker | None = None
    ended = 0

    def commit(self, transaction: Prepared) -> Outcome:
        if self.step == STEPS[2] and self.ended:
            die(self.broker)
        self.ended += 1
        return super().commit(transaction)


def committed(broker: Broker, topic: str) -> list[int]:
    return sorted(int(value) for values in read(broker, topic, 2).values() for value in values)


def rows(*numbers: int) -> list[int]:
    return [100 * number + row for number in numbers for row in range(6)]


@pytest.fixture
def sink(broker: Broker, request: pytest.FixtureRequest) -> Sink:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    create_topic(broker.bootstrap, name, 2)
    return Sink(broker, name)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kill", [False, True], ids=["driver", "driver and broker"])
def test_a_death_at_any_step(sink: Sink, step: str, kill: bool) -> None:
    sink.commit(0, sink.tasks(0))
    told = sink.tasks(1)
    assert committed(sink.broker, sink.topic) == rows(0), "nothing is seen before the driver has committed"
    with pytest.raises(Killed):
        sink.commit(1, told, step, kill=kill)
    sink.commit(1, sink.tasks(1))
    sink.commit(2, sink.tasks(2))
    assert committed(sink.broker, sink.topic) == rows(0, 1, 2)


def in_a_process_that_dies(act: Callable[[], None]) -> None:
    """Runs it in a process of its own, which has to end by SIGKILL."""
    child = os.fork()
    if not child:
        try:
            act()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def kill_me() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("step", STEPS)
def test_a_driver_that_is_killed(sink: Sink, step: str) -> None:
    def act() -> None:
        try:
            sink.commit(0, told, step)
        except Killed:
            kill_me()

    told = sink.tasks(0)
    in_a_process_that_dies(act)
    sink.commit(0, sink.tasks(0))
    assert committed(sink.broker, sink.topic) == rows(0)


@pytest.mark.parametrize("when", ["mid-write", "after the flush"])
def test_a_task_that_is_killed(sink: Sink, when: str) -> None:
    def act() -> None:
        sink.given["kafka.batch.size"] = "1"
        rows_of_it = pa.record_batch({"value": pa.array([b"0"] * 50, pa.binary())})

        def batches() -> Iterator[pa.RecordBatch]:
            yield from [rows_of_it] * 20
            if when == "mid-write":
                kill_me()

        write_prepared(sink.options, Batch("query", 0), "dies", None, batches())
        kill_me()

    in_a_process_that_dies(act)
    sink.commit(0, sink.tasks(0))
    assert committed(sink.broker, sink.topic) == rows(0)


def test_attempts_that_failed_and_batches_that_were_aborted_stay_invisible(sink: Sink) -> None:
    sink.tasks(0)
    told = sink.tasks(0)
    sink.abort(0, told[0])
    with pytest.raises(SinkError, match="3 of 3 transactions are no longer open"):
        sink.commit(0, told)
    assert committed(sink.broker, sink.topic) == []
    sink.commit(0, sink.tasks(0))
    assert committed(sink.broker, sink.topic) == rows(0)


def test_a_task_that_fails_aborts_its_transaction(sink: Sink) -> None:
    row = pa.record_batch({"value": pa.array([b"0"], pa.binary())})

    def batches() -> Iterator[pa.RecordBatch]:
        yield row
        raise RuntimeError("the rows end here")

    with pytest.raises(RuntimeError, match="the rows end here"):
        write_prepared(sink.options, Batch("query", 0), "fails", None, batches())
    with closing(open_cluster(sink.options)) as cluster:
        assert list(Transactions(cluster).ongoing(prefix_of(sink.topic))) == []


def test_a_query_that_the_sink_does_not_belong_to_ends_nothing_of_its_owner(sink: Sink) -> None:
    sink.commit(0, sink.tasks(0))
    told = sink.tasks(1)
    with closing(open_cluster(sink.options)) as cluster:
        log, ends = KafkaIntentLog(cluster, sink.topic), KafkaEnds(cluster, sink.topic)
        with pytest.raises(SinkError, match="belongs to query"):
            abort(log, ends, Batch("another", 0), [])
    # Spark tells of no batch when all tasks of a query fail, as those of a stranger do.
    StreamWriter(sink.options, None).abort([None, None], 0)
    sink.commit(1, told)
    assert committed(sink.broker, sink.topic) == sorted(rows(0) + rows(1))


def test_strays_are_aborted_where_brokers_allow_short_transactions_only(sink: Sink) -> None:
    strays, _ = sink.tasks(0)
    with closing(open_cluster(sink.options)) as cluster, pytest.MonkeyPatch.context() as patch:
        asked: list[int] = []
        init = Transactions.init

        def noted(self: Transactions, name: str, timeout_ms: int) -> ProducerId:
            asked.append(timeout_ms)
            return init(self, name, timeout_ms)

        patch.setattr(Transactions, "init", noted)
        ends = KafkaEnds(cluster, sink.topic)
        ends.abort_all()
        assert ends.closed(strays) == strays
        assert asked == [1000] * len(strays)


def test_transactions_of_others_that_begin_like_the_sink_go_on(sink: Sink) -> None:
    with closing(open_cluster(sink.options)) as cluster:
        theirs = Transaction(Transactions(cluster), f"{sink.topic}/loader", 5000)
        theirs.add([(sink.topic, 0)])
        sink.commit(0, sink.tasks(0))
        theirs.end(committed=True)


def test_a_stage_that_is_tried_again_aborts_nothing_that_its_first_try_has_prepared(sink: Sink) -> None:
    told = sink.tasks(0)
    sink.run -= 1
    again, _ = sink.tasks(0)
    names = [one.transactional_id for one in (*told[0], *again)]
    assert len(names) == len(set(names))
    sink.commit(0, told)
    assert committed(sink.broker, sink.topic) == rows(0)


def test_a_driver_that_was_fenced_records_nothing(sink: Sink) -> None:
    """However late it is: it has read that batch 0 is not decided, and another one decides it."""
    with closing(open_cluster(sink.options)) as cluster, closing(open_cluster(sink.options)) as other:
        old, new = KafkaIntentLog(cluster, sink.topic), KafkaIntentLog(other, sink.topic)
        old.fence()
        assert old.latest() is None
        new.fence()
        new.record(Intent(Batch("query", 0), State.DECIDED))
        with pytest.raises(TransactionFailed, match=r"PRODUCER_FENCED|INVALID_PRODUCER_EPOCH"):
            old.record(Intent(Batch("query", 0), State.WITHDRAWN))
        new.record(Intent(Batch("query", 0), State.COMMITTED))
        assert new.latest() == Intent(Batch("query", 0), State.COMMITTED)


def test_a_batch_of_very_many_tasks(sink: Sink) -> None:
    """Their names alone are more than a broker takes in one batch of records."""
    names = (f"{prefix_of(sink.topic)}0-{number}-{'0' * 100}" for number in range(10_000))
    intent = Intent(Batch("query", 0), State.DECIDED, tuple(Prepared(one, ProducerId(1, 0)) for one in names))
    with closing(open_cluster(sink.options)) as cluster:
        log = KafkaIntentLog(cluster, sink.topic)
        log.fence()
        log.record(intent)
        assert log.latest() == intent


def test_an_intent_that_is_none_is_an_error() -> None:
    for text in (b"hello", b"[1]", b"{}", b'{"version": 1, "query": "q"}'):
        with pytest.raises(SinkError, match="Give the query another sinkId"):
            Intent.from_json(text)
    with pytest.raises(SinkError, match="has version 2"):
        Intent.from_json(b'{"version": 2}')


def test_partitions_that_are_added_to_the_intents_topic_hide_none(broker: Broker) -> None:
    more = 2 * PARTITIONS
    names = (f"moved-{number}" for number in range(100))
    name = next(one for one in names if partition_for(one.encode(), more) >= PARTITIONS)
    create_topic(broker.bootstrap, name, 2)
    sink = Sink(broker, name)
    sink.commit(1, sink.tasks(1))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    added = admin.create_partitions([NewPartitions(TOPIC, more)])
    added[TOPIC].result(ADMIN_TIMEOUT_S)
    sink.commit(1, sink.tasks(1))
    assert committed(broker, name) == rows(1)


def test_an_intent_that_was_aborted_hides_none_behind_it(sink: Sink) -> None:
    """All drivers of a sink have the same producer id, and one fetch brings the intents of all."""
    first, second = (Intent(Batch("query", number), State.COMMITTED) for number in range(2))
    with closing(open_cluster(sink.options)) as cluster:
        log = KafkaIntentLog(cluster, sink.topic)
        log.fence()
        log.record(first)
        assert log._transaction is not None
        log._transaction.end = lambda *, committed: die(None)  # type: ignore[method-assign]  # noqa: ARG005
        with pytest.raises(Killed):
            log.record(second)
        log.fence()
        assert log.latest() == first
        log.record(second)
        assert log.latest() == second


def test_ending_again_says_what_became_of_it(sink: Sink) -> None:
    (first, second, third), _ = sink.tasks(0)
    with closing(open_cluster(sink.options)) as cluster:
        ends = KafkaEnds(cluster, sink.topic)
        assert ends.closed([first, second, third]) == []
        assert [ends.commit(first), ends.commit(first)] == [Outcome.COMMITTED] * 2
        ends.abort([second, second])
        assert ends.commit(second) is Outcome.ABORTED
        assert ends.closed([first, second, third]) == [first, second]
        ends.abort_all()
        # A newer producer has its transactional id: what became of the old one nobody can tell.
        assert ends.commit(third) is Outcome.UNKNOWN
        unknown = Prepared("nobody", third.producer)
        assert ends.commit(unknown) is Outcome.UNKNOWN
        with pytest.raises(TransactionFailed):
            ends._transactions.describe("nobody")


@pytest.fixture(scope="module")
def timed_out(broker: Broker) -> dict[str, Sink]:
    """Sinks whose driver died at a step, and whose transactions the coordinator has aborted since."""
    sinks, prepared = {}, []
    for step in STEPS[1:3]:
        name = step.replace(" ", "-")
        create_topic(broker.bootstrap, name, 2)
        sinks[step] = Sink(broker, name, **{"kafka.transaction.timeout.ms": TIMEOUT_MS})
        told = sinks[step].tasks(0)
        with pytest.raises(Killed):
            sinks[step].commit(0, told, step)
        prepared.append((sinks[step], told[0]))
    for sink, written in prepared:
        with closing(open_cluster(sink.options)) as cluster:
            ends = KafkaEnds(cluster, sink.topic)
            eventually(
                lambda ends=ends, written=written: len(ends.closed(written)) == len(written),
                "all transactions are over",
            )
    return sinks


def test_the_timeout_of_an_intent_is_named_and_the_batch_written_again(timed_out: dict[str, Sink]) -> None:
    sink = timed_out[STEPS[1]]
    with pytest.raises(SinkError, match=r"all 3 transactions of batch 0 were aborted.*batch again"):
        sink.commit(0, sink.tasks(0))
    # Markers come a moment after the driver's transaction was ended.
    eventually(lambda: sink.withdrawn, "what was decided is seen to be withdrawn")
    sink.commit(0, sink.tasks(0))
    assert committed(sink.broker, sink.topic) == rows(0)


def test_the_timeout_of_a_half_ended_intent_is_an_error_for_good(timed_out: dict[str, Sink]) -> None:
    sink = timed_out[STEPS[2]]
    for _ in range(2):
        with pytest.raises(SinkError, match="2 of its 3 transactions can no longer be"):
            sink.commit(0, sink.tasks(0))
    assert len(committed(sink.broker, sink.topic)) == 2
