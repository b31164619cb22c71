"""Log directories that Apache Kafka has made, or has been started on: mpbroker changes nothing in them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from ops.bench.brokers import Broker, BrokerError, Kafka, Mpbroker, running
from tests.support.client_adapters import confluent_read, confluent_write
from tests.support.client_samples import Stored, sample_records
from tests.support.client_tools import SMALL_JVM
from tests.support.file_trees import tree
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import create_topic, stop_cleanly

TOPIC = "orders"
RECORDS = sample_records(1, 50, seed=1)


def made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def refused(broker: Mpbroker) -> str:
    """What the broker says that does not start, and leaves the directory as it is."""
    before = tree(broker.log_dir)
    with pytest.raises(BrokerError, match="exited with 1 at start"):
        broker.start()
    assert tree(broker.log_dir) == before
    return broker.output()


def filled(broker: Broker) -> list[Stored]:
    """Makes a topic of records; returns how they read."""
    create_topic(broker.bootstrap, TOPIC, 1)
    confluent_write(broker.bootstrap, TOPIC, RECORDS, "none")
    return read(broker)


def read(broker: Broker) -> list[Stored]:
    return confluent_read(broker.bootstrap, TOPIC, 1, len(RECORDS))


def test_kafkas_directory_stays_as_it_is(tmp_path: Path) -> None:
    kafka = Kafka(made(tmp_path / "kafka"), jvm=SMALL_JVM)
    with running(kafka):
        filled(kafka)
    ours = Mpbroker(kafka.directory)
    said = refused(ours)
    assert f"{ours.log_dir} belongs to Apache Kafka: the record at offset 1 of" in said
    assert "name an empty directory in log.dirs" in said


def test_kafka_on_our_directory_is_told_and_taken_back(tmp_path: Path) -> None:
    """Kafka refuses it, but by then its controller has written to the metadata."""
    ours = Mpbroker(made(tmp_path / "ours"))
    ours.start()
    written = filled(ours)
    stop_cleanly(ours)
    before = tree(ours.log_dir)
    kafka = Kafka(ours.directory, jvm=SMALL_JVM)
    with pytest.raises(BrokerError, match="Apache Kafka exited"):
        kafka.start()
    assert tree(ours.log_dir) != before
    said = refused(ours)
    assert f"Apache Kafka was started on {ours.log_dir} since mpbroker" in said
    advice = re.search(r"take back what it wrote: (truncate .*)\. Nothing", said)
    assert advice is not None, said
    subprocess.run(["sh", "-ec", advice[1]], check=True, timeout=PATIENCE_S)
    with running(ours):
        assert read(ours) == written
