"""Clients that write and read all the time and note down what they are told."""

import itertools
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.chaos.history import OFFSET_UNKNOWN, History, Read, RecordId
from tests.chaos.killer import started
from tests.support import real_brokers
from tests.support.polling import comes, until

TOPIC = "chaos"
PARTITIONS = 4
PRODUCERS = 2
SEGMENT_BYTES = 1 << 20
# Bytes that no codec makes much smaller, so that segments roll.
PADDING = random.Random(0).randbytes(2000)

# Most of the time it waits for a broker that comes again: what it sends meanwhile costs more than all else.
# Whatever dies, something is under way, since so many records come at once, forty times a second.
RECORDS_PER_S = 1_000
PACE_RECORDS = 25
DELIVERY_TIMEOUT_S = 120
READ_TIMEOUT_S = 60

IDEMPOTENT = {
    "acks": "all",
    "enable.idempotence": True,
    "max.in.flight.requests.per.connection": 5,
    "linger.ms": 2,
    "batch.num.messages": 20,
    "message.timeout.ms": DELIVERY_TIMEOUT_S * 1000,
}
# By producer: the broker looks into compressed batches another way than into others.
COMPRESSIONS = ("none", "lz4")
# A broker that was just killed is asked again at once, and nobody prints that it was away.
# A request without an answer for so long hangs: whatever dies, its connection must close.
ANSWER_WITHIN_S = 30
IMPATIENT = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "socket.timeout.ms": ANSWER_WITHIN_S * 1000,
    "log_level": 0,
}


# librdkafka looks for the coordinator of every consumer's group, also where it has no use for one.
NO_GROUPS = KafkaError.UNSUPPORTED_VERSION


def encoded(record: RecordId) -> bytes:
    return b"%d %d %d " % record + PADDING


def decoded(value: bytes) -> RecordId:
    producer, partition, number, padding = value.split(b" ", 3)
    assert padding == PADDING, "a record's value is damaged"
    return RecordId(int(producer), int(partition), int(number))


def create_topic(bootstrap: str) -> None:
    real_brokers.create_topic(bootstrap, TOPIC, PARTITIONS, {"segment.bytes": str(SEGMENT_BYTES)})


def _read(message: Message) -> Read:
    value, offset = message.value(), message.offset()
    assert isinstance(value, bytes)
    assert offset is not None
    record = decoded(value)
    assert record.partition == message.partition(), f"{record} came from partition {message.partition()}"
    return Read(offset, record)


def _reader(bootstrap: str, note: Callable[[KafkaError], None]) -> Consumer:
    settings = {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
    consumer = Consumer(
        {**settings, **IMPATIENT, "check.crcs": True, "auto.offset.reset": "error", "error_cb": note}
    )
    consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    return consumer


def _end_offset(consumer: Consumer, partition: int) -> int:
    """Asked again while a broker that has just started says that it does not lead the partition yet."""
    found: list[int] = []

    def is_told() -> bool:
        try:
            found.append(consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=5)[1])
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            if not error.retriable() and error.code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
        return bool(found)

    until(is_told, f"the broker leads partition {partition}")
    return found[0]


@dataclass
class Workload:
    """The clients, each in a thread, writing into one history. Each list and set has one writer."""

    bootstrap: str
    history: History = field(default_factory=History)
    sent: list[list[RecordId]] = field(default_factory=lambda: [[] for _ in range(PRODUCERS)])
    acked: list[dict[RecordId, int]] = field(default_factory=lambda: [{} for _ in range(PRODUCERS)])
    stopping: threading.Event = field(default_factory=threading.Event)
    abandoned: threading.Event = field(default_factory=threading.Event)
    finished: threading.Event = field(default_factory=threading.Event)
    reader: threading.Thread = field(init=False)
    writers: list[threading.Thread] = field(init=False)

    def start(self) -> None:
        complain = self.history.complaints.append
        self.reader = started(complain, self._consume)
        self.writers = [started(complain, self._produce, number) for number in range(PRODUCERS)]

    def _note_client_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.history.complaints.append(f"fatal: {error}")
        elif error.code() == KafkaError._TIMED_OUT:
            self.history.complaints.append(f"no answer within {ANSWER_WITHIN_S} s: {error}")

    def _produce(self, number: int) -> None:
        sent, acked = self.sent[number], self.acked[number]
        settings = {"bootstrap.servers": self.bootstrap, **IDEMPOTENT, **IMPATIENT}
        settings["compression.type"] = COMPRESSIONS[number % len(COMPRESSIONS)]
        producer = Producer({**settings, "error_cb": self._note_client_error})

        def note(record: RecordId) -> Callable[[KafkaError | None, Message], None]:
            def delivered(error: KafkaError | None, message: Message) -> None:
                if error is None:
                    offset = message.offset()
                    acked[record] = OFFSET_UNKNOWN if offset is None else max(offset, OFFSET_UNKNOWN)
                else:
                    self.history.complaints.append(f"{record} was not delivered: {error}")

            return delivered

        started = time.monotonic()
        for count in itertools.count():
            record = RecordId(number, count % PARTITIONS, count // PARTITIONS)
            sent.append(record)
            while True:
                try:
                    producer.produce(
                        TOPIC, encoded(record), partition=record.partition, on_delivery=note(record)
                    )
                    break
                except BufferError:
                    producer.poll(0.05)
                    if self.abandoned.is_set():
                        return
            if count % PACE_RECORDS == 0:
                producer.poll(max(0.0, started + count / RECORDS_PER_S - time.monotonic()))
                if self.stopping.is_set():
                    break
        left = producer.flush(0 if self.abandoned.is_set() else DELIVERY_TIMEOUT_S)
        if left:
            self.history.complaints.append(f"producer {number}: {left} records neither delivered nor refused")

    def _consume(self) -> None:
        consumer = _reader(self.bootstrap, self._note_client_error)
        while not self.finished.is_set():
            for message in consumer.consume(500, timeout=0.1):
                error = message.error()
                if error is None:
                    self.history.live.append(_read(message))
                elif not error.retriable() and error.code() != NO_GROUPS:
                    self.history.complaints.append(f"the live reader was told: {error}")
        consumer.close()

    def progress(self) -> tuple[int, int]:
        """Records acknowledged and records read so far."""
        return sum(map(len, self.acked)), len(self.history.live)

    def abandon(self) -> None:
        """Ends the clients when there is no broker left that could answer them."""
        self.abandoned.set()
        self.stopping.set()
        self.finished.set()
        for thread in (*self.writers, self.reader):
            thread.join(DELIVERY_TIMEOUT_S)

    def stop(self) -> None:
        """Lets the writers finish what they have begun and the reader see it."""
        self.stopping.set()
        for writer in self.writers:
            writer.join(DELIVERY_TIMEOUT_S + 10)
        comes(lambda: len(self.history.live) >= self.progress()[0])
        acked, read = self.progress()
        if read < acked:
            self.history.complaints.append(f"the live reader has got {read} of {acked} acknowledged records")
        self.finished.set()
        self.reader.join(READ_TIMEOUT_S)
        if any(thread.is_alive() for thread in (*self.writers, self.reader)):
            self.history.complaints.append("a client hangs")
        self.history.sent = set(itertools.chain.from_iterable(self.sent))
        self.history.acked = {record: offset for noted in self.acked for record, offset in noted.items()}

    def read_back(self) -> None:
        """Reads the whole topic into the history."""
        consumer = _reader(self.bootstrap, self._note_client_error)
        deadline = time.monotonic() + READ_TIMEOUT_S
        ends = [_end_offset(consumer, partition) for partition in range(PARTITIONS)]
        while len(self.history.final) < sum(ends):
            if time.monotonic() > deadline:
                self.history.complaints.append(
                    f"only {len(self.history.final)} of {sum(ends)} records could be read"
                )
                break
            for message in consumer.consume(1000, timeout=0.5):
                error = message.error()
                if error is None:
                    self.history.final.append(_read(message))
                elif not error.retriable() and error.code() != NO_GROUPS:
                    self.history.complaints.append(f"the last reader was told: {error}")
        consumer.close()
