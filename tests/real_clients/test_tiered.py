"""Clients read a tiered topic, most of which is in the object store alone, as they read its untiered twin."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

from mpbroker.testing import Broker
from tests.support import client_adapters as clients
from tests.support.client_samples import CREATE_TIME_MS, Record, by_partition, sample_records
from tests.support.client_tools import eventually, kafka_tool
from tests.support.polling import PATIENCE_S
from tests.support.tiered_brokers import tiering

TIERED, PLAIN = TOPICS = ("tiered", "plain")
PARTITIONS, COUNT = 2, 200
LARGE_BYTES = 60_000
SEGMENT_BYTES = 1 << 20
GET_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"


def records(seed: int) -> list[Record]:
    """Samples, of which every tenth is large."""
    chance = random.Random(seed)
    made = sample_records(PARTITIONS, COUNT, seed)
    return [
        replace(one, value=chance.randbytes(LARGE_BYTES)) if number // PARTITIONS % 10 == 0 else one
        for number, one in enumerate(made)
    ]


def write(bootstrap: str, topic: str) -> tuple[int, int]:
    """Write records of every codec, between them transactions that end either way.

    Return how many are committed, and how many are not.
    """
    count = aborted = 0
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": topic, "compression.type": "lz4"}
    )
    producer.init_transactions(PATIENCE_S)
    for seed, codec in enumerate(clients.CODECS):
        clients.confluent_write(bootstrap, topic, records(seed), codec, {"batch.size": 200_000})
        for number in range(4):
            producer.begin_transaction()
            for at, one in enumerate(records(100 + seed)[:60]):
                producer.produce(
                    topic,
                    one.value,
                    one.key,
                    one.partition,
                    timestamp=CREATE_TIME_MS + at,
                    headers=list(one.headers),
                )
            assert producer.flush(PATIENCE_S) == 0
            if number % 2:
                producer.commit_transaction(PATIENCE_S)
                count += 60
            else:
                producer.abort_transaction(PATIENCE_S)
                aborted += 60
        count += COUNT
    return count, aborted


class Tiered:
    """A broker with both topics, with `count` committed and `aborted` other records in each of them."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.bootstrap = broker.bootstrap_servers
        settings = {"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"}
        broker.create_topic(PLAIN, PARTITIONS, settings)
        broker.create_topic(
            TIERED, PARTITIONS, settings | {"remote.storage.enable": "true", "local.retention.bytes": "1"}
        )
        counts = {write(self.bootstrap, topic) for topic in TOPICS}
        ((self.count, self.aborted),) = counts
        eventually(
            lambda: all(len(self.local(number)) == 1 < self.local(number)[0] for number in range(PARTITIONS)),
            "only the active segments are local",
        )

    def local(self, partition: int) -> list[int]:
        """Return the base offsets of the local segments."""
        return sorted(
            int(path.stem) for path in (self.broker.log_dir / f"{TIERED}-{partition}").glob("*.log")
        )


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiered]:
    store: Path = tmp_path_factory.mktemp("store")
    with Broker(settings=tiering(store)) as broker:
        yield Tiered(broker)


@pytest.mark.parametrize("reader", [*clients.READERS, "franz"], indirect=True)
def test_every_client_reads_the_same(tiered: Tiered, reader: clients.Reader) -> None:
    of_librdkafka = reader in (clients.READERS["confluent"], clients.READERS["kcat"])
    count = tiered.count if of_librdkafka else tiered.count + tiered.aborted
    wanted, got = (by_partition(reader(tiered.bootstrap, topic, PARTITIONS, count)) for topic in TOPICS)
    assert got == wanted
    assert min(tiered.local(number)[0] for number in range(PARTITIONS)) > COUNT


def test_the_console_consumer_reads_the_same(tiered: Tiered) -> None:
    shown = [f"print.{what}=true" for what in ("offset", "timestamp", "headers", "partition")]
    # Values are not text.
    shown.append("print.value=false")
    arguments = [part for one in shown for part in ("--formatter-property", one)]
    printed = [
        sorted(
            clients.java_consume(
                tiered.bootstrap,
                topic,
                "--from-beginning",
                *("--max-messages", str(tiered.count)),
                *("--isolation-level", "read_committed"),
                *arguments,
            )
        )
        for topic in TOPICS
    ]
    assert printed[0] == printed[1]
    assert len(printed[0]) >= tiered.count


def test_every_client_finds_the_same_offsets(tiered: Tiered) -> None:
    """By time, and the first and the last; only for the first local offset the topics differ."""
    times = CREATE_TIME_MS - 2000, CREATE_TIME_MS + 20, CREATE_TIME_MS + 998, CREATE_TIME_MS + 2000
    of_librdkafka, of_java = (
        [find(tiered.bootstrap, topic, (*times, -1, -2)) for topic in TOPICS]
        for find in (_confluent_offsets, _java_offsets)
    )
    assert of_librdkafka[0] == of_librdkafka[1] == of_java[0] == of_java[1]
    local = tiered.local(0)[0]
    assert [_java_offsets(tiered.bootstrap, topic, (-4,)) for topic in TOPICS] == [[local], [0]]
    largest = [_java_offsets(tiered.bootstrap, topic, (-3,)) for topic in TOPICS]
    assert largest[0] == largest[1]


def _confluent_offsets(bootstrap: str, topic: str, times: Sequence[int]) -> list[int]:
    with closing(clients.confluent_consumer(bootstrap, topic, 0)) as consumer:
        first, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S)
        found = {-1: end, -2: first}
        for time in times:
            if time >= 0:
                (place,) = consumer.offsets_for_times([TopicPartition(topic, 0, time)], PATIENCE_S)
                # librdkafka has the end where no record is found.
                found[time] = place.offset if place.offset >= 0 else -1
    return [found[time] for time in times]


def _java_offsets(bootstrap: str, topic: str, times: Sequence[int]) -> list[int]:
    about = "--bootstrap-server", bootstrap, "--topic-partitions", f"{topic}:0"
    rows = [kafka_tool(GET_OFFSETS, *about, "--time", str(time)).strip() for time in times]
    return [int(row.rpartition(":")[2] or -1) for row in rows]
