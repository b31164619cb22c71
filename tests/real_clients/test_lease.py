"""Clients of a broker whose lease ends and is renewed: they lose connections and wait, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import confluent_kafka
import pytest

from mpbroker.ipc.leading import ALWAYS
from mpbroker.protocol.errors import ErrorCode
from ops.bench import frames
from ops.bench.brokers import Mpbroker
from shm.clock import boot_ns
from tests.support import client_adapters as clients
from tests.support.client_samples import sample_records
from tests.support.client_tools import kafka_tool
from tests.support.committed_offsets import read
from tests.support.forms import each
from tests.support.leading_word import LeadingWord
from tests.support.metered_client import Meter
from tests.support.polling import PATIENCE_S, until
from tests.support.real_brokers import TRANSACTIONS, TopicMaker, served, with_settings
from tests.support.transactional_clients import CLIENTS, IN_PYTHON, Open, commits

METRICS = "kafka.network:type=RequestMetrics,name="
REFUSALS = [
    f"{METRICS}ErrorsPerSec,*error={error}"
    for error in ("NOT_LEADER_OR_FOLLOWER", "NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS")
]


class Leased:
    """A broker, and the end of its lease."""

    def __init__(self, broker: Mpbroker) -> None:
        self.broker, self.bootstrap = broker, broker.bootstrap
        assert broker.process is not None
        self._word, self._meter = LeadingWord(broker.process.pid), Meter(broker)

    def end(self) -> None:
        self._word.write(boot_ns())

    def renew(self) -> None:
        self._word.write(ALWAYS)

    def refusals(self) -> float:
        return sum(attributes["Count"] for attributes in self._meter.beans(*REFUSALS).values())

    def await_refusals(self) -> None:
        """Wait until a client has been refused and has come again."""
        before = self.refusals()
        until(lambda: self.refusals() >= before + 2, "a client that is refused and tries again")


@pytest.fixture(scope="module", name="broker")
def _broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mpbroker]:
    with served(with_settings(Mpbroker(tmp_path_factory.mktemp("broker")), TRANSACTIONS)) as made:
        yield made


@pytest.fixture(name="leased")
def _leased(broker: Mpbroker) -> Iterator[Leased]:
    leased = Leased(broker)
    yield leased
    leased.renew()


def test_connections_end_and_new_ones_are_refused_until_it_leads_again(
    leased: Leased, new_topic: TopicMaker
) -> None:
    topic, address = new_topic(1), leased.broker.address
    produce, fetch = frames.produce(topic, 1, 10, acks=-1), frames.fetch(topic, 0, 1 << 16)
    with frames.connected(address) as old:
        assert frames.exchange(old, produce)[0] == 0
        leased.end()
        assert old.recv(1) == b""
    with frames.connected(address) as new:
        for request in (produce, fetch):
            assert frames.exchange(new, request)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert frames.exchange(new, frames.metadata())[0] == 0
        leased.renew()
        assert [frames.exchange(new, request)[0] for request in (produce, fetch)] == [0, 0]


def java_writes(bootstrap: str, topic: str) -> None:
    load = ("--topic", topic, "--num-records", "20", "--record-size", "9", "--throughput", "-1")
    kafka_tool("org.apache.kafka.tools.ProducerPerformance", "--bootstrap-server", bootstrap, *load)


WRITES: Mapping[str, Callable[[str, str], object]] = {
    name: partial(
        lambda write, bootstrap, topic: write(bootstrap, topic, sample_records(1, 20, 1), "none"), write
    )
    for name, write in (*clients.WRITERS.items(), ("franz", lambda *about: clients.Franz().write(*about)))
} | {"java": java_writes}


@each("client", short=["confluent"], long=[*WRITES])
def test_who_comes_meanwhile_waits_writes_and_reads(
    leased: Leased, new_topic: TopicMaker, client: str
) -> None:
    topic = new_topic(1)
    for act in (WRITES[client], lambda *about: clients.MEMBERS[client](*about, topic, 20)):
        leased.end()
        with ThreadPoolExecutor(1) as pool:
            acting = pool.submit(act, leased.bootstrap, topic)
            leased.await_refusals()
            leased.renew()
            acting.result(PATIENCE_S)
    assert len(clients.confluent_read(leased.bootstrap, topic, 1, 20)) == 20


@each("client", short=["confluent"], long=CLIENTS)
def test_a_transaction_goes_on_and_is_committed(
    leased: Leased, new_topic: TopicMaker, request: pytest.FixtureRequest, client: str
) -> None:
    topic = new_topic(1)
    opens: Open = (
        IN_PYTHON[client] if client in IN_PYTHON else request.getfixturevalue(f"transacting_{client}").open
    )
    producer = opens(leased.bootstrap, topic)
    for first in ("a", "b"):
        leased.end()
        with ThreadPoolExecutor(1) as pool:
            acting = pool.submit(commits, producer, topic, first, first)
            leased.await_refusals()
            leased.renew()
            acting.result(PATIENCE_S)
    producer.close()
    assert read(leased.broker, topic, 1) == {0: ["a", "a", "b", "b"]}


def test_a_producer_and_a_member_go_on_where_they_were(leased: Leased, new_topic: TopicMaker) -> None:
    topic = new_topic(1)
    about = {"bootstrap.servers": leased.bootstrap, "reconnect.backoff.max.ms": 200}
    group = {"group.id": topic, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    producer = confluent_kafka.Producer({**about, "enable.idempotence": True})
    seen: list[bytes | None] = []
    with closing(confluent_kafka.Consumer({**about, **group})) as consumer:
        consumer.subscribe([topic])
        for first in (0, 10, 20):
            for number in range(first, first + 10):
                producer.produce(topic, b"%d" % number)
            if first:
                leased.end()
                leased.await_refusals()
                leased.renew()
            assert producer.flush(PATIENCE_S) == 0
            while len(seen) < first + 10:
                seen += [message.value() for message in consumer.consume(first + 10 - len(seen), PATIENCE_S)]
            consumer.commit(asynchronous=False)
    assert seen == [b"%d" % number for number in range(30)]
