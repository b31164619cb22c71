"""A session is whole or not there, and says what its processor wrote."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from collections.abc import Iterator

import pytest

from mpbroker.ipc import session
from mpbroker.ipc.session import SecurityProtocol, SessionGone, Sessions, TooLong
from shm.region import sparse
from tests.support.forms import rounds

CHANNEL, CONNECTION = 3, 8 << 56 | 1 << 40 | 17


@pytest.fixture
def sessions() -> Sessions:
    return Sessions(sparse(16 * session.BYTES_EACH))


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """(the client's end, the broker's)"""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        served, _ = listener.accept()
        with client, served:
            yield client, served


def opened(sessions: Sessions, served: socket.socket, connection: int = CONNECTION) -> None:
    sessions.open(CHANNEL, connection, served.fileno(), 2, 1, SecurityProtocol.SASL_SSL, True)


def test_a_new_connection_is_anonymous_and_knows_both_ends(
    sessions: Sessions, sockets: tuple[socket.socket, socket.socket]
) -> None:
    client, served = sockets
    opened(sessions, served)
    seen = sessions.of(CHANNEL, CONNECTION)
    assert (seen.client_host, seen.client_port) == client.getsockname()
    assert (seen.local_host, seen.local_port) == served.getsockname()
    assert (seen.principal, seen.principal_type, seen.principal_name) == (
        session.ANONYMOUS,
        "User",
        "ANONYMOUS",
    )
    assert (seen.listener, seen.security_protocol, seen.privileged) == (1, SecurityProtocol.SASL_SSL, True)
    assert (seen.client_software_name, seen.client_software_version) == ("unknown", "unknown")
    assert (seen.mechanism, seen.cipher, seen.tls_version, seen.expires_ns) == ("", "", "", 0)
    here, there = served.getsockname()[1], client.getsockname()[1]
    assert seen.connection_id == f"127.0.0.1:{here}-127.0.0.1:{there}-2-17"


def test_ipv6_unix_and_mapped_addresses(sessions: Sessions) -> None:
    with socket.socket(socket.AF_INET6) as listener:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::", 0))
        listener.listen()
        port = listener.getsockname()[1]
        # Clients' addresses are written as Java does.
        for address, client in (("::1", "0:0:0:0:0:0:0:1"), ("127.0.0.1", "127.0.0.1")):
            with socket.create_connection((address, port)), listener.accept()[0] as served:
                opened(sessions, served)
                seen = sessions.of(CHANNEL, CONNECTION)
                assert (seen.client_host, seen.local_host, seen.local_port) == (client, address, port)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        opened(sessions, ours)
        seen = sessions.of(CHANNEL, CONNECTION)
        assert (seen.client_host, seen.client_port) == ("unix", 0)


def test_what_authentication_finds_is_set_in_parts(
    sessions: Sessions, sockets: tuple[socket.socket, socket.socket]
) -> None:
    opened(sessions, sockets[1])
    before = sessions.of(CHANNEL, CONNECTION)
    sessions.set(CHANNEL, CONNECTION, cipher="TLS_AES_256_GCM_SHA384", tls_version="TLSv1.3")
    sessions.set(
        CHANNEL, CONNECTION, principal="User:CN=ä:b,O=c", mechanism="SCRAM-SHA-512", expires_ns=1 << 60
    )
    seen = sessions.of(CHANNEL, CONNECTION)
    assert (seen.cipher, seen.tls_version) == ("TLS_AES_256_GCM_SHA384", "TLSv1.3")
    assert (seen.principal_type, seen.principal_name) == ("User", "CN=ä:b,O=c")
    assert (seen.mechanism, seen.expires_ns) == ("SCRAM-SHA-512", 1 << 60)
    assert seen.revision > before.revision
    # A session that was taken does not change.
    assert (before.principal, before.cipher) == (session.ANONYMOUS, "")


def test_a_principal_that_does_not_fit_is_refused_and_changes_nothing(
    sessions: Sessions, sockets: tuple[socket.socket, socket.socket]
) -> None:
    opened(sessions, sockets[1])
    longest = "User:" + "x" * (session.PRINCIPAL_BYTES_MAX - 5)
    sessions.set(CHANNEL, CONNECTION, principal=longest)
    with pytest.raises(TooLong, match="at most 591"):
        sessions.set(CHANNEL, CONNECTION, mechanism="PLAIN", principal=longest + "x")
    for wrong in ("User:a\0b", "nobody", ":a", "User:"):
        with pytest.raises(ValueError, match=r"zero byte|is type:name"):
            sessions.set(CHANNEL, CONNECTION, principal=wrong)
    seen = sessions.of(CHANNEL, CONNECTION)
    assert (seen.principal, seen.mechanism) == (longest, "")


def test_another_connection_in_the_place_is_not_mistaken(
    sessions: Sessions, sockets: tuple[socket.socket, socket.socket]
) -> None:
    for channel, connection in ((CHANNEL, CONNECTION), (CHANNEL, 0), (16, CONNECTION), (1 << 31, 1)):
        with pytest.raises(SessionGone):
            sessions.of(channel, connection)
    opened(sessions, sockets[1])
    sessions.set(CHANNEL, CONNECTION, principal="User:a")
    opened(sessions, sockets[1], CONNECTION + 1)
    with pytest.raises(SessionGone):
        sessions.of(CHANNEL, CONNECTION)
    assert sessions.of(CHANNEL, CONNECTION + 1).principal == session.ANONYMOUS
    with pytest.raises(SessionGone):
        sessions.set(CHANNEL, CONNECTION, principal="User:b")


def test_a_client_that_has_gone_leaves_no_session(sessions: Sessions) -> None:
    with socket.socket() as unconnected, pytest.raises(OSError, match="getpeername"):
        opened(sessions, unconnected)
    with pytest.raises(SessionGone):
        sessions.of(CHANNEL, CONNECTION)


def _change_for_ever(sessions: Sessions, fd: int) -> None:
    number = 0
    while True:
        number += 1
        sessions.open(CHANNEL, CONNECTION + number % 2, fd, 0, 0, 0, False)
        sessions.set(CHANNEL, CONNECTION + number % 2, principal=f"User:{'ab'[number % 2] * 400}")


def test_a_writer_that_is_killed_leaves_a_whole_session_or_none(
    sessions: Sessions, sockets: tuple[socket.socket, socket.socket]
) -> None:
    context = multiprocessing.get_context("fork")
    for _ in range(rounds(15)):
        writer = context.Process(target=_change_for_ever, args=(sessions, sockets[1].fileno()), daemon=True)
        writer.start()
        whole = 0
        while whole < 20:
            for connection in (CONNECTION, CONNECTION + 1):
                try:
                    principal = sessions.of(CHANNEL, connection).principal
                except SessionGone:
                    continue
                whole += len(principal) == 405
                assert principal in (session.ANONYMOUS, f"User:{'ab'[connection & 1 ^ 1] * 400}")
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        # Whatever it left, a successor's first act makes it good.
        opened(sessions, sockets[1])
        assert sessions.of(CHANNEL, CONNECTION).principal == session.ANONYMOUS


def test_who_has_logged_in_by_a_token_says_so_until_it_logs_in_otherwise(
    sessions: Sessions, sockets: tuple[socket.socket, socket.socket]
) -> None:
    opened(sessions, sockets[1])
    seen = sessions.of(CHANNEL, CONNECTION)
    assert not seen.token_authenticated
    sessions.set(CHANNEL, CONNECTION, token_authenticated=True)
    seen = sessions.of(CHANNEL, CONNECTION)
    assert (seen.token_authenticated, seen.privileged) == (True, True)
    sessions.set(CHANNEL, CONNECTION, principal="User:ann")
    assert sessions.of(CHANNEL, CONNECTION).token_authenticated
    sessions.set(CHANNEL, CONNECTION, token_authenticated=False)
    seen = sessions.of(CHANNEL, CONNECTION)
    assert (seen.token_authenticated, seen.privileged) == (False, True)
