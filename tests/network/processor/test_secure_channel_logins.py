"""Connections that are not authenticated: their time, their number and their memory."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpbroker.ipc.counters import Counter
from mpbroker.network.processor.channel import CloseReason
from mpbroker.network.processor.secure_channel import LARGE_FRAME_BYTES, LARGE_FRAMES_BYTES_MAX
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.messages import SaslHandshakeRequest
from tests.support.tls_processor_rig import SASL, TLS, SecureRig, ask, log_in, secure_rig

LOGIN_MS, MOST = 1000, 4
BROKER_PROPERTIES = f"connections.max.login.ms={LOGIN_MS}\nmax.unauthenticated.connections={MOST}\n"
ONE_PROCESSOR = "num.network.threads=1\n"
TOKEN_BYTES = 512 << 10


@pytest.fixture(name="rig")
def _rig(tmp_path: Path) -> Iterator[SecureRig]:
    with secure_rig(tmp_path, BROKER_PROPERTIES + ONE_PROCESSOR) as made:
        yield made


def is_closed(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


def reasons(rig: SecureRig) -> list[int]:
    return [reason for _, reason in rig.ends]


@pytest.mark.parametrize("listener", [SASL, TLS])
def test_who_does_not_log_in_is_closed(rig: SecureRig, listener: int) -> None:
    """Bytes that lead nowhere do not lengthen the time."""
    silent, dripping = rig.meet(listener), rig.meet(listener)
    for byte in b"\x16\x03\x01" if listener == TLS else bytes(3):
        rig.now_ns += LOGIN_MS * 1_000_000 // 4
        dripping.send(bytes([byte]))
        rig.step()
        assert reasons(rig) == []
    rig.now_ns += LOGIN_MS * 1_000_000 // 4
    rig.step()
    assert reasons(rig) == [CloseReason.CLOSED_LOGIN_TIMEOUT] * 2
    assert is_closed(silent)
    assert is_closed(dripping)
    assert rig.counter(Counter.COUNT_AUTHENTICATIONS_FAILED) == 2


def test_who_has_logged_in_stays(rig: SecureRig) -> None:
    client, certified = rig.meet(SASL), rig.handshake()
    log_in(rig, client)
    client.recv(65536)
    rig.now_ns += 10 * LOGIN_MS * 1_000_000
    rig.step()
    assert not is_closed(client)
    assert rig.session(certified).principal == "User:jane"
    assert reasons(rig) == []


def test_the_oldest_is_closed_for_a_newer_one(rig: SecureRig) -> None:
    """A crowd that stays silent keeps nobody else out."""
    crowd = [rig.meet(SASL) for _ in range(MOST)]
    log_in(rig, crowd[0])
    crowd[0].recv(65536)
    new = rig.meet(SASL)
    rig.step()
    assert reasons(rig) == []
    another = rig.meet(SASL)
    rig.step()
    assert reasons(rig) == [CloseReason.CLOSED_LOGIN_EXCESS]
    assert [is_closed(client) for client in [*crowd, new]] == [False, True, False, False, False]
    log_in(rig, another)


def test_a_crowd_does_not_fill_the_log(rig: SecureRig, caplog: pytest.LogCaptureFixture) -> None:
    """The first has its line, and a minute later the others have one together."""
    caplog.set_level("INFO", "mpbroker")
    for _ in range(MOST + 10):
        rig.meet(SASL)
        rig.step()
    rig.now_ns += 61_000_000_000
    rig.step()
    # The audit log has bounds of its own.
    told = [record.getMessage() for record in caplog.records if record.name == "mpbroker"]
    assert sum("max.unauthenticated.connections" in line for line in told) == 2
    assert "9 more connections on SASL met max.unauthenticated.connections in the last 61 s" in told
    assert sum("connections.max.login.ms" in line for line in told) == 1


def test_before_a_mechanism_is_agreed_frames_are_small(rig: SecureRig) -> None:
    client = rig.meet(SASL)
    client.sendall(struct.pack(">i", LARGE_FRAME_BYTES + 1))
    rig.step()
    assert reasons(rig) == [CloseReason.CLOSED_SASL_FRAME_SIZE]


def test_large_tokens_have_little_memory_together(tmp_path: Path) -> None:
    """Clients that send all of a large token but its last byte hold a part of the memory at most."""
    clients = LARGE_FRAMES_BYTES_MAX // TOKEN_BYTES + 3
    with secure_rig(tmp_path, ONE_PROCESSOR) as rig:
        for _ in range(clients):
            client = rig.meet(SASL)
            ask(rig, client, ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
            send_all(rig, client, struct.pack(">i", TOKEN_BYTES) + bytes(TOKEN_BYTES - 1))
        assert set(reasons(rig)) == {CloseReason.CLOSED_LOGIN_EXCESS}
        held = sum(len(peer.frame) for peer in rig.secure.channels.peers.values())
        assert held <= LARGE_FRAMES_BYTES_MAX
        assert len(rig.secure.channels.peers) >= clients - 4


def send_all(rig: SecureRig, client: socket.socket, data: bytes) -> None:
    """Send while the processor reads."""
    client.setblocking(False)
    left = memoryview(data)

    def is_sent() -> bool:
        nonlocal left
        with contextlib.suppress(BlockingIOError):
            left = left[client.send(left) :]
        return not left

    until: Callable[[Callable[[], bool]], None] = rig.until
    until(is_sent)
    rig.step(5)
