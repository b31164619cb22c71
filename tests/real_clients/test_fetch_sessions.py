"""Real consumers and their fetch sessions (KIP-227): who keeps one, and what is read if its handler dies."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from mpbroker.ipc.pointer import PUBLIC_NAME
from mpbroker.metrics import catalogue, snapshot
from ops.bench.brokers import Mpbroker
from tests.chaos.killer import members
from tests.support import client_adapters
from tests.support.client_adapters import Franz, java_consume
from tests.support.client_samples import Stored
from tests.support.client_tools import eventually
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import create_topic, served

PARTITIONS = 3
TOPIC = "read"
RECORDS = 200
PAUSE_S = 0.005
ENOUGH = 10
HANDLERS = 2
SESSIONS = "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions"

Offsets = dict[int, list[int]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mpbroker]:
    with served(Mpbroker(tmp_path, flags=["--handlers", str(HANDLERS)])) as running:
        create_topic(running.bootstrap, TOPIC, PARTITIONS)
        yield running


def counts(broker: Mpbroker) -> dict[str, dict[str, float]]:
    now = snapshot.take(snapshot.attach(broker.runtime_dir / PUBLIC_NAME))
    return {bean.name: bean.attributes for bean in catalogue.beans(now, None, catalogue.matcher([]))}


def fetches(broker: Mpbroker, attribute: str) -> float:
    return counts(broker)["mpbroker:type=Handlers"][attribute]


class Load:
    """Writes record by record, so that a reader has to fetch often; `most` of them until told otherwise."""

    def __init__(self, bootstrap: str, most: float = math.inf) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})
        self.most = most
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.written = 0

    def _run(self) -> None:
        while not self._ended.wait(PAUSE_S):
            if self.written >= self.most:
                continue
            self._producer.produce(TOPIC, b"v" * 20, partition=self.written % PARTITIONS)
            assert self._producer.flush(PATIENCE_S) == 0
            self.written += 1

    @contextmanager
    def running(self) -> Iterator[Load]:
        self._thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._thread.join()


class Reader:
    """A client that reads so many records, in a thread; `found` is what it got."""

    def __init__(self, read: Callable[[], Offsets]) -> None:
        self._read = read
        self._thread = threading.Thread(target=self._run)
        self._found: Offsets | None = None
        self._thread.start()

    def _run(self) -> None:
        self._found = self._read()

    @property
    def found(self) -> Offsets:
        self._thread.join()
        assert self._found is not None, "the client ended with an error"
        return self._found


def by_java(broker: Mpbroker, count: int) -> Reader:
    asked = ("--from-beginning", "--max-messages", str(count))
    shown = ("--formatter-property", "print.partition=true", "--formatter-property", "print.offset=true")

    def read() -> Offsets:
        found: Offsets = defaultdict(list)
        for line in java_consume(broker.bootstrap, TOPIC, *asked, *shown):
            partition, offset, _ = line.split("\t")
            found[int(partition.removeprefix("Partition:"))].append(int(offset.removeprefix("Offset:")))
        return found

    return Reader(read)


def by_franz(broker: Mpbroker, franz: Franz, count: int) -> Reader:
    return Reader(lambda: grouped(franz.read(broker.bootstrap, TOPIC, PARTITIONS, count)))


def by_confluent(broker: Mpbroker, count: int) -> Reader:
    return Reader(lambda: grouped(client_adapters.confluent_read(broker.bootstrap, TOPIC, PARTITIONS, count)))


def grouped(stored: Sequence[Stored]) -> Offsets:
    found: Offsets = defaultdict(list)
    for each in stored:
        found[each.record.partition].append(each.offset)
    return found


def whole(found: Offsets, count: int) -> None:
    """Nothing twice, nothing left out."""
    assert sum(map(len, found.values())) == count
    for offsets in found.values():
        assert offsets == list(range(len(offsets)))


def test_librdkafka_keeps_none(broker: Mpbroker) -> None:
    """It says epoch -1 each time: who did not know that would wonder about the metrics."""
    reader = by_confluent(broker, RECORDS)
    eventually(lambda: fetches(broker, "fetch-total") > 0, "the client fetches")
    with Load(broker.bootstrap).running():
        whole(reader.found, RECORDS)
    assert fetches(broker, "fetch-total") > ENOUGH
    assert fetches(broker, "fetch-incremental-total") == 0
    assert counts(broker)[SESSIONS]["Value"] == 0


@pytest.mark.parametrize("client", ["java", "franz"])
def test_the_handler_that_keeps_the_session_dies(
    broker: Mpbroker, client: str, request: pytest.FixtureRequest
) -> None:
    """Each handler in turn, while a consumer goes on; its session is lost with one of them at least. Without
    the last record it cannot end before that.
    """
    if client == "java":
        reader = by_java(broker, RECORDS)
    else:
        reader = by_franz(broker, request.getfixturevalue("franz"), RECORDS)
    eventually(lambda: fetches(broker, "fetch-total") > 0, "the client fetches")
    load = Load(broker.bootstrap, RECORDS - 1)
    with load.running():
        for number in range(2 * HANDLERS):
            await_more_fetches(broker)
            (victim,) = members(broker, f"handler {number % HANDLERS}")
            victim.kill()
            victim.wait()
        await_more_fetches(broker)
        load.most = math.inf
        whole(reader.found, RECORDS)
    assert fetches(broker, "fetch-incremental-total") > ENOUGH


def await_more_fetches(broker: Mpbroker) -> None:
    """Wait for fetches in a session, and until all handlers are there."""
    before = fetches(broker, "fetch-incremental-total")
    eventually(
        lambda: (
            fetches(broker, "fetch-incremental-total") > before + 2
            and len(members(broker, "handler")) == HANDLERS
        ),
        "a session goes on",
    )
