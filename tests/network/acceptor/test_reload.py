"""reload: the file is read again, limits of connections change at once, and nobody notices anything else."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path

from ops.bench import frames
from ops.bench.brokers import HOST, Mpbroker
from tests.support.acceptor_tools import (
    METADATA,
    Start,
    connect,
    control,
    hears,
    is_answered,
    is_closed,
    kill_and_await,
    listener,
    port_of,
    processes,
)
from tests.support.client_tools import eventually
from tests.support.polling import PATIENCE_S

LISTENER_LIMIT = "listener.name.small.max.connections"


class Configured:
    """A broker and its configuration file."""

    def __init__(self, start: Start, directory: Path, text: str, *flags: str) -> None:
        self.file = directory / "server.properties"
        self.file.write_text(text)
        self.broker: Mpbroker = start("--config", str(self.file), *flags)

    def reload(self, text: str, expected: str) -> None:
        self.file.write_text(text)
        assert self.broker.process is not None
        before = self.broker.output().count(expected)
        os.kill(self.broker.process.pid, signal.SIGHUP)
        eventually(lambda: self.broker.output().count(expected) > before, expected)


def test_limits_change_for_all_that_come_and_wait(
    start: Start, tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    made = Configured(start, tmp_path, "max.connections=1\n")
    broker = made.broker
    first, waiting = (stack.enter_context(connect(broker)) for _ in range(2))
    assert is_answered(first)
    waiting.sendall(frames.api_versions().frame)
    assert not hears(waiting, within_s=0.2)
    made.reload("max.connections=3\nmax.connections.per.ip=3\n", "reload: changed max.connections, max.conn")
    assert hears(waiting, within_s=PATIENCE_S), "who waited goes on"
    assert is_answered(stack.enter_context(connect(broker)))
    made.reload("max.connections=5\nmax.connections.per.ip=3\n", "reload: changed max.connections")
    assert is_closed(stack.enter_context(connect(broker))), "the fourth of this address"
    kill_and_await(broker, "acceptor", lambda: None)
    assert is_closed(stack.enter_context(connect(broker))), "a successor has the new limits"
    made.reload("max.connections=1\n", "reload: changed max.connections, max.connections.per.ip")
    eventually(lambda: listener(broker)["connections"] == 1, "the least recently active make room")


def test_limits_of_a_listener(start: Start, tmp_path: Path, stack: contextlib.ExitStack) -> None:
    protocols = "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SMALL:PLAINTEXT\n"
    listeners = ("--listeners", f"PLAINTEXT://{HOST}:PORT,SMALL://{HOST}:0")
    made = Configured(start, tmp_path, protocols, *listeners)
    port = port_of(made.broker, "SMALL")
    clients = [stack.enter_context(connect(made.broker, port)) for _ in range(2)]
    assert all(is_answered(client) for client in clients)
    made.reload(
        f"{protocols}{LISTENER_LIMIT}=2\n", "reload: changed listener.name.<listener>.max.connections"
    )
    third = stack.enter_context(connect(made.broker, port))
    third.sendall(frames.api_versions().frame)
    assert not hears(third, within_s=0.3)
    assert is_answered(stack.enter_context(connect(made.broker)))
    clients.pop().close()
    assert hears(third, within_s=PATIENCE_S)


def test_listeners_that_were_added_stay_as_they_are(
    start: Start, tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    protocols = "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,EXTRA:PLAINTEXT\n"
    made = Configured(start, tmp_path, protocols)
    added = control(made.broker).call("listener-add", listener=f"EXTRA://{HOST}:0", advertised="extra.host:1")
    port = int(added["listener"].rpartition(":")[2])
    text = f"{protocols}advertised.listeners=PLAINTEXT://plain.host:2\nmax.connections=50\n"
    made.reload(text, "reload: changed advertised.listeners, max.connections")
    for way, told in ((port, b"extra.host"), (made.broker.port, b"plain.host")):
        client = stack.enter_context(connect(made.broker, way))
        for _ in range(8):  # so many answers come from every handler
            assert told in frames.exchange(client, METADATA)[1]
    shown = {one["advertised"] for one in control(made.broker).call("listeners")["listeners"]}
    assert shown == {"EXTRA://extra.host:1", "PLAINTEXT://plain.host:2"}
    made.reload(protocols, "reload: changed advertised.listeners, max.connections")
    assert listener(made.broker, "EXTRA")["advertised"] == "EXTRA://extra.host:1"
    assert listener(made.broker)["advertised"] == f"PLAINTEXT://{HOST}:{made.broker.port}"


def test_what_cannot_change_is_named_and_what_cannot_be_read_changes_nothing(
    start: Start, tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    made = Configured(start, tmp_path, "max.connections.per.ip=1\n")
    made.reload("max.connections.per.ip=1\n", "reload: the configuration is as it was")
    text = "max.connections.per.ip=2\nnode.id=7\nlog.flush.policy=os\nssl.key.password=s3cret-Pa55word\n"
    made.reload(text, "reload: changed max.connections.per.ip, ssl.key.password")
    said = [
        line.partition("reload: ")[2] for line in made.broker.output().splitlines() if "cannot change" in line
    ]
    assert said == [
        f"{key} cannot change while the broker runs: restart the broker"
        for key in ("log.flush.policy", "node.id")
    ]
    assert "s3cret-Pa55word" not in made.broker.output()
    for bad in (
        "max.connections.per.ip=none\n",
        "max.connections.per.ip.overrides=no.such.host.invalid:1\n",
        "max.connection=1\n",
    ):
        made.reload(bad, "reload: nothing changes: ")
    first, second = (stack.enter_context(connect(made.broker)) for _ in range(2))
    assert is_answered(first)
    assert is_answered(second)
    assert is_closed(stack.enter_context(connect(made.broker)))


def test_a_hang_up_of_the_terminal_takes_nobody_away(start: Start) -> None:
    broker = start()
    assert broker.process is not None
    pids = {process.pid for process in processes(broker, "")}
    os.killpg(broker.process.pid, signal.SIGHUP)
    eventually(lambda: "started without a configuration file" in broker.output(), "it is told")
    assert "ERROR" not in broker.output()
    with socket.create_connection(broker.address, timeout=PATIENCE_S) as client:
        assert is_answered(client)
    assert {process.pid for process in processes(broker, "")} == pids
