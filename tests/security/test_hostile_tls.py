"""TLS clients that mean harm, on real processes: handshakes that never end, records beyond all measure."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Iterator

import psutil
import pytest

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.messages import MetadataRequest
from ops.bench.brokers import HOST
from tests.chaos.leaks import complaints
from tests.support.polling import PATIENCE_S, until
from tests.support.real_brokers import served
from tests.support.secure_broker import Closed, SecureBroker
from tests.support.worker_load import pids

LISTENERS = ("TLS", "MUTUAL", "BOTH")
LOGIN_MS = 3_000
CROWD_EACH = 60
# OpenSSL's side of a handshake under way, and Python's.
HALF_OPEN_BYTES_EACH = 128 << 10
# Content types and version of records (RFC 8446, 5.1), and what one may hold.
HANDSHAKE, DATA, TLS_VERSION = 22, 23, 0x303
RECORD_MAX = 1 << 14
CLIENT_HELLO = 1
# What a handshake message can claim to have.
CLAIMED = (1 << 24) - 1
# More than any handshake needs: by then the broker has to have had enough.
ENOUGH_BYTES = 4 << 20
KEPT_BYTES_MAX = 8 << 20


@pytest.fixture(scope="module", name="impatient")
def _impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    flags = ("-o", f"connections.max.login.ms={LOGIN_MS}")
    with served(SecureBroker(tmp_path_factory.mktemp("broker"), flags=flags)) as running:
        yield running
        assert complaints(running) == []
        assert "Traceback" not in running.output()


def dial(broker: SecureBroker, listener: str) -> socket.socket:
    return socket.create_connection((HOST, broker.ports[listener]), timeout=PATIENCE_S)


def serves_others(broker: SecureBroker) -> None:
    with broker.connect("TLS") as client:
        assert client.ask(ApiKey.METADATA, 12, MetadataRequest([])).brokers


def hello(broker: SecureBroker) -> bytes:
    """Return the first flight of a client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = broker.tls_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def record(kind: int, data: bytes) -> bytes:
    return struct.pack(">BHH", kind, TLS_VERSION, len(data)) + data


def own_bytes_of(broker: SecureBroker) -> int:
    return int(psutil.Process(pids(broker)["processor 0"]).memory_full_info().uss)


def is_over(sock: socket.socket) -> bool:
    """Read what there is; return True if the broker has closed the connection."""
    sock.setblocking(False)
    try:
        while sock.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def test_handshakes_that_never_end_cost_little_and_have_their_time(impatient: SecureBroker) -> None:
    """Some stop behind the hello, some send a byte now and then, for which no time is added."""
    serves_others(impatient)
    before = own_bytes_of(impatient)
    first = hello(impatient)
    with contextlib.ExitStack() as crowd:
        silent, dripping = [], []
        for number in range(CROWD_EACH * len(LISTENERS)):
            sock = crowd.enter_context(dial(impatient, LISTENERS[number % len(LISTENERS)]))
            is_silent = number % 2 == 0
            sock.sendall(first if is_silent else struct.pack(">BHH", HANDSHAKE, TLS_VERSION, RECORD_MAX))
            (silent if is_silent else dripping).append(sock)
        serves_others(impatient)
        there = len(silent) + len(dripping)
        assert own_bytes_of(impatient) - before < there * HALF_OPEN_BYTES_EACH

        def are_gone() -> bool:
            for sock in dripping:
                with contextlib.suppress(OSError):
                    sock.send(b"\1")
            serves_others(impatient)
            return all(is_over(sock) for sock in (*silent, *dripping))

        until(are_gone, "the broker ends all of them")
    assert "connections.max.login.ms" in impatient.output()


def claimed() -> Iterator[bytes]:
    """Yield a hello that claims all that can be claimed, in whole records."""
    head = struct.pack(">B", CLIENT_HELLO) + CLAIMED.to_bytes(3) + struct.pack(">H", TLS_VERSION)
    yield record(HANDSHAKE, head.ljust(RECORD_MAX, b"\0"))
    while True:
        yield record(HANDSHAKE, bytes(RECORD_MAX))


def oversized() -> Iterator[bytes]:
    """Yield records of the largest size that their head can tell, which none may have."""
    while True:
        yield record(HANDSHAKE, bytes((1 << 16) - 1))


def early() -> Iterator[bytes]:
    """Yield data before any handshake."""
    while True:
        yield record(DATA, bytes(RECORD_MAX))


def warnings() -> Iterator[bytes]:
    """Yield alerts that only warn, without end (CVE-2016-8610)."""
    while True:
        yield record(21, b"\1\x5a") * 1_000


@pytest.mark.parametrize("says", [claimed, oversized, early, warnings])
@pytest.mark.parametrize("listener", LISTENERS)
def test_records_beyond_all_measure_end_the_connection(
    impatient: SecureBroker, listener: str, says: type[Iterator[bytes]]
) -> None:
    before = own_bytes_of(impatient)
    with dial(impatient, listener) as sock:
        sent = 0
        with contextlib.suppress(ConnectionError):
            for piece in says():
                sock.sendall(piece)
                sent += len(piece)
                if sent > ENOUGH_BYTES:
                    break
        assert sent <= ENOUGH_BYTES, "nobody has ended it"
        assert own_bytes_of(impatient) - before < KEPT_BYTES_MAX
    serves_others(impatient)


def test_a_record_that_is_too_large_behind_the_handshake(impatient: SecureBroker) -> None:
    with impatient.connect("TLS") as client:
        client.ask(ApiKey.METADATA, 12, MetadataRequest([]))
        with socket.socket(fileno=client.sock.fileno()) as below:
            try:
                below.sendall(record(DATA, bytes((1 << 16) - 1)))
            finally:
                below.detach()
        with pytest.raises((Closed, OSError)):
            client.answer(ApiKey.METADATA, 12)
    serves_others(impatient)
