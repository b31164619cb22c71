"""Real consumers and their fetch sessions (KIP-227): who keeps one, and what is read if its handler dies."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Producer

from mpbroker.ipc.pointer import PUBLIC_NAME
from mpbroker.metrics import catalogue, snapshot
from ops.bench.brokers import Mpbroker
from tests.chaos.killer import members
from tests.support.client_adapters import Franz, confluent_read, java_consume
from tests.support.client_samples import Stored
from tests.support.client_tools import eventually
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import create_topic, served
from tests.support.threads import InThread

PARTITIONS = 3
TOPIC = "read"
RECORDS = 400
PAUSE_S = 0.005
ENOUGH = 10
HANDLERS = 2
SESSIONS = "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions"

# Partition and offset of a record.
Place = tuple[int, int]


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


class Load(InThread):
    """Writes record by record, so that a reader has to fetch often; `most` of them until told otherwise."""

    def __init__(self, bootstrap: str, most: float = math.inf) -> None:
        super().__init__()
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})
        self.most = most
        self.written = 0

    def _run(self) -> None:
        while not self._ends.wait(PAUSE_S):
            if self.written >= self.most:
                continue
            self._producer.produce(TOPIC, b"v" * 20, partition=self.written % PARTITIONS)
            assert self._producer.flush(PATIENCE_S) == 0
            self.written += 1


def java_places(bootstrap: str, count: int) -> list[Place]:
    asked = ("--from-beginning", "--max-messages", str(count))
    shown = ("--formatter-property", "print.partition=true", "--formatter-property", "print.offset=true")
    printed = "\n".join(java_consume(bootstrap, TOPIC, *asked, *shown))
    return [(int(one), int(offset)) for one, offset in re.findall(r"Partition:(\d+)\tOffset:(\d+)", printed)]


READERS: Mapping[str, Callable[[str, int], list[Place]]] = {
    "java": java_places,
    "franz": lambda bootstrap, count: places(Franz().read(bootstrap, TOPIC, PARTITIONS, count)),
    "confluent": lambda bootstrap, count: places(confluent_read(bootstrap, TOPIC, PARTITIONS, count)),
}


def places(stored: Sequence[Stored]) -> list[Place]:
    return [(one.record.partition, one.offset) for one in stored]


def reading(broker: Mpbroker, client: str, count: int) -> Future[list[Place]]:
    """Let a client read so many records; it has begun."""
    beside = ThreadPoolExecutor(1)
    reader = beside.submit(READERS[client], broker.bootstrap, count)
    beside.shutdown(wait=False)
    eventually(lambda: fetches(broker, "fetch-total") > 0, "the client fetches")
    return reader


def whole(found: Sequence[Place], count: int) -> None:
    """Nothing twice, nothing left out."""
    assert len(found) == count
    for partition in range(PARTITIONS):
        offsets = [offset for one, offset in found if one == partition]
        assert offsets == list(range(len(offsets)))


def test_librdkafka_keeps_none(broker: Mpbroker) -> None:
    """It says epoch -1 each time: who did not know that would wonder about the metrics."""
    reader = reading(broker, "confluent", RECORDS // 2)
    with Load(broker.bootstrap):
        whole(reader.result(), RECORDS // 2)
    assert fetches(broker, "fetch-total") > ENOUGH
    assert fetches(broker, "fetch-incremental-total") == 0
    assert counts(broker)[SESSIONS]["Value"] == 0


@pytest.mark.parametrize("client", ["java", "franz"])
def test_the_handler_that_keeps_the_session_dies(broker: Mpbroker, client: str) -> None:
    """Each handler in turn, while a consumer goes on; its session is lost with one of them at least. Without
    the last record it cannot end before that.
    """
    reader = reading(broker, client, RECORDS)
    with Load(broker.bootstrap, RECORDS - 1) as load:
        for number in range(2 * HANDLERS):
            await_more_fetches(broker)
            (victim,) = members(broker, f"handler {number % HANDLERS}")
            victim.kill()
            victim.wait()
        await_more_fetches(broker)
        load.most = math.inf
        whole(reader.result(), RECORDS)
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
