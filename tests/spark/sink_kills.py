"""A streaming query that writes exactly once is killed as a whole while it writes, then its broker is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ops.bench.brokers import Broker
from ops.bench.processes import Tree
from tests.spark.exactly_once_query import PARTITIONS, PER_BATCH, PER_PART
from tests.spark.test_sink import records
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import TRANSACTIONS, create_topic, make_broker, served, with_settings
from tests.support.spark_here import ROOT

BATCHES = 2
RECORDS = BATCHES * PER_BATCH * PARTITIONS
VALUE_BYTES = 1000
HELD_PARTITION = 1


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with served(with_settings(make_broker(tmp_path / "broker"), TRANSACTIONS)) as running:
        yield running


class Query:
    """The program, and the gates at which one of its tasks waits, one in each batch."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self._broker, self._directory = broker, directory
        self.gates: list[Path] = []
        (directory / "gates").mkdir()
        for batch in range(BATCHES):
            # In the last part of the batch, so that the ones before it are on their way.
            offset = (batch + 1) * PER_BATCH - PER_PART
            self.gates.append(directory / "gates" / str(offset * PARTITIONS + HELD_PARTITION))
            os.mkfifo(self.gates[-1])
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.spark.exactly_once_query"]
        command += [self._broker.bootstrap, str(self._directory / "checkpoint")]
        with (self._directory / "output.log").open("a") as output:
            self.process = subprocess.Popen(
                [*command, str(self._directory / "gates")],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def wait_in(self, batch: int) -> None:
        """Returns when a task waits in the middle of it, with records of its transaction in the log."""
        reached = self.gates[batch].with_name(f"{self.gates[batch].name}.reached")
        before = len(records(self._broker, "out")) // PARTITIONS
        # Spark needs seconds to start, minutes on a busy machine: the limit is that of every test.
        while not (reached.exists() and high_watermark(self._broker) > before):
            assert not self.ended, self.output
            self._moment()

    def go_on(self, batch: int) -> None:
        os.close(os.open(self.gates[batch], os.O_WRONLY))

    def finish(self) -> None:
        assert self.process is not None
        assert self.process.wait() == 0, self.output

    def kill(self) -> None:
        """Driver, JVM, and workers, at one time as far as that goes."""
        if self.process is None or self.ended:
            return
        members = Tree(psutil.Process(self.process.pid)).members()
        for member in members:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        self.process.wait()
        _, alive = psutil.wait_procs(members, timeout=PATIENCE_S)
        assert not alive

    @property
    def ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    @property
    def output(self) -> str:
        return (self._directory / "output.log").read_text()

    def _moment(self) -> None:
        assert self.process is not None
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(0.05)


@pytest.fixture
def query(broker: Broker, tmp_path: Path) -> Iterator[Query]:
    found = Query(broker, tmp_path)
    try:
        yield found
    finally:
        found.kill()


def high_watermark(broker: Broker) -> int:
    """Of the partition of the gates; open and aborted transactions count."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "watermarks"}
    consumer = Consumer({**settings, "isolation.level": "read_uncommitted"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition("out", HELD_PARTITION), PATIENCE_S)[1])
    finally:
        consumer.close()


def numbers(broker: Broker) -> list[int]:
    return sorted(int(one.value() or b"") for one in records(broker, "out"))


def test_each_row_once_through_kills_of_the_query_and_of_its_broker(broker: Broker, query: Query) -> None:
    for topic in ("in", "out"):
        create_topic(broker.bootstrap, topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
    for number in range(RECORDS):
        value = b"%d" % number
        producer.produce("in", value.ljust(VALUE_BYTES), partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0

    query.start()
    query.wait_in(0)
    query.kill()
    assert numbers(broker) == []

    query.start()
    query.wait_in(1)
    broker.kill()
    broker.start()
    query.go_on(1)
    query.finish()
    assert numbers(broker) == list(range(RECORDS))
