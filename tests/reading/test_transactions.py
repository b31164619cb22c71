"""What is committed, and only that, is read beside a running broker: transactions of real producers, in both
levels of isolation, fetched and in place.

With MPBROKER_TEST_BROKER=kafka the same is asked of Apache Kafka.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from confluent_kafka import Producer

from ops.bench.brokers import Broker, Mpbroker
from tests.support.client_tools import eventually
from tests.support.polling import PATIENCE_S
from tests.support.reading_rows import rows_with
from tests.support.real_brokers import create_topic

PARTITIONS = 2


class Transactions:
    """Producers that take turns at a topic; each record's value tells how its transaction ends."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._broker, self._topic = broker, topic
        create_topic(broker.bootstrap, topic, PARTITIONS)
        self._producers: dict[str, Producer] = {}
        self._written = 0

    def begin(self, name: str) -> None:
        if name not in self._producers:
            settings = {"bootstrap.servers": self._broker.bootstrap, "linger.ms": 0}
            self._producers[name] = Producer(settings | {"transactional.id": f"{self._topic}-{name}"})
            self._producers[name].init_transactions(PATIENCE_S)
        self._producers[name].begin_transaction()

    def write(self, name: str, fate: str, count: int = 1) -> None:
        """Each record is in the log, in this order, when it returns."""
        for _ in range(count):
            partition = self._written % PARTITIONS
            value = f"{fate} {self._written}".encode()
            self._producers[name].produce(self._topic, value, partition=partition)
            self._written += 1
        assert self._producers[name].flush(PATIENCE_S) == 0

    def commit(self, name: str) -> None:
        self._producers[name].commit_transaction(PATIENCE_S)

    def abort(self, name: str) -> None:
        self._producers[name].abort_transaction(PATIENCE_S)

    def write_outside(self, fate: str, count: int = 1) -> None:
        if "" not in self._producers:
            self._producers[""] = Producer({"bootstrap.servers": self._broker.bootstrap, "linger.ms": 0})
        self.write("", fate, count)


def read(broker: Broker, topic: str, isolation: str = "read_committed", **more: object) -> list[str]:
    """The values that a query gets from the broker; of a broker of ours its files have to say the same."""
    options = {"subscribe": topic, "kafka.isolation.level": isolation, **more}
    found = _values({"kafka.bootstrap.servers": broker.bootstrap, **options})
    if not isinstance(broker, Mpbroker):
        return found
    while True:
        in_files = _values({"log.dir": broker.log_dir, **options})
        again = _values({"kafka.bootstrap.servers": broker.bootstrap, **options})
        if again == found:
            assert in_files == found
            return found
        # A transaction ended meanwhile.
        found = again


def _values(options: Mapping[str, object]) -> list[str]:
    rows = rows_with(**options)
    assert len({(row["partition"], row["offset"]) for row in rows}) == len(rows)
    return sorted((row["value"].decode() for row in rows), key=lambda value: int(value.split()[1]))


def fates(found: list[str]) -> list[str]:
    return [value.split()[0] for value in found]


def test_an_open_transaction_ends_what_is_read(broker: Broker) -> None:
    made = Transactions(broker, "open")
    made.write_outside("first", 4)
    made.begin("a")
    made.write("a", "open", 2)
    made.write_outside("behind", 4)
    assert fates(read(broker, "open")) == ["first"] * 4
    assert len(read(broker, "open", "read_uncommitted")) == 10
    made.commit("a")
    ended = ["first"] * 4 + ["open"] * 2 + ["behind"] * 4
    eventually(lambda: fates(read(broker, "open")) == ended, "the transaction has ended")
    made.begin("a")
    made.write("a", "aborted", 2)
    made.abort("a")
    made.write_outside("last", 2)
    eventually(lambda: fates(read(broker, "open")) == [*ended, "last", "last"], "the next one has, too")


def test_a_time_behind_an_open_transaction_is_not_found(broker: Broker) -> None:
    made = Transactions(broker, "late")
    made.write_outside("first", 2)
    made.begin("a")
    made.write("a", "open", 2)
    late = {"startingTimestamp": 1 << 45, "startingOffsetsByTimestampStrategy": "latest"}
    assert read(broker, "late", **late) == []
    assert fates(read(broker, "late", startingTimestamp=1)) == ["first"] * 2
    made.commit("a")
    ended = ["first"] * 2 + ["open"] * 2
    eventually(lambda: fates(read(broker, "late", startingTimestamp=1)) == ended, "the transaction has ended")


def test_any_order_of_events(broker: Broker) -> None:
    """Many transactions at once, each ended either way, cut into tasks anywhere."""
    made, chance = Transactions(broker, "any"), random.Random(11)
    open_ones: dict[str, str] = {}
    for _ in range(150):
        name = chance.choice("abc")
        if name not in open_ones:
            made.begin(name)
            open_ones[name] = chance.choice(["seen", "aborted"])
        if chance.random() < 0.7:
            made.write(name, open_ones[name], chance.randrange(1, 4))
        elif open_ones.pop(name) == "seen":
            made.commit(name)
        else:
            made.abort(name)
    for name, fate in open_ones.items():
        made.commit(name) if fate == "seen" else made.abort(name)
    everything = read(broker, "any", "read_uncommitted")
    committed = [value for value in everything if value.startswith("seen")]
    assert 20 < len(committed) < len(everything)
    eventually(lambda: read(broker, "any") == committed, "all transactions have ended")
    for parts in (7, 40):
        assert read(broker, "any", minPartitions=parts) == committed
