"""TLS where it hurts: large requests and answers beside small ones, a crowd that never reads;
certificates that are exchanged and processors that die under load.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

from ops.bench import frames
from ops.bench.brokers import HOST
from tests.chaos.leaks import held
from tests.network.test_real_broker import (
    CHUNK,
    LARGE_LIMITS,
    SMALL_BLOCK,
    Small,
    connections,
    expire_all_but,
    reply_bytes,
    request_bytes,
    serve_small_beside,
)
from tests.security.test_resizing import security
from tests.support.acceptor_tools import options
from tests.support.client_tools import eventually
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import create_topic, served
from tests.support.secure_broker import SecureBroker
from tests.support.worker_load import Load, names, pids

CROWD = 200
# What OpenSSL and Python keep of a connection, an encrypted chunk of its answer, what it sent too early.
BYTES_EACH_MAX = 128 << 10
# What Python has of a connection; OpenSSL's side of it would be 8 KiB more with 3.0, 16 with 3.5.
SILENT_BYTES_EACH = 8 << 10
EXCHANGES = 4


@contextlib.contextmanager
def running(directory: Path, processors: int = 1, **settings: int) -> Iterator[SecureBroker]:
    broker = SecureBroker(directory / "broker", flags=options(**settings), processors=processors)
    with served(broker):
        yield broker
        eventually(lambda: not held(broker), "nothing is held when all have gone")
        assert "ERROR" not in broker.output(), broker.output()


@contextlib.contextmanager
def connected(broker: SecureBroker, room_bytes: int = 1 << 20) -> Iterator[ssl.SSLSocket]:
    with socket.socket() as plain:
        # What is not read stays with the broker.
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room_bytes)
        plain.settimeout(PATIENCE_S)
        plain.connect((HOST, broker.ports["TLS"]))
        with broker.tls_context().wrap_socket(plain, server_hostname="localhost") as secure:
            yield secure


def test_100_mb_each_way_beside_small_requests(tmp_path: Path) -> None:
    with running(tmp_path, **LARGE_LIMITS) as broker, connected(broker) as large:
        serve_small_beside(broker, large)


def test_a_crowd_that_never_reads_costs_a_chunk_each_and_expires(tmp_path: Path) -> None:
    with running(tmp_path, socket_send_buffer_bytes=4096) as broker, contextlib.ExitStack() as crowd:
        create_topic(broker.bootstrap, "wide", 1)
        with connected(broker) as connection:
            assert frames.exchange(connection, frames.produce("wide", 1, CHUNK))[0] == 0
        processor = psutil.Process(pids(broker)["processor 0"])
        before = processor.memory_full_info().uss
        socks = [crowd.enter_context(connected(broker, 4096)) for _ in range(CROWD)]
        for sock in socks:
            sock.sendall(frames.fetch("wide", 0, CHUNK).frame * 8)
        small = Small(broker)
        small.asks(100)
        assert reply_bytes(broker) < CROWD * 512, "records are encrypted from the file"
        assert request_bytes(broker) <= CROWD * 2 * SMALL_BLOCK
        assert processor.memory_full_info().uss - before < CROWD * BYTES_EACH_MAX
        expire_all_but(small, broker)
        small.close()


def test_a_crowd_that_says_nothing_costs_next_to_nothing(tmp_path: Path) -> None:
    """Connected, and no handshake begun: health checks, scanners, and who wants to use up memory."""
    with running(tmp_path) as broker, contextlib.ExitStack() as crowd:
        processor = psutil.Process(pids(broker)["processor 0"])
        with connected(broker) as sock:
            frames.exchange(sock, frames.api_versions())
        before = processor.memory_full_info().uss
        for _ in range(2 * CROWD):
            crowd.enter_context(socket.create_connection((HOST, broker.ports["TLS"]), timeout=PATIENCE_S))
        eventually(lambda: connections(broker) == 2 * CROWD, "all are there")
        # Who comes after them is served after them: each has had its turn.
        with connected(broker) as sock:
            frames.exchange(sock, frames.api_versions())
        assert processor.memory_full_info().uss - before < 2 * CROWD * SILENT_BYTES_EACH


class Newcomers:
    """Connects and asks again and again; nobody is ever refused."""

    def __init__(self, broker: SecureBroker) -> None:
        self.errors: list[str] = []
        self.certificates: set[bytes | None] = set()
        self._broker = broker
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                with connected(self._broker) as sock:
                    frames.exchange(sock, frames.api_versions())
                    self.certificates.add(sock.getpeercert(binary_form=True))
            except (OSError, EOFError) as error:
                self.errors.append(repr(error))

    def end(self) -> None:
        self._ending.set()
        self._thread.join()


@contextlib.contextmanager
def loaded(broker: SecureBroker) -> Iterator[list[Load]]:
    """Clients on both kinds of listeners, who have lost nothing at the end and were told of no error."""
    with contextlib.ExitStack() as stack:
        loads = []
        for listener in ("TLS", "BOTH"):
            create_topic(broker.bootstrap, listener, 1)
            load = Load(broker.address_of(listener), listener, security(broker, listener))
            loads.append(stack.enter_context(load))
        yield loads


def test_certificates_are_exchanged_under_load(tmp_path: Path) -> None:
    """Who is connected stays, and of those who come everyone is let in, with the old one or the new one."""
    with running(tmp_path, processors=2) as broker:
        newcomers = Newcomers(broker)
        try:
            with loaded(broker) as loads:
                for _ in range(EXCHANGES):
                    renewed = broker.signed("broker")
                    renewed.write(broker.directory / "new.pem").replace(broker.directory / "broker.pem")
                    eventually(lambda der=renewed.der: der in newcomers.certificates, "it is shown")
                    for load in loads:
                        load.goes_on()
        finally:
            newcomers.end()
        assert newcomers.errors == []


def test_processors_die_under_load(tmp_path: Path) -> None:
    """Their TLS is gone with them: clients connect again, and nothing is lost, doubled or left behind."""
    with running(tmp_path, processors=2) as broker, loaded(broker) as loads:
        for number in (0, 1, 0):
            for load in loads:
                load.goes_on()
            victim = psutil.Process(pids(broker)[f"processor {number}"])
            victim.send_signal(signal.SIGKILL)
            psutil.wait_procs([victim], timeout=PATIENCE_S)
            for load in loads:
                load.goes_on()
        eventually(lambda: names(broker, "processor") == {"processor 0", "processor 1"}, "both are there")
