"""Every client behind the same two calls: `write` records to a topic, `read` what the topic holds.

A writer returns the offset that each record was acknowledged with. A reader takes each partition from its
start, in the order of the offsets, and stops after the wanted number of records; too few within
READ_TIMEOUT_S is an error. No reader is a member of a group.
"""

import asyncio
import base64
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import aiokafka
import confluent_kafka
import kafka

from tests.support import client_tools
from tests.support.client_samples import Headers, Record, Stored
from tests.support.polling import PATIENCE_S

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
READ_TIMEOUT_S = PATIENCE_S

Writer = Callable[[str, str, Sequence[Record], str], list[int]]
Reader = Callable[[str, str, int, int], list[Stored]]


# -- confluent-kafka (librdkafka)
# --------------------------------------------------------------------------------


def confluent_write(
    bootstrap: str,
    topic: str,
    records: Sequence[Record],
    codec: str,
    settings: Mapping[str, Any] | None = None,
) -> list[int]:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "compression.type": codec, **(settings or {})}
    )
    offsets: dict[int, int] = {}

    def delivered(
        number: int,
    ) -> Callable[[confluent_kafka.KafkaError | None, confluent_kafka.Message], None]:
        def note(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            assert error is None, error
            assert message.partition() == records[number].partition
            offset = message.offset()
            assert offset is not None
            offsets[number] = offset

        return note

    for number, r in enumerate(records):
        producer.produce(
            topic,
            value=r.value,
            key=r.key,
            partition=r.partition,
            timestamp=r.timestamp_ms,
            headers=list(r.headers),
            on_delivery=delivered(number),
        )
    assert producer.flush(READ_TIMEOUT_S) == 0, "records were not acknowledged in time"
    return [offsets[number] for number in range(len(records))]


def confluent_write_idempotent(
    bootstrap: str, topic: str, records: Sequence[Record], codec: str
) -> list[int]:
    return confluent_write(bootstrap, topic, records, codec, {"enable.idempotence": True})


def confluent_stored(message: confluent_kafka.Message) -> Stored:
    assert message.error() is None, message.error()
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    headers: Any = message.headers() or ()
    kind, timestamp_ms = message.timestamp()
    assert kind == confluent_kafka.TIMESTAMP_CREATE_TIME
    key: Any = message.key()
    value: Any = message.value()
    return Stored(offset, Record(partition, key, value, tuple(headers), timestamp_ms))


def confluent_consumer(bootstrap: str, topic: str, partitions: int) -> confluent_kafka.Consumer:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    start = confluent_kafka.OFFSET_BEGINNING
    consumer.assign([confluent_kafka.TopicPartition(topic, number, start) for number in range(partitions)])
    return consumer


def confluent_read(bootstrap: str, topic: str, partitions: int, count: int) -> list[Stored]:
    consumer = confluent_consumer(bootstrap, topic, partitions)
    stored: list[Stored] = []
    deadline = time.monotonic() + READ_TIMEOUT_S
    try:
        while len(stored) < count:
            assert time.monotonic() < deadline, f"{len(stored)} of {count} records came"
            stored += [
                confluent_stored(message) for message in consumer.consume(count - len(stored), timeout=0.5)
            ]
    finally:
        consumer.close()
    return stored


# -- kafka-python
# ------------------------------------------------------------------------------------------------


def kafka_python_write(bootstrap: str, topic: str, records: Sequence[Record], codec: str) -> list[int]:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap, acks="all", compression_type=None if codec == "none" else codec
    )
    try:
        sent = [
            producer.send(
                topic,
                value=r.value,
                key=r.key,
                headers=list(r.headers),
                partition=r.partition,
                timestamp_ms=r.timestamp_ms,
            )
            for r in records
        ]
        return [future.get(timeout=READ_TIMEOUT_S).offset for future in sent]
    finally:
        producer.close()


def _kafka_python_stored(message: Any) -> Stored:
    headers = tuple((name, bytes(value)) for name, value in message.headers)
    record = Record(message.partition, message.key, message.value, headers, message.timestamp)
    return Stored(message.offset, record)


def kafka_python_read(bootstrap: str, topic: str, partitions: int, count: int) -> list[Stored]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        consumer_timeout_ms=int(READ_TIMEOUT_S * 1000),
        check_crcs=True,
    )
    try:
        consumer.assign([kafka.TopicPartition(topic, number) for number in range(partitions)])
        consumer.seek_to_beginning()
        stored = [_kafka_python_stored(message) for message in islice(consumer, count)]
    finally:
        consumer.close()
    assert len(stored) == count, f"{len(stored)} of {count} records came"
    return stored


# -- aiokafka
# ----------------------------------------------------------------------------------------------------


async def _aiokafka_write(bootstrap: str, topic: str, records: Sequence[Record], codec: str) -> list[int]:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", compression_type=None if codec == "none" else codec
    )
    await producer.start()
    try:
        sent = [
            await producer.send(
                topic,
                value=r.value,
                key=r.key,
                headers=list(r.headers),
                partition=r.partition,
                timestamp_ms=r.timestamp_ms,
            )
            for r in records
        ]
        return [(await asyncio.wait_for(future, READ_TIMEOUT_S)).offset for future in sent]
    finally:
        await producer.stop()


def aiokafka_write(bootstrap: str, topic: str, records: Sequence[Record], codec: str) -> list[int]:
    return asyncio.run(_aiokafka_write(bootstrap, topic, records, codec))


async def _aiokafka_read(bootstrap: str, topic: str, partitions: int, count: int) -> list[Stored]:
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, check_crcs=True)
    await consumer.start()
    try:
        consumer.assign([aiokafka.TopicPartition(topic, number) for number in range(partitions)])
        await consumer.seek_to_beginning()
        return [
            _kafka_python_stored(await asyncio.wait_for(consumer.getone(), READ_TIMEOUT_S))
            for _ in range(count)
        ]
    finally:
        await consumer.stop()


def aiokafka_read(bootstrap: str, topic: str, partitions: int, count: int) -> list[Stored]:
    return asyncio.run(_aiokafka_read(bootstrap, topic, partitions, count))


# -- kcat (librdkafka)
# -------------------------------------------------------------------------------------------

# Sizes stand before key and value, which may hold any byte; -1 is null. Headers are printed as text.
KCAT_FORMAT = "%p %o %T %K %S\n%k%s%h\n"


def _kcat_headers(text: bytes) -> Headers:
    pairs = (part.partition(b"=") for part in text.split(b",") if part)
    return tuple((name.decode(), value) for name, _, value in pairs)


def _kcat_records(output: bytes) -> Iterator[Stored]:
    at = 0

    def take(size: int) -> bytes | None:
        nonlocal at
        start, at = at, at + max(size, 0)
        return output[start:at] if size >= 0 else None

    while at < len(output):
        line_end = output.index(b"\n", at)
        partition, offset, timestamp_ms, key_bytes, value_bytes = map(int, output[at:line_end].split())
        at = line_end + 1
        key, value = take(key_bytes), take(value_bytes)
        line_end = output.index(b"\n", at)
        headers = _kcat_headers(output[at:line_end])
        at = line_end + 1
        yield Stored(offset, Record(partition, key, value, headers, timestamp_ms))


def kcat_read(bootstrap: str, topic: str, partitions: int, count: int) -> list[Stored]:
    """Read all partitions of the topic, whatever `partitions` is."""
    del partitions
    kcat = [client_tools.program("kcat"), "-q", "-C", "-b", bootstrap, "-t", topic, "-X", "check.crcs=true"]
    output = client_tools.run([*kcat, "-o", "beginning", "-c", str(count), "-D", "", "-f", KCAT_FORMAT])
    return list(_kcat_records(output))


# -- franz-go
# ----------------------------------------------------------------------------------------------------


def _encoded(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _franz_line(record: Record) -> bytes:
    fields = {
        "partition": record.partition,
        "key": _encoded(record.key),
        "value": _encoded(record.value),
        "headers": [{"name": name, "value": _encoded(value)} for name, value in record.headers],
        "timestamp_ms": record.timestamp_ms,
    }
    return json.dumps(fields).encode() + b"\n"


def _franz_stored(line: bytes) -> Stored:
    fields = json.loads(line)
    headers = tuple((header["name"], _decoded(header["value"]) or b"") for header in fields["headers"])
    key, value = _decoded(fields["key"]), _decoded(fields["value"])
    return Stored(fields["offset"], Record(fields["partition"], key, value, headers, fields["timestamp_ms"]))


class Franz:
    """The franz-go program in tests/real_clients/franz; its producer is idempotent, franz-go's default."""

    def __init__(self) -> None:
        self.program = client_tools.franz_program()

    def run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        return client_tools.run([self.program, *arguments], stdin)

    def write(self, bootstrap: str, topic: str, records: Sequence[Record], codec: str) -> list[int]:
        lines = b"".join(map(_franz_line, records))
        return [int(line) for line in self.run("produce", bootstrap, topic, codec, stdin=lines).split()]

    def read(self, bootstrap: str, topic: str, partitions: int, count: int) -> list[Stored]:
        output = self.run("consume", bootstrap, topic, str(partitions), str(count))
        return [_franz_stored(line) for line in output.splitlines()]


WRITERS: Mapping[str, Writer] = {
    "confluent": confluent_write,
    "confluent-idempotent": confluent_write_idempotent,
    "kafka-python": kafka_python_write,
    "aiokafka": aiokafka_write,
}
READERS: Mapping[str, Reader] = {
    "confluent": confluent_read,
    "kafka-python": kafka_python_read,
    "aiokafka": aiokafka_read,
    "kcat": kcat_read,
}
