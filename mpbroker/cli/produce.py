"""`mpbroker produce`: each line of standard input becomes a record.

Lines are sent as they come: whatever one read brings is one batch per partition, so that typing is sent at
once and a file in large pieces. Errors that pass (no leader yet, a topic that is just being created) are
tried again; a lost connection is not, because nobody knows whether the batch was written.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence

import msgspec

from mpbroker.cli.client import Client, KafkaError, Topic
from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.partitioner import partition_for
from mpbroker.cli.retry import Retry
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord

READ_BYTES = 512 << 10
CODECS = {codec.name.lower(): codec for codec in Codec}
ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}
# What -X takes: the names that Kafka's and librdkafka's producers have for the two settings there are.
PROPERTIES = {
    "acks": "acks",
    "request.required.acks": "acks",
    "compression.type": "compression",
    "compression.codec": "compression",
}


class Settings(msgspec.Struct, frozen=True):
    """What the flags of the command say."""

    topic: str
    partition: int
    key_separator: str | None
    acks: str
    compression: str


def produce(bootstrap: str, settings: Settings, properties: Sequence[str] = ()) -> None:
    """Sends standard input until it ends."""
    settings = check(with_properties(settings, properties))
    with Client(bootstrap) as client:
        producer = Producer(client, settings)
        for lines in read_lines(sys.stdin.fileno()):
            producer.send(lines)


def with_properties(settings: Settings, properties: Sequence[str]) -> Settings:
    """The settings with what -X changes in them."""
    for text in properties:
        name, _equals, value = text.partition("=")
        if name not in PROPERTIES:
            raise CliError(f"-X knows no {name}; it has {', '.join(PROPERTIES)}", USAGE_ERROR)
        settings = msgspec.structs.replace(settings, **{PROPERTIES[name]: value})
    return settings


def check(settings: Settings) -> Settings:
    """The same settings if there is such a codec and such a kind of acknowledgement."""
    if settings.compression not in CODECS:
        raise CliError(
            f"compression is one of {', '.join(CODECS)}, not '{settings.compression}'", USAGE_ERROR
        )
    if settings.acks not in ACKS:
        raise CliError(f"acks is one of {', '.join(ACKS)}, not '{settings.acks}'", USAGE_ERROR)
    return settings


def read_lines(descriptor: int, size: int = READ_BYTES) -> Iterator[list[bytes]]:
    """Lines without their ends, in groups as they arrive; a last line needs no end."""
    rest: list[bytes] = []
    while chunk := os.read(descriptor, size):
        *lines, last = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join([*rest, lines[0]])
            rest = []
            yield lines
        rest.append(last)
    if tail := b"".join(rest):
        yield [tail]


class Producer:
    """Turns lines into batches and sees them written."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._separator = settings.key_separator.encode() if settings.key_separator else None
        self._acks = ACKS[settings.acks]
        self._codec = CODECS[settings.compression]
        self._topic = self._find_topic()
        self._next_partition = 0

    def send(self, lines: list[bytes]) -> None:
        """Returns when all these lines are acknowledged."""
        pending = {
            partition: build_batch(records, codec=self._codec)
            for partition, records in self._distribute(lines).items()
        }
        retry = Retry()
        while pending:
            results = self._client.produce(self._topic, pending, self._acks)
            pending = {index: batch for index, batch in pending.items() if results.get(index) is not None}
            for error in filter(None, results.values()):
                retry.pause_or_raise(error)
                self._topic = self._find_topic()

    def _find_topic(self) -> Topic:
        """The topic, created by the broker if it does that; it may take a moment to have leaders."""
        retry = Retry()
        while True:
            try:
                topic = self._client.topic(self._settings.topic, auto_create=True)
            except KafkaError as error:
                retry.pause_or_raise(error)
                continue
            without_leader = [part for part in topic.partitions if part.leader < 0]
            if not without_leader:
                return topic
            part = without_leader[0]
            retry.pause_or_raise(KafkaError(f"partition {topic.name}-{part.index}", part.error_code))

    def _distribute(self, lines: list[bytes]) -> dict[int, list[NewRecord]]:
        """Records by partition: the one asked for, else the key's, else a different one for each group."""
        now_ms = time.time_ns() // 1_000_000
        count = len(self._topic.partitions)
        keyless = self._next_partition % count
        self._next_partition += 1
        distributed: dict[int, list[NewRecord]] = {}
        for line in lines:
            key, value = self._split(line)
            partition = self._settings.partition
            if partition < 0:
                partition = keyless if key is None else partition_for(key, count)
            distributed.setdefault(partition, []).append(NewRecord(value=value, key=key, timestamp=now_ms))
        return distributed

    def _split(self, line: bytes) -> tuple[bytes | None, bytes]:
        if self._separator is None:
            return None, line
        key, found, value = line.partition(self._separator)
        return (key, value) if found else (None, line)
