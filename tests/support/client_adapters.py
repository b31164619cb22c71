"""Every client behind the same calls: write records to a topic, read what it holds, and more of the kind.

A writer returns the offset that each record was acknowledged with. A reader takes each partition from its
start, in the order of the offsets, and stops after the wanted number of records; too few within
READ_TIMEOUT_S is an error. No reader is a member of a group.

A looker finds offsets in a topic of two partitions, and reads the first one from an offset to its end. A
member joins a group, reads, commits and leaves. An admin creates, lists and deletes topics.
"""

import asyncio
import base64
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin

from tests.support import client_tools
from tests.support.client_samples import Headers, Record, Stored
from tests.support.polling import PATIENCE_S

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
READ_TIMEOUT_S = PATIENCE_S

Writer = Callable[[str, str, Sequence[Record], str], list[int]]
Reader = Callable[[str, str, int, int], list[Stored]]
Member = Callable[[str, str, str, int], int]
"""(bootstrap, topic, group, count) -> number of records; all that is there where the client cannot count."""


class Looked(NamedTuple):
    """First and next offset of each partition, the offset of a time in the first, and its last values."""

    ends: list[tuple[int, int]]
    at_time: int
    values: list[bytes]


Looker = Callable[[str, str, int, int], Looked]
"""(bootstrap, topic, timestamp_ms, offset to read from)"""


class Admin(NamedTuple):
    """Topics by one client."""

    create: Callable[[str, str, int], object]
    topics: Callable[[str], Mapping[str, int]]
    delete: Callable[[str, str], object]


# -- confluent-kafka (librdkafka)


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


def confluent_consumer(
    bootstrap: str, topic: str, partitions: int, settings: Mapping[str, Any] | None = None
) -> confluent_kafka.Consumer:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
            **(settings or {}),
        }
    )
    start = confluent_kafka.OFFSET_BEGINNING
    consumer.assign([confluent_kafka.TopicPartition(topic, number, start) for number in range(partitions)])
    return consumer


def confluent_read(
    bootstrap: str, topic: str, partitions: int, count: int, settings: Mapping[str, Any] | None = None
) -> list[Stored]:
    consumer = confluent_consumer(bootstrap, topic, partitions, settings)
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


def _confluent_look(bootstrap: str, topic: str, timestamp_ms: int, offset: int) -> Looked:
    places = [confluent_kafka.TopicPartition(topic, partition) for partition in (0, 1)]
    with closing(confluent_consumer(bootstrap, topic, 0)) as consumer:
        ends = [consumer.get_watermark_offsets(place, READ_TIMEOUT_S) for place in places]
        asked = [confluent_kafka.TopicPartition(topic, 0, timestamp_ms)]
        (found,) = consumer.offsets_for_times(asked, READ_TIMEOUT_S)
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, offset)])
        messages = consumer.consume(ends[0][1] - offset, READ_TIMEOUT_S)
    return Looked(ends, found.offset, [message.value() or b"" for message in messages])


def _confluent_join(bootstrap: str, topic: str, group: str, count: int) -> int:
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    with closing(confluent_kafka.Consumer({**settings, "enable.auto.commit": False})) as consumer:
        consumer.subscribe([topic])
        read = len(consumer.consume(count, READ_TIMEOUT_S))
        consumer.commit(asynchronous=False)
    return read


def _confluent_admin(bootstrap: str) -> confluent_kafka.admin.AdminClient:
    return confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})


def _confluent_create(bootstrap: str, name: str, partitions: int) -> None:
    admin = _confluent_admin(bootstrap)
    admin.create_topics([confluent_kafka.admin.NewTopic(name, partitions, 1)])[name].result(READ_TIMEOUT_S)


def _confluent_topics(bootstrap: str) -> Mapping[str, int]:
    found = _confluent_admin(bootstrap).list_topics(timeout=READ_TIMEOUT_S).topics
    return {name: len(topic.partitions) for name, topic in found.items()}


def _confluent_delete(bootstrap: str, name: str) -> None:
    admin = _confluent_admin(bootstrap)
    admin.delete_topics([name])[name].result(READ_TIMEOUT_S)


# -- kafka-python


def kafka_python_write(
    bootstrap: str, topic: str, records: Sequence[Record], codec: str, **settings: Any
) -> list[int]:
    compression = None if codec == "none" else codec
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap, acks="all", compression_type=compression, **settings
    )
    try:
        sent = [
            producer.send(topic, **vars(record) | {"headers": list(record.headers)}) for record in records
        ]
        return [future.get(timeout=READ_TIMEOUT_S).offset for future in sent]
    finally:
        producer.close()


def _kafka_python_stored(message: Any) -> Stored:
    headers = tuple((name, bytes(value)) for name, value in message.headers)
    record = Record(message.partition, message.key, message.value, headers, message.timestamp)
    return Stored(message.offset, record)


def kafka_python_read(
    bootstrap: str, topic: str, partitions: int, count: int, **settings: Any
) -> list[Stored]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        consumer_timeout_ms=int(READ_TIMEOUT_S * 1000),
        check_crcs=True,
        **settings,
    )
    try:
        consumer.assign([kafka.TopicPartition(topic, number) for number in range(partitions)])
        consumer.seek_to_beginning()
        stored = [_kafka_python_stored(message) for message in islice(consumer, count)]
    finally:
        consumer.close()
    assert len(stored) == count, f"{len(stored)} of {count} records came"
    return stored


def _kafka_python_look(bootstrap: str, topic: str, timestamp_ms: int, offset: int) -> Looked:
    places = [kafka.TopicPartition(topic, partition) for partition in (0, 1)]
    with closing(kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=None)) as consumer:
        assert topic in consumer.topics()
        assert consumer.partitions_for_topic(topic) == {0, 1}
        firsts, nexts = consumer.beginning_offsets(places), consumer.end_offsets(places)
        found = consumer.offsets_for_times({places[0]: timestamp_ms})[places[0]]
        assert found.timestamp == timestamp_ms
        consumer.assign(places[:1])
        consumer.seek(places[0], offset)
        values = [message.value for message in islice(consumer, nexts[places[0]] - offset)]
        assert consumer.position(places[0]) == nexts[places[0]]
    return Looked([(firsts[place], nexts[place]) for place in places], found.offset, values)


def _kafka_python_join(bootstrap: str, topic: str, group: str, count: int) -> int:
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "consumer_timeout_ms": int(READ_TIMEOUT_S * 1000),
    }
    with closing(kafka.KafkaConsumer(topic, **settings)) as consumer:
        read = len(list(islice(consumer, count)))
        consumer.commit()
    return read


def _by_kafka_python(bootstrap: str, call: Callable[[kafka.admin.KafkaAdminClient], Any]) -> Any:
    with closing(kafka.admin.KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        return call(admin)


def _kafka_python_topics(bootstrap: str) -> Mapping[str, int]:
    described = _by_kafka_python(bootstrap, lambda admin: admin.describe_topics())
    return {topic["name"]: len(topic["partitions"]) for topic in described}


# -- aiokafka


async def _aiokafka_write(bootstrap: str, topic: str, records: Sequence[Record], codec: str) -> list[int]:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=True,
        compression_type=None if codec == "none" else codec,
    )
    await producer.start()
    try:
        sent = [
            await producer.send(topic, **vars(record) | {"headers": list(record.headers)})
            for record in records
        ]
        return [(await asyncio.wait_for(future, READ_TIMEOUT_S)).offset for future in sent]
    finally:
        await producer.stop()


def aiokafka_write(bootstrap: str, topic: str, records: Sequence[Record], codec: str) -> list[int]:
    return asyncio.run(_aiokafka_write(bootstrap, topic, records, codec))


async def _aiokafka_read(
    bootstrap: str, topic: str, partitions: int, count: int, settings: Mapping[str, Any]
) -> list[Stored]:
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=None, check_crcs=True, **settings
    )
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


def aiokafka_read(bootstrap: str, topic: str, partitions: int, count: int, **settings: Any) -> list[Stored]:
    return asyncio.run(_aiokafka_read(bootstrap, topic, partitions, count, settings))


async def _aiokafka_look(bootstrap: str, topic: str, timestamp_ms: int, offset: int) -> Looked:
    places = [aiokafka.TopicPartition(topic, partition) for partition in (0, 1)]
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
    await consumer.start()
    try:
        firsts, nexts = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
        found = (await consumer.offsets_for_times({places[0]: timestamp_ms}))[places[0]]
        consumer.assign(places[:1])
        consumer.seek(places[0], offset)
        got = [
            await asyncio.wait_for(consumer.getone(), READ_TIMEOUT_S)
            for _ in range(nexts[places[0]] - offset)
        ]
    finally:
        await consumer.stop()
    ends = [(firsts[place], nexts[place]) for place in places]
    return Looked(ends, found.offset, [message.value for message in got])


async def _aiokafka_join(bootstrap: str, topic: str, group: str, count: int) -> int:
    settings = {"bootstrap_servers": bootstrap, "group_id": group, "auto_offset_reset": "earliest"}
    consumer = aiokafka.AIOKafkaConsumer(topic, **settings)
    await consumer.start()
    try:
        for _ in range(count):
            await asyncio.wait_for(consumer.getone(), READ_TIMEOUT_S)
    finally:
        # It commits when it stops.
        await consumer.stop()
    return count


# -- kcat (librdkafka)

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


def kcat(bootstrap: str, *arguments: str, stdin: bytes = b"") -> bytes:
    return client_tools.run([client_tools.program("kcat"), "-q", "-b", bootstrap, *arguments], stdin)


def kcat_read(bootstrap: str, topic: str, partitions: int, count: int) -> list[Stored]:
    """Read all partitions of the topic, whatever `partitions` is."""
    del partitions
    asked = ("-C", "-t", topic, "-X", "check.crcs=true", "-o", "beginning", "-c", str(count))
    return list(_kcat_records(kcat(bootstrap, *asked, "-D", "", "-f", KCAT_FORMAT)))


def _kcat_look(bootstrap: str, topic: str, timestamp_ms: int, offset: int) -> Looked:
    def query(partition: int, what: int) -> int:
        return int(kcat(bootstrap, "-Q", "-t", f"{topic}:{partition}:{what}").split()[-1])

    ends = [(query(partition, -2), query(partition, -1)) for partition in (0, 1)]
    values = kcat(bootstrap, "-C", "-t", topic, "-p", "0", "-e", "-o", str(offset)).splitlines()
    return Looked(ends, query(0, timestamp_ms), values)


# -- franz-go


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

    def read(
        self, bootstrap: str, topic: str, partitions: int, count: int, what: str = "consume"
    ) -> list[Stored]:
        output = self.run(what, bootstrap, topic, str(partitions), str(count))
        return [_franz_stored(line) for line in output.splitlines()]


def _franz_topics(bootstrap: str) -> Mapping[str, int]:
    rows = (line.split() for line in Franz().run("topics", bootstrap).decode().splitlines())
    return {name: int(partitions) for name, partitions in rows}


# -- Kafka's own tools


CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
_OFFSETS, _TOPICS = "org.apache.kafka.tools.GetOffsetShell", "org.apache.kafka.tools.TopicCommand"


def java_consume(bootstrap: str, topic: str, *arguments: str) -> list[str]:
    """The lines that the console consumer prints."""
    about = ("--bootstrap-server", bootstrap, "--topic", topic)
    return client_tools.kafka_tool(CONSUMER, *about, *arguments).splitlines()


def _java_look(bootstrap: str, topic: str, timestamp_ms: int, offset: int) -> Looked:
    def query(what: int) -> list[int]:
        asked = ("--bootstrap-server", bootstrap, "--topic", topic, "--time", str(what))
        rows = client_tools.kafka_tool(_OFFSETS, *asked).splitlines()
        return [int(row.rpartition(":")[2] or -1) for row in sorted(rows)]

    ends = list(zip(query(-2), query(-1), strict=True))
    place = ("--partition", "0", "--offset", str(offset), "--max-messages", str(ends[0][1] - offset))
    values = [line.encode() for line in java_consume(bootstrap, topic, *place)]
    return Looked(ends, query(timestamp_ms)[0], values)


def _java_join(bootstrap: str, topic: str, group: str, count: int) -> int:
    shown = ("--formatter-property", "print.offset=true", "--formatter-property", "print.value=false")
    limits = ("--group", group, "--from-beginning", "--max-messages", str(count))
    return len(java_consume(bootstrap, topic, *limits, *shown))


def _java_topics(bootstrap: str) -> Mapping[str, int]:
    of_partition = r"Topic: (\S+)\s+Partition: \d+\s+Leader: \d+\s+Replicas: \d+\s+Isr: \d+"
    return Counter(re.findall(of_partition, _java_topic(bootstrap, "--describe")))


def _java_topic(bootstrap: str, *arguments: str) -> str:
    return client_tools.kafka_tool(_TOPICS, "--bootstrap-server", bootstrap, *arguments)


def _values(stored: Sequence[Stored]) -> list[str]:
    return [(one.record.value or b"").decode() for one in stored]


def _kcat_committed(bootstrap: str, topic: str, _: int) -> list[str]:
    settings = ("-X", "isolation.level=read_committed", "-X", "check.crcs=true")
    return kcat(bootstrap, "-C", "-t", topic, "-o", "beginning", "-e", *settings).decode().split()


def _java_committed(bootstrap: str, topic: str, count: int) -> list[str]:
    limits = ("--isolation-level", "read_committed", "--max-messages", str(count))
    return java_consume(bootstrap, topic, "--from-beginning", *limits)


COMMITTED_READERS: Mapping[str, Callable[[str, str, int], list[str]]] = {
    "confluent": lambda bootstrap, topic, count: _values(
        confluent_read(bootstrap, topic, 1, count, {"isolation.level": "read_committed"})
    ),
    "kafka-python": lambda bootstrap, topic, count: _values(
        kafka_python_read(bootstrap, topic, 1, count, isolation_level="read_committed")
    ),
    "aiokafka": lambda bootstrap, topic, count: _values(
        aiokafka_read(bootstrap, topic, 1, count, isolation_level="read_committed")
    ),
    "franz": lambda bootstrap, topic, count: _values(Franz().read(bootstrap, topic, 1, count, "committed")),
    "kcat": _kcat_committed,
    "java": _java_committed,
}
"""(bootstrap, topic of one partition, count) -> values of records of committed transactions"""
WRITERS: Mapping[str, Writer] = {
    "confluent": confluent_write,
    "kafka-python": kafka_python_write,
    "aiokafka": aiokafka_write,
}
READERS: Mapping[str, Reader] = {
    "confluent": confluent_read,
    "kafka-python": kafka_python_read,
    "aiokafka": aiokafka_read,
    "kcat": kcat_read,
}
LOOKERS: Mapping[str, Looker] = {
    "confluent": _confluent_look,
    "kafka-python": _kafka_python_look,
    "aiokafka": lambda *about: asyncio.run(_aiokafka_look(*about)),
    "kcat": _kcat_look,
    "java": _java_look,
}
MEMBERS: Mapping[str, Member] = {
    "confluent": _confluent_join,
    "kafka-python": _kafka_python_join,
    "aiokafka": lambda *about: asyncio.run(_aiokafka_join(*about)),
    "franz": lambda bootstrap, topic, group, _: int(Franz().run("join", bootstrap, topic, group)),
    "java": _java_join,
}
ADMINS: Mapping[str, Admin] = {
    "confluent": Admin(_confluent_create, _confluent_topics, _confluent_delete),
    "kafka-python": Admin(
        lambda bootstrap, name, partitions: _by_kafka_python(
            bootstrap, lambda admin: admin.create_topics([kafka.admin.NewTopic(name, partitions, 1)])
        ),
        _kafka_python_topics,
        lambda bootstrap, name: _by_kafka_python(bootstrap, lambda admin: admin.delete_topics([name])),
    ),
    "franz": Admin(
        lambda bootstrap, name, partitions: Franz().run("create", bootstrap, name, str(partitions)),
        _franz_topics,
        lambda bootstrap, name: Franz().run("delete", bootstrap, name),
    ),
    "java": Admin(
        lambda bootstrap, name, partitions: _java_topic(
            bootstrap, "--create", "--topic", name, "--partitions", str(partitions)
        ),
        _java_topics,
        lambda bootstrap, name: _java_topic(bootstrap, "--delete", "--topic", name),
    ),
}
