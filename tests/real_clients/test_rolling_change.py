"""A group changes its protocol while its members read: clients are replaced one after the other (KIP-848).

Classic members of three clients and one of the consumer protocol are in one group. Each set of members reads
and commits all that is written, and what was committed is not read again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiokafka
import kafka
from confluent_kafka import Consumer, KafkaException

from ops.bench.brokers import Broker
from tests.support.client_tools import eventually
from tests.support.forms import long_only
from tests.support.own_cli import OwnCli
from tests.support.polling import PATIENCE_S
from tests.support.produced import produce
from tests.support.real_brokers import TopicMaker

PARTITIONS, COUNT = 6, 30
BROKER_SETTINGS = {
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.assignment.interval.ms": "0",
}
SESSION_MS, HEARTBEAT_MS = 10_000, 200


@dataclass
class Read:
    """What members have read, and the ends of what they committed, by partition."""

    topic: str
    bootstrap: str
    seen: set[tuple[int, int]] = field(default_factory=set)
    committed: dict[int, int] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, partition: int, offset: int) -> None:
        with self._lock:
            self.seen.add((partition, offset))
            if offset < self.committed.get(partition, 0):
                self.complaints.append(f"partition {partition}: {offset} is read again, it was committed")

    def note_committed(self, ends: Mapping[int, int]) -> None:
        with self._lock:
            for partition, end in ends.items():
                self.committed[partition] = max(end, self.committed.get(partition, 0))


Member = Callable[[Read, threading.Event], None]


def confluent(protocol: str) -> Member:
    settings = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}

    def work(read: Read, stops: threading.Event) -> None:
        about = {"bootstrap.servers": read.bootstrap, "group.id": read.topic, "group.protocol": protocol}
        how = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 0}
        given = settings if protocol == "classic" else {}
        with closing(Consumer({**about, **how, **given})) as consumer:
            consumer.subscribe([read.topic])
            while not stops.is_set():
                message = consumer.poll(0.05)
                if message is None or message.error() is not None:
                    continue
                partition, offset = message.partition() or 0, message.offset() or 0
                read.note(partition, offset)
                try:
                    consumer.commit(message, asynchronous=False)
                except KafkaException:
                    continue  # a rebalance is under way
                read.note_committed({partition: offset + 1})

    return work


def kafka_python(read: Read, stops: threading.Event) -> None:
    consumer = kafka.KafkaConsumer(
        read.topic,
        bootstrap_servers=read.bootstrap,
        group_id=read.topic,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
    )
    with closing(consumer):
        while not stops.is_set():
            for partition, messages in consumer.poll(timeout_ms=50).items():
                for message in messages:
                    read.note(partition.partition, message.offset)
                end = messages[-1].offset + 1
                try:
                    consumer.commit({partition: kafka.OffsetAndMetadata(end, "", -1)})
                except kafka.errors.CommitFailedError:
                    continue
                read.note_committed({partition.partition: end})


async def _aiokafka(read: Read, stops: threading.Event) -> None:
    consumer = aiokafka.AIOKafkaConsumer(
        read.topic,
        bootstrap_servers=read.bootstrap,
        group_id=read.topic,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
    )
    await consumer.start()
    try:
        while not stops.is_set():
            for partition, messages in (await consumer.getmany(timeout_ms=50)).items():
                for message in messages:
                    read.note(partition.partition, message.offset)
                end = messages[-1].offset + 1
                try:
                    await consumer.commit({partition: end})
                except (aiokafka.errors.CommitFailedError, aiokafka.errors.IllegalStateError):
                    continue
                read.note_committed({partition.partition: end})
    finally:
        await consumer.stop()


def aiokafka_member(read: Read, stops: threading.Event) -> None:
    asyncio.run(_aiokafka(read, stops))


@dataclass
class Group:
    broker: Broker
    read: Read
    members: dict[str, tuple[threading.Thread, threading.Event]] = field(default_factory=dict)
    written: int = 0

    def join(self, name: str, work: Member) -> None:
        stops = threading.Event()

        def run() -> None:
            try:
                work(self.read, stops)
            except Exception as error:
                self.read.complaints.append(f"{name} broke off: {error!r}")
                raise

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.members[name] = (thread, stops)
        self.goes_on()

    def leave(self, name: str) -> None:
        thread, stops = self.members.pop(name)
        stops.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), f"{name} hangs"

    def goes_on(self) -> None:
        """Check that the group is stable with these members, which read all that is written now."""
        produce(self.broker.bootstrap, self.read.topic, map(str, range(COUNT)), PARTITIONS)
        self.written += COUNT
        eventually(lambda: len(self.read.seen) == self.written, f"{list(self.members)} read what is written")

        def is_stable() -> bool:
            (group,) = OwnCli(self.broker.bootstrap)("group", "describe", self.read.topic, "--json").json
            owned = [len(member["partitions"]) for member in group["members"]]
            return group["state"] == "Stable" and len(owned) == len(self.members) and min(owned) > 0

        eventually(is_stable, f"the group is stable with {list(self.members)}")
        assert self.read.complaints == []

    def type(self) -> str:
        rows: list[dict[str, Any]] = OwnCli(self.broker.bootstrap)("group", "list", "--json").json
        return next(str(row["type"]) for row in rows if row["group"] == self.read.topic)


@contextmanager
def group(broker: Broker, topic: str) -> Iterator[Group]:
    made = Group(broker, Read(topic, broker.bootstrap))
    try:
        yield made
    finally:
        for name in list(made.members):
            made.leave(name)


@long_only("members of three clients in one group change its protocol")
def test_members_are_replaced_one_after_the_other(broker: Broker, new_topic: TopicMaker) -> None:
    with group(broker, new_topic(PARTITIONS)) as members:
        members.join("kafka-python", kafka_python)
        members.join("aiokafka", aiokafka_member)
        members.join("confluent", confluent("classic"))
        assert members.type() == "classic"
        members.join("new", confluent("consumer"))
        assert members.type() == "consumer"
        for name in ("kafka-python", "aiokafka", "confluent"):
            members.leave(name)
            members.goes_on()
        # And back.
        members.join("aiokafka", aiokafka_member)
        members.join("kafka-python", kafka_python)
        members.leave("new")
        members.goes_on()
        assert members.type() == "classic"
