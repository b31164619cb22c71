"""A failure says where requests are: who waits for an answer, what nobody has read, who holds it."""

from __future__ import annotations

import socket
from pathlib import Path

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.topology import COORDINATOR, HANDLERS, SharedMemory
from tests.chaos.under_way import connections, processes
from tests.support.polling import until


def test_a_request_that_is_not_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as broker:
        address = broker.getsockname()
        with socket.create_connection(address) as client, broker.accept()[0] as accepted:
            accepted.send(b"answer")
            assert client.recv(6) == b"answer"
            until(lambda: "has its answer" in "".join(connections(address[1])), "the kernel's clock moves")
            client.send(b"request")
            until(lambda: "unread 7 and 0 bytes" in "".join(connections(address[1])), "it has come")
            (line,) = connections(address[1])
            assert line.startswith(f"connection of :{client.getsockname()[1]}: sent ")


def test_a_client_that_waits() -> None:
    with socket.create_server(("127.0.0.1", 0)) as broker:
        address = broker.getsockname()
        with socket.create_connection(address) as client, broker.accept()[0] as accepted:

            def asks_and_waits() -> bool:
                client.send(b"?")
                return "waits for an answer" in "".join(connections(address[1]))

            accepted.send(b"answer")
            assert client.recv(6) == b"answer"
            until(asks_and_waits, "it has sent later than it has received")


def test_nobody_is_connected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as broker:
        assert list(connections(broker.getsockname()[1])) == []


def test_a_broker_that_is_being_started_again(tmp_path: Path) -> None:
    """Check that a description which fails does not hide why a client gave up."""
    (line,) = processes(tmp_path / "public")
    assert line.startswith("no broker serves at this moment: ")


def test_who_holds_something(memory: SharedMemory) -> None:
    assert list(processes(Path(memory.public_path))) == []
    memory.counters(HANDLERS[1]).set(Counter.COUNT_CALLS_DELAYED, 2)
    memory.counters(HANDLERS[1]).beat()
    memory.counters(COORDINATOR).set(Counter.COUNT_ARENA_BYTES, 4096)
    memory.counters(COORDINATOR).set_status("waiting for a log process")
    coordinator, handler = sorted(processes(Path(memory.public_path)))
    assert coordinator.startswith("coordinator: 4096 bytes lent; awake ")
    assert coordinator.endswith(" ms ago waiting for a log process")
    assert handler.startswith("handler 1: 2 calls not answered; awake ")
