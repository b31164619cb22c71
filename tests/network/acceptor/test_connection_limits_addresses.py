"""How fast an address may connect (`connection_creation_rate` of entity `ip`), set while the broker runs."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from pathlib import Path

from typer.testing import CliRunner

from mpbroker.cli.main import app
from ops.bench.brokers import HOST, Mpbroker
from tests.support.acceptor_tools import (
    TIMEOUT_S,
    Start,
    is_answered,
    is_closed,
    kill_and_await,
    listener,
    listening,
    processes,
)
from tests.support.client_tools import eventually

LIMITED, OTHER = "127.0.0.2", "127.0.0.3"
# At one connection a second over Kafka's window, of those that come at once.
SERVED = 10
# The window is a second longer when the last comes nearly a second after the first.
SERVED_AT_1, SERVED_AT_2 = range(SERVED, SERVED + 2), range(2 * SERVED, 2 * SERVED + 3)


def quota(broker: Mpbroker, *arguments: str) -> None:
    def succeeds() -> bool:
        done = CliRunner().invoke(app, ["quota", *arguments, "--bootstrap-server", broker.bootstrap])
        # A coordinator that was killed says so until its successor serves.
        assert done.exit_code == 0 or "NOT_CONTROLLER" in str(done.exception), done.output
        return done.exit_code == 0

    eventually(succeeds, "the quota is changed")


def come(broker: Mpbroker, address: str) -> socket.socket:
    return socket.create_connection((HOST, broker.port), TIMEOUT_S, (address, 0))


def served(broker: Mpbroker, address: str, stack: contextlib.ExitStack) -> int:
    """How many come in until one is refused: it is silent for a while and then closed, without a byte."""
    for number in range(SERVED * 3):
        client = stack.enter_context(come(broker, address))
        try:
            if not is_answered(client):
                raise AssertionError("it is neither served nor closed")
        except OSError:
            return number
    return SERVED * 3


def test_an_address_that_comes_too_fast(start: Start, tmp_path: Path, stack: contextlib.ExitStack) -> None:
    path = tmp_path / "kafka.sock"
    broker = start(
        *listening(LOCAL=f"unix:{path}"),
    )
    quota(broker, "set", "connection_creation_rate=1", "--ip", LIMITED)
    begun = time.monotonic()
    for _ in range(SERVED):
        assert is_answered(stack.enter_context(come(broker, LIMITED)))
    refused = stack.enter_context(come(broker, LIMITED))
    assert is_closed(refused)
    assert time.monotonic() - begun > 0.9, "it is closed when it could have come in"
    assert listener(broker)["throttled_per_ip"] == 1
    for _ in range(SERVED + 1):
        assert is_answered(stack.enter_context(come(broker, OTHER)))
        local = stack.enter_context(socket.socket(socket.AF_UNIX))
        local.connect(str(path))
        assert is_answered(local)
    kill_and_await(broker, "acceptor", lambda: None)
    assert served(broker, LIMITED, stack) in SERVED_AT_1, "its successor knows the rate and measures anew"
    quota(broker, "delete", "connection_creation_rate", "--ip", LIMITED)
    assert served(broker, LIMITED, stack) > SERVED


def test_the_default_is_for_who_has_no_rate_of_its_own(start: Start, stack: contextlib.ExitStack) -> None:
    broker = start()
    quota(broker, "set", "connection_creation_rate=1000", "--ip", HOST)
    quota(broker, "set", "connection_creation_rate=2", "--ip", LIMITED)
    quota(broker, "set", "connection_creation_rate=1", "--default", "ip")
    assert served(broker, OTHER, stack) in SERVED_AT_1
    assert served(broker, LIMITED, stack) in SERVED_AT_2
    kill_and_await(broker, "coordinator", lambda: None)
    quota(broker, "delete", "connection_creation_rate", "--ip", LIMITED)
    assert served(broker, LIMITED, stack) == 0, "now the default's, by what it has done"
    broker.stop()
    broker.start()
    assert served(broker, OTHER, stack) in SERVED_AT_1, "rates survive a restart"
    quota(broker, "delete", "connection_creation_rate", "--default", "ip")
    assert served(broker, OTHER, stack) > SERVED


def test_a_stop_closes_what_waits_to_be_closed(start: Start, stack: contextlib.ExitStack) -> None:
    broker = start()
    quota(broker, "set", "connection_creation_rate=1", "--ip", LIMITED)
    clients = [stack.enter_context(come(broker, LIMITED)) for _ in range(SERVED + 20)]
    eventually(lambda: listener(broker)["throttled_per_ip"] == 20, "they are parked")
    assert broker.stop() == 0
    assert all(is_closed(client) for client in clients)


def test_those_that_wait_to_be_closed_keep_nobody_out(start: Start, stack: contextlib.ExitStack) -> None:
    """Check that an address that comes much too fast cannot hold all descriptors of the acceptor."""
    broker = start()
    quota(broker, "set", "connection_creation_rate=1", "--ip", LIMITED)
    assert served(broker, LIMITED, stack) == SERVED
    acceptor = processes(broker, "acceptor")[0]
    soft, hard = acceptor.rlimit(resource.RLIMIT_NOFILE)
    room = max(int(Path(one.name).name) for one in Path(f"/proc/{acceptor.pid}/fd").iterdir()) + 10
    acceptor.rlimit(resource.RLIMIT_NOFILE, (room, hard))
    for _ in range(10):
        for _ in range(20):
            stack.enter_context(come(broker, LIMITED))
        assert is_answered(stack.enter_context(come(broker, OTHER)))
    acceptor.rlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "cannot accept" not in broker.output()


def test_many_rates_and_acceptors_that_die_between_them(start: Start, stack: contextlib.ExitStack) -> None:
    """Check that a successor reads a whole state, whenever it begins."""
    broker = start()
    for number in range(6):
        quota(broker, "set", f"connection_creation_rate={number + 1}", "--ip", LIMITED)
        if number % 2:
            processes(broker, "acceptor")[0].kill()
    assert served(broker, LIMITED, stack) == 3 * SERVED, "all that were tried"
