"""Streams beside a running broker, read as Spark calls the reader, without a JVM: moves and transactions.

With MPBROKER_TEST_BROKER=kafka Apache Kafka serves what is fetched.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from mpbroker.client.errors import ClientError
from mpbroker.reading import group_progress
from mpbroker.reading.group_progress import GroupProgress
from ops.bench import frames
from ops.bench.brokers import MPBROKER_COMMAND, Broker, Kafka, Mpbroker
from spark_integration.source import MpbrokerStreamReader
from tests.support.client_tools import SMALL_JVM
from tests.support.committed_offsets import offset_of
from tests.support.group_members import member
from tests.support.polling import PATIENCE_S, until
from tests.support.real_brokers import served
from tests.support.spark_produced import make_topic

IS_KAFKA = os.environ.get("MPBROKER_TEST_BROKER") == "kafka"
SCHEMA = StructType([StructField("partition", IntegerType()), StructField("offset", LongType())])
MODES = ("local", "remote")
# So much is written between two looks at a partition that moves.
CHUNK = 50


class Query:
    """A streaming query as Spark runs it: its offsets are JSON, its tasks and their reader are pickled."""

    def __init__(self, **options: str) -> None:
        self._reader = MpbrokerStreamReader({"startingOffsets": "earliest", **options}, SCHEMA)
        self.at = _json(self._reader.initialOffset())
        self.rows: list[int] = []

    def is_available_now(self) -> None:
        self._reader.prepareForTriggerAvailableNow()

    def trigger(self) -> bool:
        """Whether there was a batch."""
        end = _json(self._reader.latestOffset(self.at, self._reader.getDefaultReadLimit()))
        if end == self.at:
            return False
        tasks = pickle.loads(pickle.dumps(self._reader.partitions(self.at, end)))
        reader = pickle.loads(pickle.dumps(self._reader))
        for task in tasks:
            for batch in reader.read(task):
                self.rows += batch.column("offset").to_pylist()
        self.at = end
        return True

    def until_at(self, topic: str, offset: int) -> None:
        """Markers of a transaction come a moment after its end was acknowledged."""
        until(lambda: self.offset(topic) == offset, f"{topic} is read up to {offset}", self.trigger)

    def offset(self, topic: str) -> int:
        found: int = self.at[topic]["0"]
        return found

    def stop(self) -> None:
        self._reader.stop()


Start = Callable[..., Query]


def _json(offsets: Any) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads(json.dumps(offsets))
    return found


@pytest.fixture(scope="module")
def log_dirs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("broker")
    return [directory / "one", directory / "two"]


@pytest.fixture(scope="module")
def broker(log_dirs: list[Path]) -> Iterator[Broker]:
    named = ",".join(map(str, log_dirs))
    found: Broker
    if IS_KAFKA:
        found = Kafka(log_dirs[0].parent, properties=[f"log.dirs={named}"], jvm=SMALL_JVM)
    else:
        found = Mpbroker(log_dirs[0].parent, template=MPBROKER_COMMAND.replace("{log_dir}", named))
    with served(found) as running:
        yield running


@pytest.fixture(params=MODES)
def start(request: pytest.FixtureRequest, broker: Broker, log_dirs: list[Path]) -> Iterator[Start]:
    """Begins queries, of files and over the network."""
    mode: str = request.param
    if IS_KAFKA and mode == "local":
        pytest.skip("Apache Kafka publishes nothing outside of its own process")
    places = {"kafka.bootstrap.servers": broker.bootstrap, "log.dir": str(log_dirs[0]), "readMode": mode}
    begun: list[Query] = []

    def begin(topic: str, **options: str) -> Query:
        begun.append(Query(subscribe=topic, **places, **options))
        return begun[-1]

    yield begin
    for query in begun:
        query.stop()


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    make_topic(broker, name, 1)
    return name


def plain(broker: Broker) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})


@pytest.fixture
def transactional(broker: Broker, topic: str) -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    return producer


def write(producer: Producer, topic: str, count: int) -> None:
    for _ in range(count):
        producer.produce(topic, b"value", partition=0)
    assert producer.flush(PATIENCE_S) == 0


def order_move(broker: Broker, topic: str, to: Path) -> None:
    with frames.connected(broker.address) as connection:
        error, _ = frames.exchange(connection, frames.alter_replica_log_dir(str(to), topic, 0))
    assert not error


def test_a_partition_moves_while_it_is_followed(
    start: Start, broker: Broker, topic: str, log_dirs: list[Path]
) -> None:
    producer, query, written = plain(broker), start(topic), 0

    def step() -> None:
        nonlocal written
        write(producer, topic, CHUNK)
        written += CHUNK
        query.trigger()

    step()
    for _ in range(4):
        (there,) = (one for one in log_dirs if not (one / f"{topic}-0").exists())
        (here,) = (one for one in log_dirs if one != there)
        order_move(broker, topic, there)
        until(lambda here=here: not (here / f"{topic}-0").exists(), "the partition has moved", step)
        step()
    query.until_at(topic, written)
    assert query.rows == list(range(written)), "each record once, in order"


def test_batches_without_a_row_go_on(
    start: Start, broker: Broker, topic: str, transactional: Producer
) -> None:
    """Aborted records and markers are offsets without rows; a query that waited for rows would hang there."""
    query, one_by_one = start(topic), start(topic, maxOffsetsPerTrigger="1")
    transactional.begin_transaction()
    write(transactional, topic, 5)
    transactional.abort_transaction(PATIENCE_S)
    query.until_at(topic, 6)
    assert query.rows == []
    assert not query.trigger()
    transactional.begin_transaction()
    write(transactional, topic, 2)
    transactional.commit_transaction(PATIENCE_S)
    write(plain(broker), topic, 1)
    query.until_at(topic, 10)
    assert query.rows == [6, 7, 9]
    batches = 0
    while one_by_one.trigger():
        batches += 1
    assert (one_by_one.rows, batches) == ([6, 7, 9], 10)


def test_a_group_has_the_end_of_each_batch_by_the_next_one(
    start: Start, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However soon batches follow each other. A run that ends tries again what a broker has refused."""
    write(plain(broker), topic, 40)
    # A broker that is busy does not refuse.
    monkeypatch.setattr(group_progress, "TIMEOUT_MS", PATIENCE_S * 1000)
    commit = GroupProgress._commit
    query = start(topic, maxOffsetsPerTrigger="10", commitGroupId=topic)
    query.is_available_now()
    seen: list[int | None] = []
    while query.trigger():
        seen.append(offset_of(broker, topic, topic))
        if query.at[topic]["0"] == 20:
            monkeypatch.setattr(GroupProgress, "_commit", refused)
        if query.at[topic]["0"] == 40:
            monkeypatch.setattr(GroupProgress, "_commit", commit)
    assert seen == [0, 10, 10, 10]
    assert offset_of(broker, topic, topic) == 40


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members_is_not_committed_to(
    start: Start, broker: Broker, topic: str, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    write(plain(broker), topic, 20)
    group = f"{topic}-{protocol}"
    with member(broker.bootstrap, group, topic, group_protocol=protocol):
        query = start(topic, commitGroupId=group)
        while query.trigger():
            pass
        query.stop()
    assert query.at[topic]["0"] == 20
    assert offset_of(broker, group, topic) is None
    assert f"group {group}: the query's progress was not committed: the group has members" in caplog.text


def refused(*_arguments: object) -> None:
    raise ClientError("the coordinator is not available")
