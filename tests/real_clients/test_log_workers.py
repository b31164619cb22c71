"""Several log workers: clients over all of them, deaths and stops of one, and other numbers of them."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.messages import ProduceRequest
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from mpbroker.storage.names import log_worker_of
from ops.bench.brokers import Broker, Mpbroker
from ops.bench.processes import title_of
from tests.support.client_tools import eventually
from tests.support.committed_offsets import read
from tests.support.forms import each
from tests.support.polling import PATIENCE_S
from tests.support.programs import stopped
from tests.support.real_brokers import create_topic, kill_process, kill_worker, pid_of, served, stop_cleanly
from tests.support.socket_client import SocketClient
from tests.support.threads import InThread, concurrently

PARTITIONS = 24
STANDS_STILL_S = 0.05
JOURNAL = ("-o", f"log.journal.bytes={1 << 20}")
CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint")
PRODUCE_VERSION = 7

Start = Callable[..., Mpbroker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Brokers on one directory, one after the other, with so many log workers."""
    with ExitStack() as made:

        def begin(log_workers: int, *flags: str) -> Mpbroker:
            flags = ("--log-workers", str(log_workers), *JOURNAL, *flags)
            return made.enter_context(served(Mpbroker(tmp_path, flags=flags)))

        yield begin


@contextmanager
def stumbling(broker: Mpbroker, seed: int) -> Iterator[None]:
    """One process after the other stands still for some milliseconds: whatever it is to do comes late, and
    what others do meanwhile comes early for it.
    """
    chance = random.Random(seed)
    titles = {one.pid: title_of(one) for one in broker.tree().members()}
    part = re.compile(r"(log|coordinator|handler|processor)\b")
    pids = [pid for pid, title in titles.items() if part.match(title)]
    assert len(pids) == 3 + 1 + 2 + 1

    def run(ends: threading.Event) -> None:
        while not ends.is_set():
            pid = chance.choice(pids)
            os.kill(pid, signal.SIGSTOP)
            ends.wait(chance.random() * STANDS_STILL_S)
            os.kill(pid, signal.SIGCONT)
            ends.wait(chance.random() * STANDS_STILL_S / 2)

    with concurrently(run):
        yield


def owned_by(worker: int, log_workers: int, topic: str = "t") -> list[int]:
    return [p for p in range(PARTITIONS) if log_worker_of(topic, p, log_workers) == worker]


class Load(InThread):
    """An idempotent producer that writes numbers to each partition in turn, until it is told to stop. It has
    one connection, on which answers come in the order of requests.
    """

    def __init__(
        self, broker: Mpbroker, partitions: Sequence[int] = range(PARTITIONS), topic: str = "t"
    ) -> None:
        super().__init__()
        self.partitions = partitions
        self.acked: defaultdict[int, list[int]] = defaultdict(list)
        self.errors: list[str] = []
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

    def __enter__(self) -> Self:
        super().__enter__()
        eventually(lambda: len(self.acked) == len(self.partitions), "all partitions take records")
        return self

    def goes_on(self, by: int = 1) -> None:
        """Wait until every partition has taken so many more records."""
        before = {partition: len(acked) for partition, acked in self.acked.items()}
        eventually(
            lambda: all(len(self.acked[each]) >= before[each] + by for each in before),
            "every partition takes records",
        )

    def _run(self) -> None:
        number = 0
        while not self._ends.is_set():
            for partition in self.partitions:
                self._send(partition, number)
            number += 1
            self._producer.poll(0.002)
        left = self._producer.flush(PATIENCE_S)
        if left:
            self.errors.append(f"{left} were never answered")

    def _send(self, partition: int, number: int) -> None:
        def told(error: object, _: object) -> None:
            if error is None:
                self.acked[partition].append(number)
            else:
                self.errors.append(str(error))

        self._producer.produce(self._topic, str(number).encode(), partition=partition, on_delivery=told)


def read_all(broker: Broker, partitions: int = PARTITIONS) -> dict[int, list[int]]:
    """Return what each partition has, in order."""
    found = read(broker, "t", partitions)
    return {partition: [int(value) for value in found.get(partition, [])] for partition in range(partitions)}


def write_some(broker: Mpbroker, first: int, count: int = 3) -> None:
    """To every partition, once, whatever dies meanwhile; raises if any is refused."""
    errors: list[object] = []
    settings = {"enable.idempotence": True, "linger.ms": 2, "log_level": 0}
    producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
    for number in range(first, first + count):
        for partition in range(PARTITIONS):
            producer.produce(
                "t",
                str(number).encode(),
                partition=partition,
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )
    assert producer.flush(PATIENCE_S) == 0
    assert errors == []


def produced(partitions: list[int], *, acks: int, number: int = 0) -> ProduceRequest:
    batch = bytes(build_batch([NewRecord(value=str(number).encode(), key=None, timestamp=1)]))
    data = [ProduceRequest.PartitionProduceData(p, batch) for p in partitions]
    return ProduceRequest(None, acks, 10_000, [ProduceRequest.TopicProduceData("t", bytes(16), data)])


def test_one_request_over_all_workers(start: Start) -> None:
    broker, everywhere = start(3), list(range(PARTITIONS))
    create_topic(broker.bootstrap, "t", PARTITIONS)
    owned = [owned_by(worker, 3) for worker in range(3)]
    assert max(map(len, owned)) - min(map(len, owned)) <= 1, "they are spread evenly"
    with SocketClient(broker) as client:
        for number, acks in enumerate((-1, 1, 0, -1)):
            request = produced(everywhere, acks=acks, number=number)
            if acks:
                (topic,) = client.ask(ApiKey.PRODUCE, PRODUCE_VERSION, request).responses
                told = [(p.index, p.error_code, p.base_offset) for p in topic.partition_responses]
                assert told == [(p, 0, number) for p in everywhere]
            else:
                client.send(ApiKey.PRODUCE, PRODUCE_VERSION, request)
        # Also of what is wrong with one of them the others know nothing.
        request = produced([*everywhere, PARTITIONS], acks=-1, number=4)
        (topic,) = client.ask(ApiKey.PRODUCE, PRODUCE_VERSION, request).responses
        assert [p.error_code for p in topic.partition_responses] == [0] * PARTITIONS + [3]
    assert read_all(broker) == {p: [0, 1, 2, 3, 4] for p in everywhere}


def test_every_worker_is_killed_under_load(start: Start) -> None:
    broker = start(3)
    create_topic(broker.bootstrap, "t", PARTITIONS)
    stop = threading.Event()
    refused: list[object] = []

    def raw() -> None:
        """Requests over all workers, whose connections may be closed, and must not hang."""
        while not stop.is_set():
            try:
                with SocketClient(broker) as client:
                    for _ in range(50):
                        request = produced([0, 1, 2, 3, 4, 5], acks=-1, number=1 << 30)
                        client.ask(ApiKey.PRODUCE, PRODUCE_VERSION, request)
            except ConnectionError:
                continue
            except OSError as error:
                refused.append(error)
                return

    thread = threading.Thread(target=raw)
    with Load(broker) as load:
        thread.start()
        for worker in (0, 1, 2, 1, 0):
            kill_worker(broker, worker)
            load.goes_on()
        stop.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a request hangs"
    assert refused == []
    assert load.errors == []
    for partition, there in read_all(broker).items():
        ours = [number for number in there if number < 1 << 30]
        assert ours == load.acked[partition], f"partition {partition}"


def test_the_others_go_on_while_one_is_stopped(start: Start) -> None:
    broker = start(3, "-o", "handler.hang.timeout.ms=60000")
    create_topic(broker.bootstrap, "t", PARTITIONS)
    others = [*owned_by(0, 3), *owned_by(2, 3)]
    stands_still = stopped(pid_of(broker, "log 1"))
    with Load(broker, owned_by(1, 3)) as waiting, Load(broker, others) as load, stands_still:
        load.goes_on(by=20)
    assert load.errors == waiting.errors == []
    assert read_all(broker) == load.acked | waiting.acked


def test_one_that_hangs_is_replaced(start: Start) -> None:
    broker = start(2, "-o", "handler.hang.timeout.ms=2000")
    create_topic(broker.bootstrap, "t", PARTITIONS)
    with Load(broker) as load:
        kill_process(broker, "log 1", signal.SIGSTOP)
        load.goes_on()
    assert load.errors == []
    assert read_all(broker) == load.acked


def checkpointed(broker: Mpbroker, name: str) -> dict[int, int]:
    lines = (broker.log_dir / name).read_text().splitlines()[2:]
    entries = [line.split() for line in lines]
    return {int(partition): int(offset) for topic, partition, offset in entries if topic == "t"}


@pytest.mark.parametrize("is_clean", [True, False])
def test_another_number_of_workers_at_each_start(start: Start, is_clean: bool) -> None:
    """Every journal is replayed by whoever comes next, and what there are no workers for is gone then."""
    first = True
    for done, log_workers in enumerate((3, 1, 5, 2)):
        broker = start(log_workers)
        journals = {path.name for path in broker.log_dir.glob("mpbroker.journal*")}
        assert all(int(name.rpartition(".")[2]) < log_workers for name in journals if name[-1].isdigit())
        if first:
            create_topic(broker.bootstrap, "t", PARTITIONS)
            first = False
        assert read_all(broker) == {p: list(range(3 * done)) for p in range(PARTITIONS)}
        write_some(broker, 3 * done)
        if is_clean:
            stop_cleanly(broker)
            assert (broker.log_dir / ".kafka_cleanshutdown").exists()
            for name in CHECKPOINTS:
                assert checkpointed(broker, name) == dict.fromkeys(range(PARTITIONS), 3 * done + 3)
        else:
            broker.kill()
            assert not (broker.log_dir / ".kafka_cleanshutdown").exists()


def test_topics_come_change_and_go_on_all_workers(start: Start) -> None:
    broker = start(3)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for _ in range(3):
        create_topic(broker.bootstrap, "t", PARTITIONS)
        write_some(broker, 0)
        wanted = [TopicPartition("t", p, 2) for p in range(PARTITIONS)]
        marks = [future.result(PATIENCE_S).low_watermark for future in admin.delete_records(wanted).values()]
        assert marks == [2] * PARTITIONS
        assert read_all(broker) == {p: [2] for p in range(PARTITIONS)}
        admin.delete_topics(["t"])["t"].result(PATIENCE_S)
    create_topic(broker.bootstrap, "t", PARTITIONS)
    assert read_all(broker) == {p: [] for p in range(PARTITIONS)}
    with pytest.raises(KafkaException):
        create_topic(broker.bootstrap, "t", PARTITIONS)
    stop_cleanly(broker)
    assert {path.name for path in broker.log_dir.glob("t-*") if path.suffix == ""} == {
        f"t-{p}" for p in range(PARTITIONS)
    }


@each("seed", short=[1], long=range(1, 21))
def test_topics_come_and_go_however_late_a_process_is(start: Start, seed: int) -> None:
    broker = start(3)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    with stumbling(broker, seed):
        for _ in range(4):
            create_topic(broker.bootstrap, "t", PARTITIONS)
            write_some(broker, 0, 1)
            admin.delete_topics(["t"])["t"].result(PATIENCE_S)
        create_topic(broker.bootstrap, "t", PARTITIONS)
    assert read_all(broker) == {p: [] for p in range(PARTITIONS)}
    assert "replaced" not in broker.output()
