"""A broker and its standby, on one object store: clients that know both go on when either of them goes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from mpbroker.storage.names import FENCED
from tests.support.broker_pair import TOPIC, Pair
from tests.support.client_tools import eventually
from tests.support.forms import long_only
from tests.support.own_cli import OwnCli
from tests.support.polling import PATIENCE_S
from tests.support.produced import produce


def abort(bootstrap: str, value: str) -> None:
    """Write a record in a transaction that is aborted."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "aborts"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(TOPIC, value, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    producer.abort_transaction(PATIENCE_S)


class FetchingFrom:
    """A consumer of partition 0, which tells which broker has sent how much."""

    def __init__(self, bootstrap: str, rack: str) -> None:
        self.received: dict[int, int] = {}
        settings = {
            "bootstrap.servers": bootstrap,
            "client.rack": rack,
            "group.id": "none",
            "enable.auto.commit": False,
            "statistics.interval.ms": 50,
            "stats_cb": self._count,
        }
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])

    def _count(self, text: str) -> None:
        for one in json.loads(text)["brokers"].values():
            if one["nodeid"] > 0 and one["req"].get("Fetch"):
                self.received[one["nodeid"]] = one["rxbytes"]

    def read(self, count: int) -> list[str]:
        found: list[str] = []

        def has_all() -> bool:
            found.extend(
                (one.value() or b"").decode() for one in self._consumer.consume(count - len(found), 0.1)
            )
            return len(found) >= count

        eventually(has_all, lambda: f"{count} records come; {len(found)} did: {self.received}")
        return found

    def bytes_from(self, broker_id: int) -> int:
        """Return how many bytes a broker has sent, once it was counted."""

        def is_counted() -> bool:
            self._consumer.poll(0.1)
            return broker_id in self.received

        eventually(is_counted, "counts come")
        return self.received[broker_id]

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(tmp_path, stack, getattr(request, "param", "ledger"))


@pytest.mark.process
def test_a_standby_takes_over_from_a_killed_broker_and_clients_go_on(pair: Pair) -> None:
    owner = pair.start(1)
    admin = AdminClient({"bootstrap.servers": owner.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(PATIENCE_S)
    pair.start(2, "--standby")
    pair.stands_by(2)
    status = ["remote", "status", "--log-dirs", str(pair.brokers[2].log_dir)]
    cli = OwnCli(pair.bootstrap)
    eventually(lambda: cli(*status, "--json").json["standby"]["cut_ms"] > 0, "its mirror has a cut")
    said = cli(*status).out
    assert "stands by: the mirror had all of the ledger" in said
    assert f"file://{pair.store_dir}" in said
    assert "cannot be read" not in said
    producer = Producer({"bootstrap.servers": pair.bootstrap})
    for number in range(10):
        producer.produce(TOPIC, str(number), partition=0)
    assert producer.flush(PATIENCE_S) == 0
    owner.kill()
    for number in range(10, 20):
        producer.produce(TOPIC, str(number), partition=0)
    assert producer.flush(PATIENCE_S) == 0
    pair.leads(2, generation=2)
    assert pair.values() == [str(number) for number in range(20)]


@pytest.mark.process
@pytest.mark.parametrize("pair", ["local"], indirect=True)
def test_a_consumer_of_its_rack_reads_from_a_replica_and_goes_back_when_it_is_gone(pair: Pair) -> None:
    owner = pair.start(1)
    values = [f"{number:01000d}" for number in range(100)]
    produce(owner.bootstrap, TOPIC, values[:50])
    abort(owner.bootstrap, "nobody is to see this")
    pair.start(2, "--standby", "--read-only", "-o", "broker.rack=a")
    pair.serves_reads(2)
    consumer = FetchingFrom(owner.bootstrap, "a")
    assert consumer.read(50) == values[:50]
    assert consumer.bytes_from(2) > len("".join(values[:50]))
    # What the newest cut lacks is the owner's.
    produce(owner.bootstrap, TOPIC, values[50:75])
    assert consumer.read(25) == values[50:75]
    pair.brokers[2].kill()
    produce(owner.bootstrap, TOPIC, values[75:])
    assert consumer.read(25) == values[75:]
    consumer.close()
    # Another one may be sent to where nobody is.
    late = FetchingFrom(owner.bootstrap, "a")
    assert late.read(100) == values
    late.close()
    assert not pair.state().standbys


def write(bootstrap: str, stops: threading.Event) -> None:
    """Write one transaction after the other, of which every second is aborted."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "writes", "linger.ms": 0})
    producer.init_transactions(PATIENCE_S)
    number = 0
    while not stops.is_set():
        producer.begin_transaction()
        for size in range(number % 20):
            producer.produce(TOPIC, f"{number % 2} {number} {size} {'x' * 400 * size}", partition=0)
        assert producer.flush(PATIENCE_S) == 0
        end = producer.abort_transaction if number % 2 else producer.commit_transaction
        end(PATIENCE_S)
        number += 1


@pytest.mark.process
@long_only("committed records of a replica are those of its leader, while a producer goes on")
@pytest.mark.parametrize("pair", ["local", "ledger"], indirect=True)
def test_consumers_of_a_replica_see_what_those_of_its_leader_see(pair: Pair) -> None:
    owner, stops = pair.start(1), threading.Event()
    admin = AdminClient({"bootstrap.servers": owner.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, config={"segment.bytes": "1048576"})])[TOPIC].result(PATIENCE_S)
    writer = threading.Thread(target=write, args=(owner.bootstrap, stops))
    writer.start()
    try:
        count, senders = 0, dict[int, int]()
        for _ in range(2):
            pair.start(2, "--standby", "--read-only", "-o", "broker.rack=a")
            for _ in range(4):
                pair.serves_reads(2)
                count += 200
                there, here = FetchingFrom(owner.bootstrap, "a"), FetchingFrom(owner.bootstrap, "")
                found = there.read(count)
                assert found == here.read(count)
                assert not any(one.startswith("1") for one in found)
                senders |= there.received
                for one in (there, here):
                    one.close()
            pair.brokers[2].kill()
        assert 2 in senders
    finally:
        stops.set()
        writer.join()


@pytest.mark.process
@long_only("a lost broker comes back as standby, and the other one hands over")
@pytest.mark.parametrize("pair", ["local", "ledger"], indirect=True)
def test_brokers_change_places_again_and_again(pair: Pair) -> None:
    produce(pair.start(1).bootstrap, TOPIC, map(str, range(10)))
    pair.start(2, "--standby")
    pair.stands_by(2)
    pair.cut()
    pair.brokers[1].kill()
    produce(pair.bootstrap, TOPIC, map(str, range(10, 20)), enable_idempotence=True)
    pair.leads(2, generation=2)
    # A plain start: it finds that another one leads.
    pair.start(1)
    pair.stands_by(1)
    assert list((pair.brokers[1].log_dir / FENCED).glob(f"1-*/{TOPIC}-0"))
    produce(pair.bootstrap, TOPIC, map(str, range(20, 30)), enable_idempotence=True)
    pair.brokers[2].stop()
    produce(pair.bootstrap, TOPIC, map(str, range(30, 40)), enable_idempotence=True)
    pair.leads(1, generation=3)
    pair.start(2, "--standby")
    pair.stands_by(2)
    assert not (pair.brokers[2].log_dir / FENCED).exists()
    pair.cut()
    pair.brokers[1].kill()
    pair.leads(2, generation=4)
    eventually(lambda: len(pair.values()) >= 40, "all is there")
    assert pair.values() == [str(number) for number in range(40)]
