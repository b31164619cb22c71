"""Operators get through when clients do not: the control plane, and the control socket."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator

import psutil
import pytest

from mpbroker.ipc import topology
from mpbroker.ipc.counters import Counter
from ops.bench import frames, scenarios
from ops.bench.brokers import HOST, Mpbroker
from tests.support.acceptor_tools import (
    METADATA,
    TIMEOUT_S,
    Start,
    connect,
    control,
    counted,
    hears,
    is_answered,
    listening,
    options,
    port_of,
    processes,
)
from tests.support.client_tools import eventually
from tests.support.polling import is_readable, is_soon

# Nothing may wait for the data plane.
WITHIN_S = 0.1
# Less than the supervisor would wait for anybody.
# One data-plane worker of each kind: what is full is full for all.
ALONE = ("--processors", "1", "--handlers", "1")
MIB = 1 << 20


def with_control_plane(**settings: str | int) -> tuple[str, ...]:
    return (
        *listening(CONTROL=f"{HOST}:0"),
        *options(control_plane_listener_name="CONTROL", **settings),
        *ALONE,
    )


def status_is_soon(broker: Mpbroker) -> bool:
    return is_soon(lambda: control(broker).call("status"), WITHIN_S)


@contextlib.contextmanager
def stopped(broker: Mpbroker, title: str) -> Iterator[list[psutil.Process]]:
    found = processes(broker, title)
    assert found
    for process in found:
        process.suspend()
    try:
        yield found
    finally:
        for process in found:
            process.resume()


class Operator:
    """Who came before the jam, and comes again during it."""

    def __init__(self, broker: Mpbroker, stack: contextlib.ExitStack) -> None:
        self.broker = broker
        self.port = port_of(broker, "CONTROL")
        self.open = stack.enter_context(connect(broker, self.port))
        assert is_answered(self.open)

    def gets_through(self) -> None:
        assert is_soon(lambda: frames.exchange(self.open, METADATA), WITHIN_S)
        assert is_soon(self._come_anew, WITHIN_S)
        assert status_is_soon(self.broker)

    def _come_anew(self) -> None:
        with connect(self.broker, self.port) as client:
            frames.exchange(client, METADATA)


def test_the_control_plane_answers_when_everything_is_jammed_at_once(
    start: Start, stack: contextlib.ExitStack
) -> None:
    """Check it while every handler stands still, their rings are full, and request memory is used up."""
    sizes = {"socket_request_max_bytes": MIB, "queued_max_request_bytes": 8 * MIB}
    broker = start(*with_control_plane(queued_max_requests=5000, **sizes))
    scenarios.create_topic(broker, "full")
    operator = Operator(broker, stack)
    small = [stack.enter_context(connect(broker)) for _ in range(topology.REQUEST_RING_SLOTS + 200)]
    large = [stack.enter_context(connect(broker)) for _ in range(12)]
    request = frames.produce("full", records=1, value_bytes=MIB * 9 // 10)
    senders = [threading.Thread(target=client.sendall, args=(request.frame,)) for client in large]
    with stopped(broker, "handler 0"):
        for client in small:
            client.sendall(METADATA.frame)
        eventually(lambda: counted(broker, Counter.COUNT_RING_FULL) > 0, "the ring is full")
        for sender in senders:
            sender.start()
        eventually(lambda: counted(broker, Counter.COUNT_MEMORY_FULL) > 0, "the memory is used up")
        operator.gets_through()
    for sender in senders:
        sender.join(TIMEOUT_S)
    assert all(hears(client, TIMEOUT_S) for client in (*small, *large))


@pytest.mark.parametrize(
    "name", ["control-plane acceptor", "control-plane processor", "control-plane handler"]
)
def test_a_control_plane_that_hangs_is_replaced(start: Start, stack: contextlib.ExitStack, name: str) -> None:
    broker = start(*with_control_plane(handler_hang_timeout_ms=2000))
    (hung,) = processes(broker, name)
    hung.suspend()
    eventually(lambda: not hung.is_running() and len(processes(broker, name)) == 1, f"{name} is replaced")
    eventually(
        lambda: is_answered(stack.enter_context(connect(broker, port_of(broker, "CONTROL")))), "it serves"
    )
    assert broker.output().count("is killed") == 1, broker.output()


def test_without_a_control_plane_the_control_socket_answers(
    start: Start, stack: contextlib.ExitStack
) -> None:
    broker = start(*ALONE)
    clients = [stack.enter_context(connect(broker)) for _ in range(600)]
    with stopped(broker, "handler 0"), stopped(broker, "log 0"), stopped(broker, "coordinator"):
        for client in clients:
            client.sendall(METADATA.frame)
        assert not hears(clients[0], within_s=0.2)
        assert status_is_soon(broker)
    assert all(hears(client, TIMEOUT_S) for client in clients)


def test_status_is_told_while_the_supervisor_waits_for_an_answer(start: Start) -> None:
    """Check it while a stopped handler does not acknowledge the death of a processor."""
    broker = start()
    handlers, (processor,) = processes(broker, "handler"), processes(broker, "processor")[:1]
    for handler in handlers:
        handler.suspend()
    processor.kill()
    eventually(lambda: "was killed by SIGKILL" in broker.output(), "the supervisor mends the death")
    shown = control(broker).call("status")
    assert "does not acknowledge" not in broker.output(), "the supervisor waited for the handlers first"
    assert any(each["name"] == "processor 0" for each in shown["processes"])
    for handler in handlers:
        handler.resume()
    with connect(broker) as client:
        assert is_answered(client)


def test_a_silent_client_of_the_control_socket_holds_up_nobody(start: Start) -> None:
    broker = start()
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) for _ in range(5)]
        for client in silent:
            client.connect(str(broker.runtime_dir / "control.sock"))
        control(broker).call("status")
        assert not any(map(is_readable, silent)), "the supervisor gave one of them up first"
        os.kill(processes(broker, "acceptor")[0].pid, signal.SIGKILL)
        with connect(broker) as client:
            assert is_answered(client)
