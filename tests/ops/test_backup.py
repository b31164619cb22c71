"""The commands of docs/BACKUP.md, on a broker under load: each copy starts and has what was acknowledged."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from mpbroker.testing import Broker
from ops.bench.brokers import free_port
from tests.support.page_shell import Shell, pattern, shell, steps
from tests.support.polling import until

PAGE = (Path(__file__).parents[2] / "docs" / "BACKUP.md").read_text()
PORT, OTHER_PORT = "9092", "9192"
NUMBERS, PAIRS, GROUP = "numbers", "pairs", "readers"
PARTITIONS = (0, 1)
COPIES = 2
UNDER_WAY = 50
ABORTED = "aborted"
QUIET = {"log_level": "0"}


class Acknowledged(NamedTuple):
    """What clients had been told. `pairs`: the last transaction that was committed."""

    numbers: tuple[int, ...]
    pairs: int
    committed: tuple[int, ...]


class Load:
    """An idempotent producer of numbers, a transactional one of pairs, a consumer that commits."""

    def __init__(self, address: str) -> None:
        self.client = {"bootstrap.servers": address, **QUIET}
        self.numbers = [0 for _ in PARTITIONS]
        self.committed = [0 for _ in PARTITIONS]
        self.pairs = -1
        self.ended = threading.Event()
        self.errors: list[object] = []

    def acknowledged(self) -> Acknowledged:
        return Acknowledged(tuple(self.numbers), self.pairs, tuple(self.committed))

    def produce(self) -> None:
        producer = Producer({**self.client, "enable.idempotence": True, "linger.ms": 2})

        def answered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.errors.append(error)
            self.numbers[message.partition() or 0] += 1

        for number in range(10_000_000):
            for partition in PARTITIONS:
                producer.produce(NUMBERS, str(number), partition=partition, on_delivery=answered)
            while producer.poll(0) or len(producer) > UNDER_WAY:
                producer.poll(0.01)
            if self.ended.is_set():
                break
        producer.flush()

    def transact(self) -> None:
        producer = Producer({**self.client, "transactional.id": "pairs", "linger.ms": 0})
        producer.init_transactions()
        for number in range(10_000_000):
            producer.begin_transaction()
            ends_well = number % 3 != 2
            for partition in PARTITIONS:
                producer.produce(PAIRS, str(number) if ends_well else ABORTED, partition=partition)
            if ends_well:
                producer.commit_transaction()
                self.pairs = number
            else:
                producer.flush()
                producer.abort_transaction()
            if self.ended.is_set():
                return

    def consume(self) -> None:
        consumer = consumer_of(self.client)
        consumer.assign([TopicPartition(NUMBERS, partition, 0) for partition in PARTITIONS])
        while not self.ended.is_set():
            if consumer.consume(200, timeout=0.05):
                for done in consumer.commit(asynchronous=False) or []:
                    self.committed[done.partition] = max(done.offset, 0)
        consumer.close()

    def _run(self, work: Any) -> None:
        try:
            work()
        except Exception as error:
            self.errors.append(error)

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [
            threading.Thread(target=self._run, args=(work,))
            for work in (self.produce, self.transact, self.consume)
        ]
        for one in threads:
            one.start()
        try:
            yield
        finally:
            self.ended.set()
            for one in threads:
                one.join()

    def goes_on(self) -> None:
        """Wait until each of the clients has come further."""
        numbers, pairs, committed = self.acknowledged()

        def has_moved() -> bool:
            return bool(self.errors) or (
                all(now > then + 100 for now, then in zip(self.numbers, numbers, strict=True))
                and self.pairs > pairs + 3
                and all(now > then for now, then in zip(self.committed, committed, strict=True))
            )

        until(has_moved, "all clients go on", lambda: self.ended.wait(0.01))
        assert self.errors == []


def consumer_of(client: dict[str, str], **settings: object) -> Consumer:
    return Consumer({**client, "group.id": GROUP, "enable.auto.commit": False, **settings})


def read(client: dict[str, str], topic: str, partition: int) -> list[str]:
    """All committed values of the partition, in order."""
    consumer = consumer_of(client, **{"isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[str] = []
    try:
        while True:
            for message in consumer.consume(5000, timeout=1.0):
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF
                    return found
                found.append((message.value() or b"").decode())
    finally:
        consumer.close()


def check(copy: Path, before: Acknowledged) -> None:
    """Start the copy, and find in it what its clients had been told before it was made."""
    with Broker(log_dir=copy) as broker:
        client = {"bootstrap.servers": broker.bootstrap_servers, **QUIET}
        # The end of what was open.
        producer = Producer({**client, "transactional.id": "pairs"})
        producer.init_transactions()
        ends = []
        for partition in PARTITIONS:
            values = read(client, NUMBERS, partition)
            assert values == [str(number) for number in range(len(values))]
            ends.append(len(values))
        consumer = consumer_of(client)
        offsets = consumer.committed([TopicPartition(NUMBERS, one) for one in PARTITIONS], timeout=30)
        consumer.close()
        first, second = (read(client, PAIRS, partition) for partition in PARTITIONS)
        # Producers go on with the copy.
        producer.begin_transaction()
        producer.produce(PAIRS, "behind", partition=0)
        producer.commit_transaction()
        assert read(client, PAIRS, 0) == [*first, "behind"]
        said = broker.logs()
    assert all(there >= told for there, told in zip(ends, before.numbers, strict=True))
    for there, told, end in zip(offsets, before.committed, ends, strict=True):
        assert told <= there.offset <= end
    assert first == second == [str(number) for number in range(int(first[-1]) + 1) if number % 3 != 2]
    assert int(first[-1]) >= before.pairs
    assert " ERROR " not in said


def run(sh: Shell, section: str, ports: dict[str, str]) -> None:
    """Run the commands of a section, which print what stands there."""
    for step in steps(PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]):
        command = re.sub("|".join(ports), lambda found: ports[found[0]], step.command)
        printed = sh.run(command)
        assert re.fullmatch(pattern(step.printed), printed, re.DOTALL), f"{command}\n{printed}"


@pytest.mark.process
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    copied: list[tuple[Path, Acknowledged]] = []
    ports = {OTHER_PORT: str(free_port())}
    with Broker(log_dir=tmp_path / "data") as broker, shell(tmp_path) as sh:
        ports[PORT] = broker.bootstrap_servers.rpartition(":")[2]
        for topic in (NUMBERS, PAIRS):
            broker.create_topic(topic, partitions=len(PARTITIONS))
        load = Load(broker.bootstrap_servers)
        with load.running():
            for number in range(COPIES):
                load.goes_on()
                before = load.acknowledged()
                run(sh, "While it runs", ports)
                (tmp_path / "copy").rename(tmp_path / f"copy-{number}")
                copied.append((tmp_path / f"copy-{number}", before))
            load.goes_on()
        assert load.errors == []
        assert broker.is_running
        sh.run("cp -a copy-0 copy")
        run(sh, "Check a copy", ports)
        broker.stop()
        run(sh, "Restore", ports)
    for copy, before in copied:
        check(copy, before)
