"""The commands of docs/BACKUP.md, on a broker under load: each copy starts and has what was acknowledged."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from mpbroker.cli.host import backup
from mpbroker.cli.host.backup_copy import Incoming, whole_copies
from mpbroker.cli.host.local_broker import LocalBroker
from mpbroker.testing import Broker
from ops.bench.brokers import Mpbroker, free_port
from tests.support.committed_offsets import messages
from tests.support.forms import rounds
from tests.support.own_cli import OwnCli
from tests.support.page_shell import Shell, pattern, shell, steps
from tests.support.polling import random_moment, until
from tests.support.real_brokers import served
from tests.support.threads import concurrently

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
        self.errors: list[object] = []

    def acknowledged(self) -> Acknowledged:
        return Acknowledged(tuple(self.numbers), self.pairs, tuple(self.committed))

    def produce(self, ended: threading.Event) -> None:
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
            if ended.is_set():
                break
        producer.flush()

    def transact(self, ended: threading.Event) -> None:
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
            if ended.is_set():
                return

    def consume(self, ended: threading.Event) -> None:
        consumer = consumer_of(self.client)
        consumer.assign([TopicPartition(NUMBERS, partition, 0) for partition in PARTITIONS])
        while not ended.is_set():
            if consumer.consume(200, timeout=0.05):
                for done in consumer.commit(asynchronous=False) or []:
                    self.committed[done.partition] = max(done.offset, 0)
        consumer.close()

    def running(self) -> AbstractContextManager[None]:
        works = (self.produce, self.transact, self.consume)
        return concurrently(*(partial(self._run, work) for work in works))

    def _run(self, work: Callable[[threading.Event], None], ended: threading.Event) -> None:
        try:
            work(ended)
        except Exception as error:  # noqa: BLE001 - the test fails with it
            self.errors.append(error)

    def goes_on(self) -> None:
        """Wait until each of the clients has come further."""
        numbers, pairs, committed = self.acknowledged()

        def has_moved() -> bool:
            return bool(self.errors) or (
                all(now > then + 100 for now, then in zip(self.numbers, numbers, strict=True))
                and self.pairs > pairs + 3
                and all(now > then for now, then in zip(self.committed, committed, strict=True))
            )

        until(has_moved, "all clients go on")
        assert self.errors == []


def consumer_of(client: dict[str, str]) -> Consumer:
    return Consumer({**client, "group.id": GROUP, "enable.auto.commit": False})


def read(client: dict[str, str], topic: str, partition: int) -> list[str]:
    """All committed values of the partition, in order."""
    found = messages(client["bootstrap.servers"], topic, [partition])
    return [(message.value() or b"").decode() for message in found]


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


@contextmanager
def loaded(data: Path, log_workers: int = 1) -> Iterator[tuple[Broker, Load]]:
    """A broker with clients that work."""
    with Broker({"log.workers": log_workers}, log_dir=data) as broker:
        for topic in (NUMBERS, PAIRS):
            broker.create_topic(topic, partitions=len(PARTITIONS))
        load = Load(broker.bootstrap_servers)
        with load.running():
            load.goes_on()
            yield broker, load
            load.goes_on()
        assert load.errors == []
        assert broker.is_running


@pytest.mark.process
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    ports = {OTHER_PORT: str(free_port())}
    with shell(tmp_path) as sh:
        with loaded(tmp_path / "data") as (broker, load):
            for _ in range(COPIES):
                load.goes_on()
                before = load.acknowledged()
                run(sh, "Make a copy", ports)
            load.goes_on()
            # Each process went on: none was taken for one that hangs.
            assert "was replaced" not in broker.logs()
        sh.run("mpbroker restore --from copies --log-dirs copy")
        run(sh, "Check a copy", ports)
        run(sh, "Restore", ports)
    check(tmp_path / "copy", before)


@pytest.mark.process
def test_a_backup_that_is_killed_harms_nobody_and_is_finished_by_the_next(tmp_path: Path) -> None:
    chance = random.Random(11)
    command = [sys.executable, "-m", "mpbroker", "backup", "copies"]
    with loaded(tmp_path / "data", log_workers=2) as (_, load):
        before, whole = load.acknowledged(), 0
        for _ in range(rounds(24)):
            with subprocess.Popen(
                [*command, "--log-dirs", "data"], cwd=tmp_path, start_new_session=True
            ) as one:
                random_moment(chance, within_s=0.6)
                one.send_signal(chance.choice((signal.SIGKILL, signal.SIGINT)))
            there = whole_copies(tmp_path / "copies")
            assert all(not list(copy.problems()) for copy in there)
            assert len(there) >= whole
            whole = len(there)
            load.goes_on()
        subprocess.run([*command, "--log-dirs", "data"], cwd=tmp_path, check=True)
        restored = [sys.executable, "-m", "mpbroker", "restore", "--from", "copies", "--log-dirs", "copy"]
        subprocess.run(restored, cwd=tmp_path, check=True)
    check(tmp_path / "copy", before)


@pytest.mark.process
def test_nothing_moves_while_the_last_of_a_copy_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a load that would move it."""
    chance, passes = random.Random(5), []
    copy = Incoming.copy

    def observed(incoming: Incoming, seen: Callable[[int], None], *, at_rest: bool = False) -> int:
        before = states(tmp_path / "data")
        count = copy(incoming, seen, at_rest=at_rest)
        random_moment(chance, within_s=0.5)
        passes.append((at_rest, states(tmp_path / "data") == before))
        return count

    monkeypatch.setattr(Incoming, "copy", observed)
    with loaded(tmp_path / "data") as (_, load):
        for _ in range(3):
            backup.backup(LocalBroker(str(tmp_path / "data")), tmp_path / "copies", keep=1, as_json=True)
            load.goes_on()
    still = [stood for at_rest, stood in passes if at_rest]
    assert still == [True] * 3
    assert not all(stood for at_rest, stood in passes if not at_rest)


@pytest.mark.process
def test_a_broker_with_several_log_directories(tmp_path: Path) -> None:
    """The copy has all of them, and another broker with as many begins where this one was."""
    own, restored = ([tmp_path / name for name in names] for names in (("a", "b", "c"), ("d", "e", "f")))
    copies, records = tmp_path / "copies", {str(number) for number in range(60)}
    broker = Mpbroker(tmp_path / "broker", flags=("--log-dirs", ",".join(map(str, own))))
    with served(broker):
        cli = OwnCli(broker.bootstrap)
        cli("topic", "create", "spread", "--partitions", "6", "-c", "retention.ms=1d")
        for partition in range(6):
            lines = [str(number) for number in range(60) if number % 6 == partition]
            cli.produce("spread", lines, "-p", str(partition))
        assert all(list(one.glob("spread-*")) for one in own), "each has partitions"
        made = cli("backup", str(copies), "--log-dirs", str(own[1]), "--json").json
        assert made["log_dirs"] == list(map(str, own))
    cli("backup", str(copies), "--check")
    assert "name as many" in cli("restore", "--from", str(copies), "--log-dirs", str(restored[0]), code=2).err
    cli("restore", "--from", str(copies), "--log-dirs", ",".join(map(str, restored)))
    for one, other in zip(own, restored, strict=True):
        assert sorted(path.name for path in one.glob("spread-*")) == sorted(
            path.name for path in other.glob("spread-*")
        )
    with served(Mpbroker(tmp_path / "other", flags=("--log-dirs", ",".join(map(str, restored))))) as another:
        cli = OwnCli(another.bootstrap)
        assert set(cli("consume", "spread", "--from-beginning", "--exit-at-end").out.split()) == records
        assert "retention.ms=86400000" in cli("topic", "describe", "spread").out


def states(directory: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):
            status = path.stat()
            found[str(path)] = (status.st_size, status.st_mtime_ns)
    return found
