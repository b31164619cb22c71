"""A configuration that changes under a running broker: what follows it, who is replaced, and who notices."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.control_client import ControlError
from mpbroker.supervisor import config_diff
from ops.bench import frames
from ops.bench.brokers import ROOT, Mpbroker
from tests.support.configured_tree import FIRST, PATIENCE_S, Configured, control, described, pids
from tests.support.real_brokers import create_topic, served
from tests.support.worker_load import Load

CLIENTS = 6
MESSAGE_TOO_LARGE = 10
LOOKS = 12  # so many answers come from every handler
SECOND = """\
num.io.threads=2
num.network.threads=2
message.max.bytes=500
log.segment.bytes=1048576
num.partitions=5
auto.create.topics.enable=false
queued.max.requests=77
socket.request.max.bytes=2000000
connections.max.idle.ms=900000
fetch.max.bytes=65536
group.max.size=3
max.connections=500
max.incremental.fetch.session.cache.slots=77
advertised.listeners=PLAINTEXT://localhost:{port}
"""
CHANGED = {
    "message.max.bytes": "500",
    "log.segment.bytes": "1048576",
    "num.partitions": "5",
    "auto.create.topics.enable": "false",
    "queued.max.requests": "77",
    "socket.request.max.bytes": "2000000",
    "connections.max.idle.ms": "900000",
    "fetch.max.bytes": "65536",
    "group.max.size": "3",
    "max.connections": "500",
    "max.incremental.fetch.session.cache.slots": "77",
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Configured]:
    with served(Configured(tmp_path / "broker")) as made:
        yield made


class PlainClients:
    """They retry nothing: each request is answered, on the connection that it was sent on."""

    def __init__(self, broker: Mpbroker) -> None:
        with frames.connected(broker.address) as connection:
            frames.exchange(connection, frames.create_topic("plain", 1))
        self.errors: list[str] = []
        self.answered = [0] * CLIENTS
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(broker, n)) for n in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _send(self, broker: Mpbroker, number: int) -> None:
        request = frames.produce("plain", 1, 100)
        try:
            with frames.connected(broker.address) as connection:
                while not self._ending.is_set():
                    code, _ = frames.exchange(connection, request)
                    self.answered[number] += 1
                    if code:
                        self.errors.append(f"error {code}")
        except OSError as error:
            self.errors.append(repr(error))

    def end(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)


def test_everything_that_can_change_does_and_no_request_fails(broker: Configured) -> None:
    create_topic(broker.bootstrap, "load", 1)
    before = pids(broker)
    # Batches stay below the later message.max.bytes, however many records wait for a new handler.
    small_batches = {"batch.num.messages": "20"}
    clients, load = PlainClients(broker), Load(broker.bootstrap, "load", small_batches)
    try:
        load.goes_on()
        answer = broker.reload(SECOND)
        load.goes_on()
    finally:
        clients.end()
        load.end()
    assert clients.errors == load.errors == []
    assert min(clients.answered) > 0
    assert load.acked == load.read == load.sent
    assert answer["changed"] == sorted([*CHANGED, "advertised.listeners"])
    assert answer["at_next_start"] == []
    assert answer["replaced"] == ["handler 0", "handler 1"]
    after = pids(broker)
    assert after.keys() == before.keys()
    replaced = {name for name in before if before[name] != after[name]}
    assert replaced == {"handler 0", "handler 1"}, "only handlers need a fresh start"
    for _ in range(LOOKS):
        told = described(broker)
        assert {name: told[name] for name in CHANGED} == CHANGED
    assert "ERROR" not in broker.output()


def test_who_connects_meanwhile_is_answered(broker: Configured) -> None:
    """Each in a connection of its own, which may wait in the backlog."""
    failed: list[OSError] = []
    answered = [0] * CLIENTS
    over = threading.Event()

    def come_and_go(number: int) -> None:
        while not over.is_set():
            try:
                with frames.connected(broker.address) as connection:
                    frames.exchange(connection, frames.api_versions())
                    answered[number] += 1
            except OSError as error:
                failed.append(error)

    crowd = [threading.Thread(target=come_and_go, args=(n,)) for n in range(CLIENTS)]
    for each in crowd:
        each.start()
    for hours in range(1, 6):
        answer = broker.reload(FIRST + f"log.roll.hours={hours}\nmax.connections={1000 + hours}\n")
        assert answer["replaced"] == ["handler 0", "handler 1"]
    over.set()
    for each in crowd:
        each.join(PATIENCE_S)
    assert failed == []
    assert min(answered) > 5


def test_a_consumer_group_goes_on(broker: Configured) -> None:
    """Its heartbeats, commits and rebalances are with handlers that leave."""
    text = FIRST + "group.initial.rebalance.delay.ms=0\n"
    broker.reload(text)
    create_topic(broker.bootstrap, "t", 2)
    errors: list[KafkaError] = []
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "heartbeat.interval.ms": 100,
        "log_level": 0,
    }
    consumers = [Consumer({**settings, "error_cb": errors.append}) for _ in range(2)]
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "log_level": 0})
    for consumer in consumers:
        consumer.subscribe(["t"])
    seen: set[bytes | None] = set()
    for number in range(1, 6):
        producer.produce("t", b"%d" % number, partition=number % 2)
        answer = broker.reload(text + f"log.roll.hours={number}\n")
        assert answer["replaced"] == ["handler 0", "handler 1"]
        until = time.monotonic() + PATIENCE_S
        while b"%d" % number not in seen and time.monotonic() < until:
            for consumer in consumers:
                message = consumer.poll(0.1)
                if message is not None:
                    assert message.error() is None, message.error()
                    seen.add(message.value())
                    consumer.commit(message=message, asynchronous=False)
        assert b"%d" % number in seen
    for consumer in consumers:
        consumer.close()
    assert producer.flush(PATIENCE_S) == 0
    assert [str(error) for error in errors] == []


def test_what_has_changed_is_what_the_broker_does(broker: Configured) -> None:
    with frames.connected(broker.address) as connection:
        frames.exchange(connection, frames.create_topic("t", 1))
        frames.exchange(connection, frames.create_topic("own", 1, {"max.message.bytes": "90000"}))
        broker.reload(SECOND)
        for _ in range(LOOKS):
            assert frames.exchange(connection, frames.produce("t", 1, 5_000))[0] == MESSAGE_TOO_LARGE
            assert frames.exchange(connection, frames.produce("own", 1, 5_000))[0] == 0, (
                "its own setting wins"
            )
        for _ in range(30):
            assert frames.exchange(connection, frames.produce("own", 1, 80_000))[0] == 0
        segments = sorted((broker.log_dir / "own-0").glob("*.log"))
        assert len(segments) > 1, "the log process rolls at log.segment.bytes"
        # Metadata v1 of no topic: the address that clients are told.
        connection.sendall(struct.pack(">ihhihi", 14, 3, 1, 7, -1, 0))
        size = int.from_bytes(frames.receive(connection, 4))
        assert b"localhost" in frames.receive(connection, size)
        connection.sendall(struct.pack(">i", 2_000_001))
        assert connection.recv(1) == b"", "socket.request.max.bytes"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("num.partitions=5\nmessage.max.bytes=much\n", "message.max.bytes"),
        ("num.partitions=5\nnum.io.thread=1\n", "num.io.thread"),
        ("num.partitions=5\nmax.connections.per.ip.overrides=no.host.invalid:1\n", "cannot be resolved"),
        ("num.partitions=5\nmax.connections.per.ip.overrides=a..b:5\n", "'a..b' cannot be resolved"),
        ("num.partitions=5\nnum.io.threads=17\n", "cannot resize handlers from 2 to 17"),
        (
            "num.partitions=5\nsocket.request.max.bytes=2000000\nqueued.max.request.bytes=1000000\n",
            "at least",
        ),
    ],
)
def test_a_file_with_a_mistake_changes_nothing(broker: Configured, text: str, said: str) -> None:
    before, told = pids(broker), described(broker)
    with pytest.raises(ControlError, match="nothing changes: ") as refused:
        broker.reload(FIRST + text if "num.io" not in text else text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    errors = [line for line in broker.output().splitlines() if " ERROR " in line]
    assert len(errors) == 1
    assert said in errors[0]
    assert pids(broker) == before
    assert described(broker) == told
    broker.file.unlink()
    with pytest.raises(ControlError, match="cannot be read"):
        control(broker).call("reload")
    assert broker.reload(FIRST)["changed"] == []


def test_the_command_says_what_changed_or_why_not(broker: Configured) -> None:
    """As `systemctl reload` has it: its status is the reload's."""
    words = [sys.executable, "-m", "mpbroker", "ctl", "reload", "--log-dirs", str(broker.log_dir)]

    def run(text: str) -> subprocess.CompletedProcess[str]:
        broker.write(text)
        return subprocess.run(
            words, capture_output=True, text=True, check=False, env=broker.environment(), cwd=ROOT
        )

    done = run(FIRST + "log.roll.hours=3\nnode.id=7\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "warning: node.id cannot change while the broker runs: restart the broker",
        "changed log.roll.hours",
        "replaced handler 0, handler 1",
    ]
    refused = run(FIRST + "log.roll.hours=long\n")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.count("\n") == 1
    assert f"nothing changes: {broker.file}:4: " in refused.stderr


def test_numbers_of_workers_change_with_the_file_and_not_without(broker: Configured) -> None:
    assert broker.reload(FIRST.replace("io.threads=2", "io.threads=4"))["changed"] == ["num.io.threads"]
    assert {name for name in pids(broker) if name.startswith("handler")} == {f"handler {n}" for n in range(4)}
    assert described(broker)["num.io.threads"] == "4"
    control(broker).call("resize", handlers=3)
    assert described(broker)["num.io.threads"] == "3"
    answer = broker.reload(FIRST.replace("io.threads=2", "io.threads=4") + "log.roll.hours=3\n")
    assert answer["changed"] == ["log.roll.hours"]
    assert answer["replaced"] == ["handler 0", "handler 1", "handler 2"]
    assert len([name for name in pids(broker) if name.startswith("handler")]) == 3
    # Keys that are gone from the file have their defaults again.
    assert broker.reload("num.network.threads=2\nnum.io.threads=4\n")["changed"] == [
        "log.roll.hours",
        "message.max.bytes",
    ]
    assert described(broker)["log.roll.hours"] == "168"


def test_what_a_reload_changes_is_a_setting() -> None:
    """Check that a reload changes only settings that it names: a new setting waits for the next start."""
    fields = set(BrokerConfig.__struct_fields__)
    assert fields >= config_diff.FOLLOWED
    assert fields >= config_diff.WORKERS
    assert not config_diff.FOLLOWED & (config_diff.IN_TABLES | config_diff.WORKERS)
    assert "origins" not in config_diff.FOLLOWED
    for name in ("log_dirs", "node_id", "queued_max_request_bytes", "log_flush_policy", "quota_window_num"):
        assert name not in config_diff.FOLLOWED | config_diff.IN_TABLES | config_diff.WORKERS


def test_signals_in_a_row_and_a_resize_meanwhile(broker: Configured) -> None:
    assert broker.process is not None
    with frames.connected(broker.address) as connection:
        frames.exchange(connection, frames.create_topic("t", 1))
        for number in range(10):
            broker.write(FIRST + f"log.roll.hours={number + 1}\n")
            os.kill(broker.process.pid, signal.SIGHUP)
            assert frames.exchange(connection, frames.produce("t", 1, 100))[0] == 0
        control(broker).call("reload")
    assert described(broker)["log.roll.hours"] == "10"


def test_the_control_plane_follows_too(tmp_path: Path) -> None:
    text = (
        "num.io.threads=1\nnum.network.threads=1\ncontrol.plane.listener.name=CONTROL\n"
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROL:PLAINTEXT\n"
    )
    made = Configured(tmp_path / "broker", text=text)
    made.extra = ("--listeners", f"PLAINTEXT://127.0.0.1:{made.port},CONTROL://127.0.0.1:0")
    with served(made):
        shown = control(made).call("listeners")["listeners"]
        (port,) = [one["listener"].rpartition(":")[2] for one in shown if one["plane"] == "control"]
        before = pids(made)
        with socket.create_connection(("127.0.0.1", int(port)), timeout=PATIENCE_S) as client:
            for hours in range(1, 4):
                assert made.reload(text + f"log.roll.hours={hours}\n")["replaced"] == [
                    "handler 0",
                    "control-plane handler",
                ]
                frames.exchange(client, frames.api_versions())
        after = pids(made)
        assert {name for name in before if before[name] != after[name]} == {
            "handler 0",
            "control-plane handler",
        }
