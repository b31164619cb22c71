"""What comes first at a start, and what clients notice of it."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mpbroker.cli.main import app
from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import Listener
from mpbroker.ipc import topology
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.process import ProcessContext
from mpbroker.ipc.topology import SharedMemory
from mpbroker.network import handover
from mpbroker.network.processor.processor import Processor, connection_prefix
from mpbroker.storage.names import RECOVERY_POINTS
from ops.bench import frames
from ops.bench.brokers import HOST, Mpbroker
from tests.support.acceptor_tools import TIMEOUT_S, Start, control, counted, hears, listening, options
from tests.support.client_tools import eventually
from tests.support.polling import is_readable

EMPTY_CHECKPOINT = b"0\n0\n"


def test_ports_are_taken_at_once_and_refuse_clients_until_the_log_is_recovered(tmp_path: Path) -> None:
    """Check it while recovery waits for a checkpoint that is a pipe, as long as the test wants."""
    with tempfile.TemporaryDirectory(prefix="mpbroker-notify-") as short:
        address = f"{short}/notify"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(address)
            broker = Recovering(tmp_path)
            broker.manager = address
            broker.pipe.parent.mkdir(parents=True)
            os.mkfifo(broker.pipe)
            try:
                broker.start()
                broker.wait_for_recovery()
                # As Kafka's since KAFKA-14658: a probe of the port must not take it for one that serves.
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(broker.address)
                with socket.socket() as other, pytest.raises(OSError, match="in use"):
                    other.bind(broker.address)
                assert "READY=1" not in told(manager)
                broker.recover()
                eventually(lambda: "READY=1" in told(manager), "the service manager is told")
                with socket.create_connection(broker.address, timeout=TIMEOUT_S) as client:
                    client.sendall(frames.api_versions().frame)
                    assert hears(client, TIMEOUT_S)
                assert broker.stop() == 0
            finally:
                broker.kill()


class Recovering(Mpbroker):
    """A broker whose log process waits for the recovery points. `start` waits for nothing."""

    manager = ""
    end = -1

    @property
    def pipe(self) -> Path:
        return self.log_dir / RECOVERY_POINTS

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "NOTIFY_SOCKET": self.manager}

    def _wait_ready(self, deadline: float) -> None:
        """The test does."""

    def wait_for_recovery(self) -> None:
        """A pipe can be opened for writing without waiting when somebody reads it (fifo(7))."""

        def is_read() -> bool:
            with contextlib.suppress(OSError):
                self.end = os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK)
            return self.end >= 0

        eventually(is_read, "the log process recovers")

    def recover(self) -> None:
        os.write(self.end, EMPTY_CHECKPOINT)
        os.close(self.end)


def told(manager: socket.socket) -> list[str]:
    """Return what the service manager was told since the last call."""
    found: list[str] = []
    while is_readable(manager):
        found += manager.recv(4096).decode().split("\n")
    return found


def test_the_control_plane_is_served_first(start: Start) -> None:
    broker = start(
        *listening(CONTROL=f"{HOST}:0"),
        *options(control_plane_listener_name="CONTROL"),
    )

    def since(role: int) -> int:
        return counted(broker, Counter.COUNT_STARTED_NS, role)

    workers = (topology.CONTROL_PROCESSOR, topology.CONTROL_HANDLER, topology.FIRST_PROCESSOR)
    assert max(map(since, workers)) < since(topology.CONTROL_ACCEPTOR) < since(topology.ACCEPTOR)


def test_status_names_what_each_listener_advertises(start: Start) -> None:
    broker = start(
        *listening(ALL=":0", ELSEWHERE=f"{HOST}:0"),
        "-o",
        "advertised.listeners=ELSEWHERE://kafka.example:19092",
    )
    shown = control(broker).call("status")["advertised"]
    assert shown[0] == f"PLAINTEXT://{broker.bootstrap}"
    assert shown[1].startswith("ALL://<the address that the client connected to>:")
    assert shown[2] == "ELSEWHERE://kafka.example:19092"
    printed = CliRunner().invoke(app, ["ctl", "status", "--log-dirs", str(broker.log_dir)])
    assert printed.exit_code == 0, printed.output
    assert all(one in printed.output.replace("\n", "") for one in (shown[0], shown[2]))


@pytest.mark.parametrize(
    ("settings", "privileged"),
    [
        ({}, []),
        ({"inter_broker_listener_name": "B"}, [1]),
        ({"inter_broker_listener_name": "B", "control_plane_listener_name": "C"}, [2]),
    ],
)
def test_who_is_privileged(memory: SharedMemory, settings: dict[str, str], privileged: list[int]) -> None:
    """Check it from the configuration to what a handler sees of a connection."""
    listeners = tuple(Listener(name, "PLAINTEXT", HOST, 9000 + n) for n, name in enumerate("ABC"))
    config = BrokerConfig(listeners=listeners, **settings)  # type: ignore[arg-type]
    role = topology.processor(0)
    with contextlib.ExitStack() as stack:
        outbox, inbox = map(stack.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        processor = Processor(ProcessContext(role, memory, config), inbox, {}, ())
        listening = stack.enter_context(socket.create_server((HOST, 0)))
        for number in range(len(listeners)):
            stack.enter_context(socket.create_connection(listening.getsockname()))
            connection, _ = listening.accept()
            ticket = memory.connections(role).hand(number, b"\x7f\0\0\1")
            message = handover.pack(ticket, number, b"\x7f\0\0\1")
            socket.send_fds(outbox, [message], [connection.detach()])
        processor._take_connections()
        sessions = [
            memory.sessions(role).of(channel, connection_prefix(role, 1) + channel + 1)
            for channel in range(len(listeners))
        ]
        assert [session.listener for session in sessions] == [0, 1, 2]
        assert [session.listener for session in sessions if session.privileged] == privileged
