"""Members of a group that read and commit while processes die, and somebody who watches what is committed.

In the consumer protocol (KIP-848) the last member comes and goes, since the death of a coordinator alone
moves no partition.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from confluent_kafka import Consumer, ConsumerGroupState, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.chaos.killer import started

TOPIC, GROUP = "watched", "members"
PARTITIONS = 3
COMMIT_EVERY = 10
PACE_S = 0.002
WATCH_S = 0.05
REQUEST_S = 5.0
STOP_S = 60.0
# A member whose answer died with the coordinator joins anew; the group waits so long for what it was before.
SESSION_MS = 2000
HEARTBEAT_MS = 300
# What the settings of clients are in the classic protocol; a lost answer must not cost a member its place.
CONSUMER_PROTOCOL = {
    "group.consumer.session.timeout.ms": "10000",
    "group.consumer.min.session.timeout.ms": "10000",
    "group.consumer.heartbeat.interval.ms": str(HEARTBEAT_MS),
    "group.consumer.min.heartbeat.interval.ms": str(HEARTBEAT_MS),
    "group.consumer.assignment.interval.ms": "0",
}
CLASSIC = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
VISIT_COMMITS = 3


@dataclass
class Members:
    """By partition, `read`: the offsets that were read; `committed`: what a commit's answer promised."""

    bootstrap: str
    protocol: str = "classic"
    count: int = 2
    read: dict[int, set[int]] = field(default_factory=lambda: {p: set() for p in range(PARTITIONS)})
    committed: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))
    written: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))
    commits: int = 0
    complaints: list[str] = field(default_factory=list)
    described: str = "not described"
    _stopping: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        comes_and_goes = self._visit if self.protocol == "consumer" else self._stay
        works = [self._write, self._watch, *([self._stay] * (self.count - 1)), comes_and_goes]
        self._threads = [started(self.complaints.append, work) for work in works]

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(STOP_S)
        self.complaints += ["a client of the group hangs"] * sum(t.is_alive() for t in self._threads)

    abandon = stop

    def progress(self) -> tuple[int, int]:
        """Records that were read, and records that were committed."""
        return sum(map(len, self.read.values())), sum(self.committed.values())

    def is_stable(self) -> bool:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        described = admin.describe_consumer_groups([GROUP])[GROUP].result(REQUEST_S)
        held = [(member.member_id, member.assignment.topic_partitions) for member in described.members]
        self.described = f"{described.state.name}, with members {held}"
        return bool(described.state is ConsumerGroupState.STABLE)

    def _write(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )

        def delivered(error: object, message: object) -> None:
            if error is None:
                self.written[message.partition()] += 1  # type: ignore[attr-defined]

        while not self._stopping.wait(PACE_S):
            producer.produce(TOPIC, b"value", on_delivery=delivered)
            producer.poll(0)
        producer.flush(STOP_S)

    def _consumer(self, **settings: object) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "group.protocol": self.protocol,
                **(CLASSIC if self.protocol == "classic" else {}),
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
                **settings,
            }
        )

    def _stay(self) -> None:
        self._consume(lambda _: False)

    def _visit(self) -> None:
        while not self._stopping.is_set():
            self._consume(lambda commits: commits >= VISIT_COMMITS)

    def _consume(self, leaves: Callable[[int], bool]) -> None:
        consumer = self._consumer()
        consumer.subscribe([TOPIC])
        since_commit = commits = 0
        while not self._stopping.is_set() and not leaves(commits):
            message = consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            with self._lock:
                self.read[partition].add(offset)
                if offset < self.committed[partition]:
                    committed = self.committed[partition]
                    self.complaints.append(
                        f"partition {partition}: read {offset} again, {committed} was committed"
                    )
            since_commit += 1
            if since_commit >= COMMIT_EVERY and self._commit(consumer):
                since_commit, commits = 0, commits + 1
        consumer.close()

    def _commit(self, consumer: Consumer) -> bool:
        """A refused commit is no promise: the group rebalances, or its coordinator is away."""
        try:
            done = consumer.commit(asynchronous=False) or []
        except KafkaException:
            return False
        with self._lock:
            for each in done:
                if each.error is None and each.offset >= 0:
                    self.committed[each.partition] = max(self.committed[each.partition], each.offset)
            self.commits += 1
        return True

    def _watch(self) -> None:
        """Check that committed offsets never go back, or behind what was promised before we asked."""
        watcher = self._consumer()
        seen = dict.fromkeys(range(PARTITIONS), 0)
        while not self._stopping.wait(WATCH_S):
            with self._lock:
                promised = dict(self.committed)
            found = self.fetch(watcher)
            for partition, offset in found.items():
                if offset < max(promised[partition], seen[partition]):
                    self.complaints.append(
                        f"partition {partition} is at {offset}, it was at {seen[partition]}, "
                        f"{promised[partition]} was promised"
                    )
                seen[partition] = offset
        watcher.close()

    def fetch(self, consumer: Consumer) -> dict[int, int]:
        """The committed offsets; nothing if the broker did not answer in time."""
        wanted = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        try:
            answer = consumer.committed(wanted, timeout=REQUEST_S)
        except KafkaException:
            return {}
        return {each.partition: max(each.offset, 0) for each in answer if each.error is None}

    def check(self) -> list[str]:
        """After a restart: the committed offsets are there, and all before them was read by somebody."""
        consumer = self._consumer()
        found: dict[int, int] = {}
        deadline = time.monotonic() + STOP_S
        while not found and time.monotonic() < deadline:
            found = self.fetch(consumer)
        consumer.close()
        complaints = list(self.complaints)
        for partition in range(PARTITIONS):
            offset = found.get(partition, -1)
            if offset < self.committed[partition]:
                complaints.append(
                    f"partition {partition}: {offset} is committed, {self.committed[partition]} was promised"
                )
            missing = set(range(offset)) - self.read[partition]
            if missing:
                complaints.append(
                    f"partition {partition}: {len(missing)} records were committed and not read"
                )
        return complaints
