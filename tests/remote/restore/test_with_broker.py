"""A broker is lost with its disk at any moment; what comes back is one of its instants."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.store.directory import DirectoryStore
from mpbroker.testing import Broker
from tests.support.client_tools import eventually
from tests.support.committed_offsets import COMMITTED, UNCOMMITTED, consumer_of, messages
from tests.support.forms import each
from tests.support.http_broker import pids
from tests.support.object_store_servers import object_store_server
from tests.support.own_cli import OwnCli
from tests.support.polling import PATIENCE_S, random_moment
from tests.support.produced import produce
from tests.support.transactional_clients import Confluent

COPIES, SOURCE, GROUP = "copies", "source", "copiers"
PLACES = 3


class Lost:
    """Brokers one after the other, with one object store."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root = root
        self._stack = stack
        self._made = 0
        (root / "store").mkdir()
        self.store = DirectoryStore(root / "store")
        self.url = f"file://{root / 'store'}"

    def begin(self, log_dir: Path | None = None, **settings: str) -> Broker:
        """Start a broker, in a new directory if none is named."""
        self._made += 1
        named = {
            "remote.log.storage.system.enable": "true",
            "mpbroker.remote.url": self.url,
            "remote.log.manager.task.interval.ms": "20",
            "mpbroker.remote.commit.interval.ms": "10",
            "mpbroker.remote.checkpoint.interval.ms": "1000",
            "transactional.id.expiration.ms": "3600000",
        }
        named |= {key.replace("_", "."): value for key, value in settings.items()}
        log_dir = log_dir or self.root / f"data{self._made}"
        log_dir.mkdir(exist_ok=True)
        return self._stack.enter_context(Broker(settings=named, log_dir=log_dir))

    def lose(self, broker: Broker) -> None:
        broker.kill()
        shutil.rmtree(broker.log_dir)

    def restore(self, *options: str) -> Path:
        target = self.root / f"restored{self._made}"
        OwnCli("")("restore", "--from", self.url, "--log-dirs", str(target), *options)
        return target

    def state(self) -> RemoteState:
        reader = LedgerReader(self.store)
        reader.read_to_end()
        return reader.state

    def cut_after(self, time_ms: int) -> None:
        """Wait for a cut whose instant comes after a time."""
        eventually(
            lambda: any(one.event.taken_ms > time_ms for one in self.state().cuts), "there is a newer cut"
        )


@pytest.fixture
def lost(tmp_path: Path) -> Iterator[Lost]:
    with ExitStack() as stack:
        yield Lost(tmp_path, stack)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Copier:
    """A process that writes a record to each place, and the offset behind its source, in each transaction."""

    def __init__(self, bootstrap: str) -> None:
        # When each was acknowledged.
        self.acked: list[int] = []
        fork = multiprocessing.get_context("fork")
        self._news, news = fork.Pipe(duplex=False)
        self._process = fork.Process(target=_copy, args=(bootstrap, news), daemon=True)
        self._process.start()
        news.close()

    def read(self) -> int:
        """Return how many transactions are acknowledged."""
        with suppress(EOFError):
            while self._news.poll():
                self.acked.append(self._news.recv())
        return len(self.acked)

    def kill(self) -> None:
        self._process.kill()
        self._process.join(PATIENCE_S)
        self.read()
        self._news.close()


def _copy(bootstrap: str, news: Connection) -> None:
    producer = Confluent(bootstrap, "copier")
    for number in itertools.count():
        producer.begin()
        for place in range(PLACES):
            producer.send(COPIES, place, str(number))
        producer.offsets(GROUP, SOURCE, 0, number + 1)
        producer.commit()
        news.send(now_ms())


def values_of(broker: Broker, topic: str, partition: int, isolation: str = COMMITTED) -> list[str]:
    found = messages(broker.bootstrap_servers, topic, [partition], isolation)
    return [(one.value() or b"").decode() for one in found]


def end_of(broker: Broker, topic: str, partition: int) -> int:
    with closing(consumer_of(broker.bootstrap_servers, UNCOMMITTED)) as consumer:
        return consumer.get_watermark_offsets(TopicPartition(topic, partition), PATIENCE_S)[1]


def committed(broker: Broker) -> int:
    with closing(Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": GROUP})) as consumer:
        (found,) = consumer.committed([TopicPartition(SOURCE, 0)], PATIENCE_S)
        return found.offset


def identities(broker: Broker) -> list[str]:
    """Add a user with a quota; return what lists have of both."""
    cli = OwnCli(broker.bootstrap_servers)
    cli("user", "add", "alice", "--password-file", "-", stdin=b"secret of alice\n")
    cli("quota", "set", "producer_byte_rate=12345678", "--user", "alice")
    return listed(broker)


def listed(broker: Broker) -> list[str]:
    cli = OwnCli(broker.bootstrap_servers)
    said = [cli(*words).out for words in (("user", "list"), ("quota", "list"))]
    assert "alice" in said[0]
    assert "12345678" in said[1]
    return said


def test_transactions_come_back_whole_with_their_offsets(lost: Lost) -> None:
    broker = lost.begin()
    broker.create_topic(SOURCE, 1)
    broker.create_topic(COPIES, PLACES)
    copier = Copier(broker.bootstrap_servers)
    eventually(lambda: copier.read() > 3, "some transactions are committed")
    lost.cut_after(now_ms())
    random_moment(random.Random(), within_s=1.5)
    copier.kill()
    lost.lose(broker)
    cut_ms = lost.state().cuts[-1].event.taken_ms

    broker = lost.begin(lost.restore("--take-over", "--force"))
    with closing(Confluent(broker.bootstrap_servers, "copier")):
        # It ends what was open at the instant.
        numbers = [values_of(broker, COPIES, place) for place in range(PLACES)]
    assert numbers[0] == numbers[1] == numbers[2] == [str(number) for number in range(len(numbers[0]))]
    assert committed(broker) == len(numbers[0])
    assert len(numbers[0]) >= sum(acked_ms < cut_ms for acked_ms in copier.acked)
    assert len(numbers[0]) <= len(copier.acked) + 1


def test_a_lost_broker_comes_back_with_all_that_was_in_the_store(lost: Lost) -> None:
    broker = lost.begin()
    broker.create_topic("tiered", 2, {"remote.storage.enable": "true", "segment.bytes": "1048576"})
    values = [os.urandom(50_000).hex() for _ in range(60)]
    produce(broker.bootstrap_servers, "tiered", values, 2)
    eventually(lambda: sum(map(len, lost.state().segments.values())) >= 4, "segments are uploaded")
    broker.create_topic("late", 1, {"retention.ms": "12345678"})
    before = identities(broker)
    lost.cut_after(now_ms())
    lost.lose(broker)

    restored = lost.restore("--take-over", "--force")
    assert len(list((restored / "tiered-0").glob("*.log"))) < 4
    broker = lost.begin(restored)
    for partition in range(2):
        assert values_of(broker, "tiered", partition) == values[partition::2]
    ends = [end_of(broker, "tiered", partition) for partition in range(2)]
    assert ends == [30, 30]
    assert "12345678" in OwnCli(broker.bootstrap_servers)("topic", "describe", "late").out
    assert listed(broker) == before
    produce(broker.bootstrap_servers, "tiered", values, 2)
    assert [end_of(broker, "tiered", partition) for partition in range(2)] == [60, 60]
    # The restored one makes cuts and uploads, too.
    count = len(lost.state().segments)
    lost.cut_after(now_ms())
    lost.lose(broker)
    broker = lost.begin(lost.restore("--take-over", "--force"))
    assert values_of(broker, "tiered", 1) == values[1::2] * 2
    assert len(lost.state().segments) == count


def test_a_client_that_is_ahead_of_the_cut_sees_truncation(lost: Lost) -> None:
    broker = lost.begin(mpbroker_remote_checkpoint_interval_ms="3600000")
    broker.create_topic("short", 1)
    produce(broker.bootstrap_servers, "short", ["kept"] * 5)
    before_ms = now_ms()
    # Its first cut comes at once, the next one in an hour.
    broker.restart()
    lost.cut_after(before_ms)
    taken_ms = lost.state().cuts[-1].event.taken_ms
    produce(broker.bootstrap_servers, "short", ["lost"] * 5)
    assert lost.state().cuts[-1].event.taken_ms == taken_ms
    lost.lose(broker)

    broker = lost.begin(lost.restore("--take-over", "--force"))
    assert end_of(broker, "short", 0) == 5
    produce(broker.bootstrap_servers, "short", ["other"] * 20)
    ahead = TopicPartition("short", 0, 8, "", 0)
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "ahead",
        "auto.offset.reset": "error",
    }
    with closing(Consumer(settings)) as consumer:
        consumer.assign([ahead])
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is not None, message.value()
        said = message.error().str()
        assert "truncation detected at offset 8 (leader epoch 0): broker end offset is 5" in said


def test_the_owner_that_wakes_late_is_fenced_and_does_no_harm(lost: Lost) -> None:
    old = lost.begin()
    old.create_topic("tiered", 1, {"remote.storage.enable": "true", "segment.bytes": "1048576"})
    values = [os.urandom(50_000).hex() for _ in range(30)]
    produce(old.bootstrap_servers, "tiered", values)
    lost.cut_after(now_ms())
    asleep = [old.pid, *pids(old).values()]
    for pid in asleep:
        os.kill(pid, signal.SIGSTOP)
    try:
        new = lost.begin(lost.restore("--take-over", "--force"))
        produce(new.bootstrap_servers, "tiered", values)
    finally:
        for pid in asleep:
            os.kill(pid, signal.SIGCONT)
    # It must not go on to acknowledge what no restore brings back.
    eventually(lambda: not old.is_running, "the old owner ends")
    assert "another broker has taken the ledger over" in old.logs()
    assert "stopped with status 2" in old.logs()
    old.kill()
    lost.cut_after(now_ms())
    lost.lose(new)

    again = lost.begin(lost.restore("--take-over", "--force"))
    assert values_of(again, "tiered", 0) == values * 2


def test_a_restore_without_a_take_over_reads_and_writes_nothing_there(lost: Lost) -> None:
    broker = lost.begin()
    broker.create_topic("tiered", 1, {"remote.storage.enable": "true", "segment.bytes": "1048576"})
    values = [os.urandom(50_000).hex() for _ in range(60)]
    produce(broker.bootstrap_servers, "tiered", values)
    eventually(lambda: sum(map(len, lost.state().segments.values())) >= 4, "segments are uploaded")
    lost.cut_after(now_ms())
    cli = OwnCli("")
    cli.refused("restore", "--from", lost.url, "--log-dirs", "x", "--take-over", says="--force", code=1)
    assert cli("restore", "--from", lost.url, "--verify", "--json").json["segments"] >= 4
    trial = lost.restore()
    cli.refused(
        "restore", "--from", lost.url, "--log-dirs", str(trial), says="log, perhaps of an earlier restore"
    )
    reader = lost.begin(trial)
    assert values_of(reader, "tiered", 0) == values
    eventually(lambda: "the ledger belongs to another broker" in reader.logs(), "it is fenced")
    status = ["remote", "status", "--log-dirs", str(trial)]
    eventually(lambda: cli(*status, "--json").json["segments"] >= 4, "it counts what it reads")
    said = cli(*status).out
    assert "stopped: nothing is uploaded or deleted\n" in said
    assert "newest cut" not in said
    # The owner goes on.
    lost.cut_after(now_ms())
    broker.kill()
    before = sorted(path.name for path in (lost.root / "store").rglob("*"))
    produce(reader.bootstrap_servers, "tiered", values)
    reader.stop()
    assert sorted(path.name for path in (lost.root / "store").rglob("*")) == before
    # So does a fork, which is another cluster.
    fork = lost.begin(lost.restore("--fork"), mpbroker_remote_read_only="true")
    cli = OwnCli(fork.bootstrap_servers)
    assert values_of(fork, "tiered", 0) == values
    produce(fork.bootstrap_servers, "tiered", values)
    status = cli("remote", "status", "--json").json
    assert (status["state"], status["fenced"], status["owner"]) == ("reads only", False, None)
    assert status["segments"] >= 4
    original = LedgerReader(lost.store).read_format()
    assert original is not None
    assert cli("cluster", "--json").json["cluster_id"] != original.cluster_id
    fork.stop()
    assert sorted(path.name for path in (lost.root / "store").rglob("*")) == before


def test_compacted_topics_come_back_while_they_are_compacted(lost: Lost) -> None:
    broker = lost.begin(log_cleaner_backoff_ms="50")
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "1048576"}
    broker.create_topic("keys", 1, configs)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    acked: dict[bytes, tuple[int, int]] = {}
    count = 0

    def write() -> None:
        nonlocal count
        for _ in range(40):
            key = str(count % 7).encode()
            producer.produce("keys", f"{count} ".encode() + bytes(50_000), key)
            assert producer.flush(PATIENCE_S) == 0
            acked.setdefault(key, (now_ms(), count))
            count += 1

    for _ in range(4):
        write()
    eventually(lambda: len(values_of(broker, "keys", 0)) < count - 30, "the topic is compacted")
    lost.cut_after(now_ms())
    acked.clear()
    write()
    lost.lose(broker)
    cut_ms = lost.state().cuts[-1].event.taken_ms

    broker = lost.begin(lost.restore("--take-over", "--force"))
    newest: dict[bytes, int] = {}
    for message in messages(broker.bootstrap_servers, "keys", [0], COMMITTED):
        number = int((message.value() or b"").split()[0])
        assert newest.get(message.key() or b"", -1) < number
        newest[message.key() or b""] = number
    assert newest.keys() == {str(number).encode() for number in range(7)}
    # Of each key what was there before the last writes, or a later one.
    assert all(newest[key] >= number - 7 for key, (_, number) in acked.items())
    assert all(newest[key] >= number for key, (acked_ms, number) in acked.items() if acked_ms < cut_ms)


def test_a_lost_broker_comes_back_from_a_bucket(
    lost: Lost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with object_store_server(tmp_path) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        lost.url = f"s3://{server.bucket.name}/prefix"
        (server.bucket / "prefix").mkdir()
        # The server keeps objects as files, and removes directories that become empty.
        (server.bucket / "prefix" / "somebodys").touch()
        lost.store = DirectoryStore(server.bucket / "prefix")
        broker = lost.begin()
        broker.create_topic("tiered", 1, {"remote.storage.enable": "true", "segment.bytes": "1048576"})
        values = [os.urandom(50_000).hex() for _ in range(60)]
        produce(broker.bootstrap_servers, "tiered", values)
        eventually(lambda: sum(map(len, lost.state().segments.values())) >= 4, "segments are uploaded")
        lost.cut_after(now_ms())
        lost.lose(broker)
        target = tmp_path / "restored"
        words = ["restore", "--from", lost.url, "--log-dirs", str(target), "--take-over", "--force"]
        # A process of its own: who has used a bucket cannot fork.
        subprocess.run([sys.executable, "-m", "mpbroker", *words], check=True, stdout=subprocess.DEVNULL)
        broker = lost.begin(target)
        assert values_of(broker, "tiered", 0) == values
        broker.stop()


def test_nothing_is_acknowledged_or_seen_before_the_store_has_it(lost: Lost) -> None:
    broker = lost.begin(mpbroker_remote_acks="ledger", mpbroker_remote_request_timeout_ms="500")
    broker.create_topic("orders", 1)
    produce(broker.bootstrap_servers, "orders", ["first"])
    transaction = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "waits"})
    transaction.init_transactions(PATIENCE_S)
    transaction.begin_transaction()
    transaction.produce("orders", "second")
    assert transaction.flush(PATIENCE_S) == 0
    log = broker.log_dir / "orders-0" / "00000000000000000000.log"
    before = log.stat().st_size
    (lost.root / "store").rename(lost.root / "away")

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": 1})
    producer.produce("orders", "third")
    eventually(lambda: bool(producer.poll(0) == 0) and log.stat().st_size > before, "it is on the disk")
    eventually(lambda: "records cannot be acknowledged" in broker.logs(), "the store fails")
    with pytest.raises(KafkaException):
        transaction.commit_transaction(0.5)
    # The tier is replaced meanwhile.
    os.kill(pids(broker)["tier"], signal.SIGKILL)
    assert len(producer) == 1
    assert end_of(broker, "orders", 0) == 2

    (lost.root / "away").rename(lost.root / "store")
    assert producer.flush(PATIENCE_S) == 0
    transaction.commit_transaction(PATIENCE_S)
    # The end is acknowledged before the markers are there.
    wanted = ["first", "second", "third"]
    eventually(lambda: values_of(broker, "orders", 0) == wanted, "the transaction's marker is shipped")


@each("seed", short=[1], long=range(1, 31))
def test_whatever_was_acknowledged_from_the_ledger_comes_back(lost: Lost, seed: int) -> None:
    chance = random.Random(seed)
    broker = lost.begin(mpbroker_remote_acks="ledger")
    broker.create_topic(SOURCE, 1)
    broker.create_topic(COPIES, PLACES, {"segment.bytes": "1048576"})
    copier = Copier(broker.bootstrap_servers)
    eventually(lambda: copier.read() > 3, "some transactions are committed")
    random_moment(chance, within_s=1.5)
    lost.lose(broker)
    copier.kill()

    broker = lost.begin(lost.restore("--take-over", "--force"), mpbroker_remote_acks="ledger")
    with closing(Confluent(broker.bootstrap_servers, "copier")):
        # It ends what was open.
        numbers = [values_of(broker, COPIES, place) for place in range(PLACES)]
    assert numbers[0] == numbers[1] == numbers[2] == [str(number) for number in range(len(numbers[0]))]
    assert committed(broker) == len(numbers[0])
    assert len(copier.acked) <= len(numbers[0]) <= len(copier.acked) + 1
