"""Apache Kafka as the server: what it serves is fetched, and its files are read after it was stopped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mpbroker.storage.checkpoints import read_offsets
from mpbroker.storage.names import HIGH_WATERMARKS
from ops.bench.brokers import Broker, Kafka
from tests.reading.read_all import read_all
from tests.support.client_tools import SMALL_JVM
from tests.support.produced import produce
from tests.support.real_brokers import create_topic, served

TOPIC = "served"
PARTITIONS = 2
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PER_CODEC = 100
RECORDS = PER_CODEC * len(CODECS)
ALL = {number: list(range(RECORDS // PARTITIONS)) for number in range(PARTITIONS)}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with served(Kafka(tmp_path_factory.mktemp("kafka"), jvm=SMALL_JVM)) as found:
        create_topic(found.bootstrap, TOPIC, PARTITIONS)
        for codec in CODECS:
            values = [b"%d" % number * 10 for number in range(PER_CODEC)]
            produce(found.bootstrap, TOPIC, values, PARTITIONS, compression_type=codec)
        yield found


def test_everything_and_ranges(kafka: Broker) -> None:
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": TOPIC}
    assert read_all(options) == ALL
    some = {
        "startingOffsets": f'{{"{TOPIC}":{{"0":5,"1":-2}}}}',
        "endingOffsets": f'{{"{TOPIC}":{{"0":7,"1":3}}}}',
    }
    assert read_all(options | some) == {0: [5, 6], 1: [0, 1, 2]}


def test_its_files_after_it_was_stopped(kafka: Broker) -> None:
    kafka.stop()
    assert read_offsets(kafka.log_dir / HIGH_WATERMARKS)[TOPIC, 0] == RECORDS // PARTITIONS
    assert read_all({"log.dir": str(kafka.log_dir), "subscribe": TOPIC}) == ALL
