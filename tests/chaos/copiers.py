"""Copiers from one topic to another, each record exactly once, and readers that note down what they see.

A transaction has the copies of some records, each in several partitions, and the offset behind them. Some are
aborted, and some producers vanish in the middle and leave the rest to their successor, or stay and find out
that they are fenced. librdkafka speaks the first protocol of transactions, the Java client the second one.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.chaos.exactly_once import Copied, Copies, Outcome, Seen, Transaction
from tests.chaos.killer import started
from tests.support.client_tools import java_command, kafka_tool
from tests.support.polling import PATIENCE_S, until
from tests.support.real_brokers import create_topic
from tests.support.transactional_clients import Confluent, Fenced, Open, Program, Refused, Transactional

SOURCE, TARGET, OFFSETS, GROUP = "source", "target", "__consumer_offsets", "copiers"
# One for each partition of the source.
CLIENTS = ("confluent", "java", "confluent")
PARTITIONS = len(CLIENTS)
OFFSETS_PARTITIONS = 4
PLACES = 2
SEGMENT_BYTES = 1 << 20
# What nobody ends is aborted after so long.
TRANSACTION_TIMEOUT_MS = 3000
RECORDS_MAX = 20
# More than they take, and not so much that feeding takes the CPU from them.
FEED_S = 0.01
FED_AT_ONCE = 4
# Where nobody takes them.
FED_MAX = 10_000
WATCH_S = 0.05
REQUEST_S = 5.0
TRANSACTIONS_TOOL = "org.apache.kafka.tools.TransactionsCommand"
ENDED = {"Empty", "CompleteCommit", "CompleteAbort"}

QUIET = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "log_level": 0}


def create_topics(bootstrap: str) -> None:
    for name in (SOURCE, TARGET):
        create_topic(bootstrap, name, PARTITIONS, {"segment.bytes": str(SEGMENT_BYTES)})


def consumer_of(bootstrap: str, isolation: str, **more: object) -> Consumer:
    settings = {"bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False, **QUIET}
    quick = {"check.crcs": True, "fetch.wait.max.ms": 20}
    return Consumer({**settings, **quick, "isolation.level": isolation, **more})


def committed_offset(consumer: Consumer, partition: int) -> int | None:
    """None if the broker did not answer in time."""
    with suppress(KafkaException):
        (found,) = consumer.committed([TopicPartition(SOURCE, partition)], timeout=REQUEST_S)
        if found.error is None:
            return max(found.offset, 0)
    return None


def seen(message: Message) -> Seen:
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None
    assert offset is not None
    assert value is not None
    return Seen(partition, offset, Copied(*map(int, value.split(b"."))))


@dataclass
class Copier:
    """Takes from its partition of the source, with one producer after the other."""

    copiers: Copiers
    source: int
    open: Open
    chance: random.Random
    copied: int = 0
    # It has vanished with an open transaction.
    zombie: Transactional | None = None

    def run(self) -> None:
        with closing(consumer_of(self.copiers.bootstrap, "read_committed")) as consumer:
            try:
                while not self.copiers.stopping.is_set():
                    # Who gets no answer begins anew, and so does who is fenced: by the end of its time.
                    with suppress(Fenced, Refused):
                        self._live(consumer)
            finally:
                # It is not fenced if it has no successor, and would stay connected.
                if self.zombie is not None:
                    self.zombie.close()
                    self.zombie = None

    def _live(self, consumer: Consumer) -> None:
        """Copy until the producer vanishes. Only a zombie is asked for something afterwards."""
        producer = self.open(self.copiers.bootstrap, f"copier-{self.source}", TRANSACTION_TIMEOUT_MS)
        try:
            self._retire()
            position = None
            while position is None:
                position = committed_offset(consumer, self.source)
            while not self.copiers.stopping.is_set():
                consumer.assign([TopicPartition(SOURCE, self.source, position)])
                position = self._copy(producer, consumer, position)
                if position is None:
                    self.zombie = producer
                    return
            # The last transaction has records, and nobody ends it.
            self._write(producer, position, position + 1)
        except AssertionError as error:
            # As long as it is connected.
            error.add_note(self.copiers.under_way())
            raise
        finally:
            if self.zombie is not producer:
                producer.close()

    def _retire(self) -> None:
        """Check that the zombie is fenced: its successor has its transactional id."""
        if (zombie := self.zombie) is None:
            return
        self.zombie = None
        try:
            zombie.commit()
            self.copiers.complain(f"a fenced producer of {self.source} has committed")
        except (Fenced, Refused):
            self.copiers.fenced += 1
        finally:
            zombie.close()

    def _copy(self, producer: Transactional, consumer: Consumer, position: int) -> int | None:
        """Transactions up to one that is not committed; where to go on, None where its end is another's."""
        while not self.copiers.stopping.is_set():
            behind = position + self._taken(consumer)
            if behind == position:
                continue
            number = self._write(producer, position, behind)
            end = self.chance.choices(("commit", "abort", "vanish"), (80, 15, 5))[0]
            if end == "vanish":
                return None
            if end == "abort":
                producer.abort()
                return position
            self.copiers.end(number, Outcome.UNKNOWN)
            producer.commit()
            self.copiers.end(number, Outcome.COMMITTED)
            self.copied += behind - position
            position = behind
        return position

    def _taken(self, consumer: Consumer) -> int:
        """Records of the source have no gaps: their number says which ones they are."""
        taken = consumer.consume(self.chance.randint(1, RECORDS_MAX), timeout=0.1)
        return sum(message.error() is None for message in taken)

    def _write(self, producer: Transactional, first: int, behind: int) -> int:
        """A transaction without its end. Whatever becomes of it, its client has not asked to commit it."""
        number = self.copiers.begin(Transaction(self.source, first, behind, Outcome.ABORTED))
        producer.begin()
        for each in range(first, behind):
            for place in range(PLACES):
                record = Copied(self.source, each, place, number)
                producer.send(TARGET, (self.source + place) % PARTITIONS, ".".join(map(str, record)))
        producer.offsets(GROUP, SOURCE, self.source, behind)
        producer.flush()
        return number


@dataclass
class Copiers:
    """All of them, each in a thread, with who feeds the source, who reads the target, who watches offsets.

    `under_way` tells where requests are, for complaints.
    """

    bootstrap: str
    seed: int
    under_way: Callable[[], str]
    copies: Copies = field(default_factory=lambda: Copies(PLACES))
    fenced: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)
    finished: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _copiers: list[Copier] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)
    _programs: ExitStack = field(default_factory=ExitStack)

    def start(self) -> None:
        for source, name in enumerate(CLIENTS):
            client: Open = Confluent
            if name == "java":
                client = self._programs.enter_context(Program(java_command("Transactions"))).open
            chance = random.Random(self.seed + source)
            self._copiers.append(Copier(self, source, client, chance))
        works = [*(copier.run for copier in self._copiers), self._feed, self._read, self._watch]
        self._threads = [started(self.complain, work) for work in works]

    def stop(self) -> None:
        """The last transactions are left open; readers go on until their time is over and all is read."""
        self.stopping.set()
        copying = self._threads[: len(self._copiers) + 1]
        for thread in copying:
            thread.join(4 * PATIENCE_S)
        self._programs.close()
        until(self._is_ended, "every transaction has its end")
        self.finished.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            if thread.is_alive():
                self.complain("a client hangs")

    def abandon(self) -> None:
        """Ends the clients when there is no broker left that could answer them."""
        self.stopping.set()
        self.finished.set()
        self._programs.close()

    def progress(self) -> tuple[int, int]:
        """Records copied, as far as their clients know, and records read."""
        return sum(copier.copied for copier in self._copiers), len(self.copies.live)

    def complain(self, what: str) -> None:
        self.copies.complaints.append(what)

    def begin(self, transaction: Transaction) -> int:
        with self._lock:
            number = len(self.copies.transactions)
            self.copies.transactions[number] = transaction
            return number

    def end(self, number: int, outcome: Outcome) -> None:
        self.copies.transactions[number] = replace(self.copies.transactions[number], outcome=outcome)

    def _feed(self) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, **QUIET})
        while not self.stopping.wait(FEED_S):
            if len(producer) < FED_MAX:
                for partition in [*range(PARTITIONS)] * FED_AT_ONCE:
                    producer.produce(SOURCE, b"record", partition=partition)
            producer.poll(0)
        if producer.flush(PATIENCE_S):
            self.complain(f"the source does not take records\n{self.under_way()}")

    def _read(self) -> None:
        reader = consumer_of(self.bootstrap, "read_committed")
        reader.assign([TopicPartition(TARGET, each, 0) for each in range(PARTITIONS)])
        while not self.finished.is_set():
            messages = reader.consume(500, timeout=0.1)
            # After an error it asks again by itself.
            self.copies.live += [seen(message) for message in messages if message.error() is None]
        reader.close()

    def _watch(self) -> None:
        """Note down committed offsets, whatever is pending."""
        watcher = consumer_of(self.bootstrap, "read_uncommitted")
        while not self.finished.wait(WATCH_S):
            for partition in range(PARTITIONS):
                if (offset := committed_offset(watcher, partition)) is not None:
                    self.copies.offsets[partition].append(offset)
        watcher.close()

    def _is_ended(self) -> bool:
        with suppress(KafkaException):
            self.copies.ends = ends(self.bootstrap)
        return bool(self.copies.ends) and all(stable == end for stable, end in self.copies.ends.values())

    def read_back(self) -> None:
        """Everything, when all is over."""
        until(self._is_ended, "every transaction has its end")
        reader = consumer_of(self.bootstrap, "read_committed", **{"enable.partition.eof": True})
        reader.assign([TopicPartition(TARGET, each, 0) for each in range(PARTITIONS)])
        open_ends = set(range(PARTITIONS))

        def read_some() -> None:
            for message in reader.consume(1000, timeout=0.1):
                if message.error() is None:
                    self.copies.final.append(seen(message))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    open_ends.discard(message.partition())

        until(lambda: not open_ends, "all is read", read_some)
        for partition in range(PARTITIONS):
            offset = committed_offset(reader, partition)
            self.copies.offsets[partition].append(-1 if offset is None else offset)
        reader.close()
        printed = kafka_tool(TRANSACTIONS_TOOL, "--bootstrap-server", self.bootstrap, "list")
        rows = [line.split() for line in printed.splitlines()[1:]]
        self.copies.left_open = [row[0] for row in rows if row[-1] not in ENDED]


def ends(bootstrap: str) -> dict[tuple[str, int], tuple[int, int]]:
    """The last stable offset and the high watermark of each partition that transactions have written to."""
    found = []
    for isolation in ("read_committed", "read_uncommitted"):
        consumer = consumer_of(bootstrap, isolation)
        of_all = {
            (topic, partition): consumer.get_watermark_offsets(TopicPartition(topic, partition), REQUEST_S)[1]
            for topic, partitions in ((TARGET, PARTITIONS), (OFFSETS, OFFSETS_PARTITIONS))
            for partition in range(partitions)
        }
        consumer.close()
        found.append(of_all)
    stable, end = found
    return {place: (stable[place], end[place]) for place in stable}
