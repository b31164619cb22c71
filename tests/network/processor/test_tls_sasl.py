"""TLS and SASL channels of a processor in the test's own process: sessions, counters, memory, descriptors."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpbroker.ipc.counters import Counter, Histogram
from mpbroker.network.processor.channel import CloseReason
from mpbroker.network.processor.sasl_exchange import FRAMES_PER_TALK_MAX
from mpbroker.network.processor.secure_channel import Stage
from mpbroker.network.processor.tls_handshake import HANDSHAKES_PER_TURN_MAX
from mpbroker.network.processor.tls_sasl import TALKS_PER_TURN_MAX
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.protocol.messages import (
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from mpbroker.security.listener import SecurityError
from mpbroker.security.principals import Principal
from tests.support.polling import PATIENCE_S
from tests.support.processor_rig import PROCESSOR, answer_frame, frame
from tests.support.tls_processor_rig import (
    AUTHORITY,
    DELAY_MS,
    METADATA,
    SASL,
    TLS,
    SecureRig,
    ask,
    log_in,
    receive,
    request,
    secure_rig,
)


@pytest.fixture(name="rig")
def _rig(tmp_path: Path) -> Iterator[SecureRig]:
    with secure_rig(tmp_path) as made:
        yield made


def test_sasl_says_who_it_is_and_becomes_an_ordinary_connection(rig: SecureRig) -> None:
    client = rig.meet(SASL)
    assert rig.session(client).principal == "User:ANONYMOUS"
    log_in(rig, client)
    session = rig.session(client)
    assert (session.principal, session.mechanism, session.expires_ns) == ("User:ann", "PLAIN", 0)
    assert (session.client_software_name, session.client_software_version) == ("tester", "1.2")
    assert rig.counter(Counter.COUNT_AUTHENTICATIONS) == 1
    client.recv(65536)
    client.sendall(frame(METADATA, 1, 9, b"body"))
    # Without Python: the turn alone serves it.
    rig.turn.turn(0)
    (taken,) = rig.requests_taken()
    rig.answer(taken, answer_frame(9, b"hello"))
    rig.turn.turn(0)
    assert client.recv(100) == answer_frame(9, b"hello")


def test_a_certificate_says_who_it_is(rig: SecureRig) -> None:
    client = rig.handshake()
    session = rig.session(client)
    assert session.principal == "User:jane"
    assert (session.tls_version, session.mechanism) == ("TLSv1.3", "")
    assert session.cipher.startswith("TLS_")
    assert rig.counter(Counter.COUNT_AUTHENTICATIONS) == 1


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_resumed_session_is_still_hers(rig: SecureRig, version: ssl.TLSVersion) -> None:
    """Check that the ticket keeps the principal: the second handshake shows no certificate."""
    context = rig.jane()
    context.maximum_version = version
    first = rig.handshake(context)
    taken = rig.ask(first, frame(METADATA, 1, 1))
    rig.answer(taken, answer_frame(1))
    receive(rig, first, len(answer_frame(1)))
    again = rig.handshake(context, first.session)
    assert again.session_reused
    assert rig.session(again).principal == "User:jane"


def test_revoked_certificates(tmp_path: Path) -> None:
    """A list that names a client refuses it. Another list holds for new connections, also resumed ones."""
    lists = tmp_path / "revoked.pem"
    lists.write_bytes(AUTHORITY.revoke())
    jane, eve = AUTHORITY.sign("Jane"), AUTHORITY.sign("Eve")
    with secure_rig(tmp_path, f"listener.name.tls.mpbroker.ssl.crl.location={lists}\n") as rig:
        contexts = []
        for one in (jane, eve):
            context = ssl.create_default_context(cadata=AUTHORITY.pem.decode())
            context.load_cert_chain(one.write(tmp_path / "one.pem"))
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            contexts.append(context)
        first = [rig.handshake(context) for context in contexts]
        assert [rig.session(each).principal for each in first] == ["User:jane", "User:eve"]
        lists.write_bytes(AUTHORITY.revoke(eve))
        rig.now_ns += 2_000_000_000
        rig.step()
        assert rig.session(rig.handshake(contexts[0])).principal == "User:jane"
        for session in (None, first[1].session):
            with pytest.raises(ssl.SSLError, match=r"(?i)revoked"):
                rig.handshake(contexts[1], session)
        lists.write_bytes(AUTHORITY.revoke(expires=-datetime.timedelta(days=1)))
        rig.now_ns += 2_000_000_000
        rig.step()
        with pytest.raises(ssl.SSLError):
            rig.handshake(contexts[0])


def test_what_is_no_revocation_list(tmp_path: Path) -> None:
    for content in (b"", b"nonsense", AUTHORITY.pem):
        (tmp_path / "lists.pem").write_bytes(content)
        with (
            pytest.raises(SecurityError, match=r"lists\.pem has no certificate revocation lists in PEM"),
            secure_rig(tmp_path, f"listener.name.tls.mpbroker.ssl.crl.location={tmp_path}/lists.pem\n"),
        ):
            pass


def test_a_crowd_of_handshakes_is_spread_over_turns(rig: SecureRig) -> None:
    client = rig.handshake()
    context = rig.jane()
    crowd = []
    for _ in range(HANDSHAKES_PER_TURN_MAX * 2 + 1):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        other = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            other.do_handshake()
        crowd.append(rig.meet(TLS))
        crowd[-1].sendall(outgoing.read())
        crowd[-1].setblocking(False)
    client.send(frame(METADATA, 1, 1))
    rig.turn.turn(0)
    rig.secure.serve()
    rig.turn.turn(0)
    (taken,) = rig.requests_taken()
    rig.answer(taken, answer_frame(1))
    assert sum(answered(each) for each in crowd) == HANDSHAKES_PER_TURN_MAX
    rig.step()
    assert sum(answered(each) for each in crowd) == len(crowd)


def answered(client: socket.socket) -> bool:
    try:
        return bool(client.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


# Answered, and leads nowhere: nobody knows this version of ApiVersions.
NOWHERE = frame(ApiKey.API_VERSIONS, 127, 1, tags=b"\0")


def frames_in(data: bytes) -> int:
    count = 0
    while data:
        data = data[4 + int.from_bytes(data[:4]) :]
        count += 1
    return count


def test_who_pipelines_before_authentication_has_a_bounded_share(rig: SecureRig) -> None:
    greedy, modest = rig.meet(SASL), rig.meet(SASL)
    versions = request(ApiKey.API_VERSIONS, 3, ApiVersionsRequest("tester", "1.2"))
    greedy.setblocking(False)
    modest.setblocking(False)
    left = memoryview(NOWHERE * 10_000)
    sent = greedy.send(left)
    modest.sendall(versions)
    rig.turn.turn(0)
    rig.secure.serve()
    came = greedy.recv(1 << 20)
    assert frames_in(came) == FRAMES_PER_TALK_MAX
    assert answered(modest), "another client waits for one that asks without end"
    until = time.monotonic() + PATIENCE_S
    while came.count(b"\0\0\0\x10") < 10_000 and time.monotonic() < until:
        with contextlib.suppress(BlockingIOError):
            sent += greedy.send(left[sent:])
        # What was in the socket already brings no edge: each turn goes on by itself.
        rig.turn.turn(0)
        rig.secure.serve()
        with contextlib.suppress(BlockingIOError):
            came += greedy.recv(1 << 20)
    assert frames_in(came) == 10_000
    greedy.settimeout(PATIENCE_S)
    log_in(rig, greedy)
    assert rig.session(greedy).principal == "User:ann"


def test_a_crowd_that_pipelines_is_spread_over_turns(rig: SecureRig) -> None:
    crowd = [rig.meet(SASL) for _ in range(64 - 2)]
    monopoly = TALKS_PER_TURN_MAX // 2
    for client in crowd:
        client.sendall(NOWHERE * (FRAMES_PER_TALK_MAX + 1))
        client.setblocking(False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mpbroker.network.processor.tls_sasl.TALKS_PER_TURN_MAX", monopoly)
        rig.turn.turn(0)
        rig.secure.serve()
        first = [answered(client) for client in crowd]
        assert sum(first) == monopoly
        # Who had a share stands behind those that had none.
        rig.turn.turn(0)
        rig.secure.serve()
        assert sum(answered(client) for client in crowd) == len(crowd)
    rig.step()
    assert all(frames_in(client.recv(1 << 20)) == FRAMES_PER_TALK_MAX + 1 for client in crowd)


def test_two_requests_in_one_record(rig: SecureRig) -> None:
    client = rig.handshake()
    first = rig.ask(client, frame(METADATA, 1, 1) + frame(METADATA, 1, 2))
    assert rig.requests_taken() == []
    rig.answer(first, answer_frame(1))
    rig.step()
    (second,) = rig.requests_taken()
    assert (first.correlation, second.correlation) == (1, 2)
    rig.answer(second, answer_frame(2))
    rig.step()
    expected = answer_frame(1) + answer_frame(2)
    assert receive(rig, client, len(expected)) == expected


def test_large_requests_and_answers_over_full_sockets(rig: SecureRig) -> None:
    client = rig.handshake()
    body, at = os.urandom(3 << 20), 0
    data = frame(METADATA, 1, 1, body)
    taken: list[Any] = []

    def sent() -> bool:
        nonlocal at
        try:
            while at < len(data):
                at += client.send(data[at:])
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        taken.extend(rig.requests_taken())
        return bool(taken)

    rig.until(sent)
    assert rig.bytes_of(taken[0]) == data
    answer = answer_frame(1, body)
    rig.answer(taken[0], answer)
    rig.step(50)
    assert receive(rig, client, len(answer)) == answer


def test_a_failure_is_answered_when_its_time_has_come(rig: SecureRig) -> None:
    client = rig.meet(SASL)
    log_in(rig, client, "wrong")
    assert rig.secure.timeout_ms(300) == DELAY_MS
    rig.now_ns += (DELAY_MS - 1) * 1_000_000
    rig.step()
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.recv(1)
    rig.now_ns += 1_000_000
    rig.step()
    answer = decode_response_frame(ApiKey.SASL_AUTHENTICATE, 2, client.recv(1000)[4:])[1]
    assert answer.error_code == 58
    assert client.recv(1) == b""
    assert rig.secure.timeout_ms(300) == 300
    assert rig.counter(Counter.COUNT_AUTHENTICATIONS_FAILED) == 1
    assert [reason for _, reason in rig.ends] == [CloseReason.CLOSED_AUTHENTICATION]


def test_who_does_not_wait_for_the_failure(rig: SecureRig) -> None:
    client = rig.meet(SASL)
    log_in(rig, client, "wrong")
    client.close()
    rig.step()
    assert [reason for _, reason in rig.ends] == [CloseReason.CLOSED_BY_PEER]
    rig.now_ns += 10**10
    rig.step()


def authentication(client: socket.socket) -> Any:
    return decode_response_frame(ApiKey.SASL_AUTHENTICATE, 2, client.recv(1000)[4:])[1]


def fail_often(rig: SecureRig, times: int = 8) -> None:
    """Fail as ann, each time after the pause that is due. The next login of hers waits for PAUSED_MS."""
    for _ in range(times):
        log_in(rig, rig.meet(SASL), "wrong")
        rig.now_ns += rig.secure.timeout_ms(100_000) * 1_000_000
        rig.step()


# Eight failures in less than ten seconds: five are free, and of the last a part is forgotten already.
PAUSED_MS = DELAY_MS << 2


def test_after_many_failures_the_right_password_waits_as_a_wrong_one_does(rig: SecureRig) -> None:
    fail_often(rig)
    right, wrong = rig.meet(SASL), rig.meet(SASL)
    log_in(rig, right)
    log_in(rig, wrong, "wrong")
    for client in (right, wrong):
        client.setblocking(False)
    assert rig.secure.timeout_ms(10_000) == PAUSED_MS
    rig.now_ns += (PAUSED_MS - 1) * 1_000_000
    rig.step()
    for client in (right, wrong):
        with pytest.raises(BlockingIOError):
            client.recv(1)
    assert rig.session(right).principal == "User:ANONYMOUS"
    rig.now_ns += 1_000_000
    rig.step()
    assert authentication(right).error_code == 0
    assert rig.session(right).principal == "User:ann"
    assert authentication(wrong).error_code == 58
    assert rig.secure.timeout_ms(300) == 300
    # And it is a connection like any other.
    right.sendall(frame(METADATA, 1, 9, b"body"))
    rig.turn.turn(0)
    (taken,) = rig.requests_taken()
    rig.answer(taken, answer_frame(9, b"hello"))
    rig.turn.turn(0)
    assert right.recv(100) == answer_frame(9, b"hello")


def test_what_is_pipelined_behind_a_login_that_waits_is_served_after_it(rig: SecureRig) -> None:
    fail_often(rig)
    client = rig.meet(SASL)
    log_in(rig, client)
    client.sendall(frame(METADATA, 1, 9, b"body"))
    rig.step()
    assert rig.requests_taken() == []
    rig.now_ns += 10**9
    rig.step()
    assert authentication(client).error_code == 0
    (taken,) = rig.requests_taken()
    rig.answer(taken, answer_frame(9, b"hello"))
    rig.turn.turn(0)
    assert client.recv(100) == answer_frame(9, b"hello")


def test_who_does_not_wait_for_a_success(rig: SecureRig) -> None:
    fail_often(rig)
    client = rig.meet(SASL)
    log_in(rig, client)
    client.close()
    rig.now_ns += 10**10
    rig.step()
    assert CloseReason.CLOSED_BY_PEER in [reason for _, reason in rig.ends]
    assert rig.secure.sasl.held == rig.secure.channels.peers == {}


def test_a_pause_ends_in_time_for_the_right_password(tmp_path: Path) -> None:
    """Check that no setting makes the pause longer than a connection may take to log in."""
    lines = "connection.failed.authentication.delay.max.ms=1000000\nconnections.max.login.ms=4000\n"
    with secure_rig(tmp_path, lines) as rig:
        fail_often(rig, 30)
        client = rig.meet(SASL)
        log_in(rig, client)
        assert rig.secure.timeout_ms(100_000) == 2000
        rig.now_ns += 2_000_000_000
        rig.step()
        assert authentication(client).error_code == 0


def test_pauses_can_be_turned_off(tmp_path: Path) -> None:
    with secure_rig(tmp_path, "connection.failed.authentication.delay.max.ms=0\n") as rig:
        fail_often(rig, 30)
        client = rig.meet(SASL)
        log_in(rig, client)
        assert rig.session(client).principal == "User:ann"


def test_no_request_memory_before_authentication(rig: SecureRig) -> None:
    for _ in range(20):
        client = rig.meet(SASL)
        client.sendall(struct.pack(">i", 10_000) + b"x" * 1000)
        rig.meet(TLS).sendall(b"\x16\x03\x01\x02\x00\x01")
    rig.step()
    assert rig.in_use_bytes() == 0
    assert rig.turn.open_connections() == 40


def test_an_error_at_one_connection_is_its_own_end(
    rig: SecureRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    good = rig.meet(SASL)
    rig.step()
    bad = rig.meet(SASL)
    monkeypatch.setitem(rig.secure.stages, Stage.TALKING, lambda _peer: 1 // 0)
    bad.sendall(b"x")
    rig.step()
    monkeypatch.undo()
    assert [reason for _, reason in rig.ends] == [CloseReason.CLOSED_FAILED]
    assert "ZeroDivisionError" in caplog.text
    log_in(rig, good)
    assert rig.session(good).principal == "User:ann"


def test_a_handshake_that_fails_is_counted(rig: SecureRig) -> None:
    client = rig.meet(TLS)
    client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    rig.step()
    assert rig.counter(Counter.COUNT_AUTHENTICATIONS_FAILED) == 1
    assert [reason for _, reason in rig.ends] == [CloseReason.CLOSED_TLS]


def test_who_does_not_trust_us_is_counted_though_it_is_gone(
    rig: SecureRig, caplog: pytest.LogCaptureFixture
) -> None:
    """Check it with a close that becomes a reset, which arrives together with the client's alert."""
    caplog.set_level(logging.INFO)
    with pytest.raises(ssl.SSLCertVerificationError):
        rig.handshake(ssl.create_default_context())
    rig.clients[-1].close()
    rig.step()
    assert [reason for _, reason in rig.ends] == [CloseReason.CLOSED_BY_PEER], "the reset was seen first"
    assert rig.counter(Counter.COUNT_AUTHENTICATIONS_FAILED) == 1
    assert " on TLS: failed TLS handshake: tlsv1 alert unknown ca" in caplog.text


def test_who_goes_in_the_middle_of_a_handshake_is_no_failure(rig: SecureRig) -> None:
    client = rig.jane().wrap_socket(rig.meet(TLS), server_hostname="localhost", do_handshake_on_connect=False)
    client.setblocking(False)
    with client, contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    rig.step()
    assert rig.counter(Counter.COUNT_AUTHENTICATIONS_FAILED) == 0


@pytest.mark.parametrize("stage", ["shaking", "talking", "failed", "half a token"])
def test_who_stops_half_way_expires_as_idle(rig: SecureRig, stage: str) -> None:
    """Check that connections.max.idle.ms ends an unfinished handshake or login, and frees everything."""
    client = rig.meet(TLS if stage == "shaking" else SASL)
    if stage == "shaking":
        client.sendall(b"\x16\x03\x01\x02\x00\x01")
    elif stage == "failed":
        log_in(rig, client, "wrong")
    else:
        ask(rig, client, ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
        client.sendall(b"\0\0" if stage == "talking" else struct.pack(">i", 1000) + b"x" * 500)
    rig.step()
    assert len(rig.secure.channels.peers) == 1
    assert len(rig.secure.sasl.held) == (stage == "failed")
    rig.turn.close_idle(time.monotonic_ns() - 60_000_000_000)
    assert rig.ends == []
    rig.turn.close_idle(time.monotonic_ns())
    rig.step()
    assert [reason for _, reason in rig.ends] == [CloseReason.CLOSED_IDLE]
    assert rig.secure.channels.peers == rig.secure.sasl.held == {}
    # Its time comes, and there is nothing to do.
    rig.now_ns += 10**10
    rig.step()


@pytest.fixture(name="short")
def _short(tmp_path: Path) -> Iterator[SecureRig]:
    """Sessions of SASL last for an hour at most; authentication is renewed at once."""
    made = SecureRig(tmp_path, "listener.name.sasl.plain.connections.max.reauth.ms=3600000\n")
    made.now_ns = time.monotonic_ns()
    yield made
    made.close()


TOKEN = request(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(b"\0ann\0secret"))


def test_a_re_authentication_is_counted_and_timed(short: SecureRig) -> None:
    client = short.meet(SASL)
    log_in(short, client)
    client.recv(65536)
    assert short.session(client).expires_ns > 0
    ask(short, client, ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
    short.now_ns += 7_000_000
    client.sendall(TOKEN)
    short.step()
    counters = short.memory.counters(PROCESSOR)
    assert short.counter(Counter.COUNT_AUTHENTICATIONS) == 1
    assert short.counter(Counter.COUNT_REAUTHENTICATIONS) == 1
    assert short.counter(Counter.COUNT_REAUTHENTICATIONS_FAILED) == 0
    assert sum(counters.histogram(Histogram.TIME_REAUTHENTICATION_NS)) == 1
    assert counters.histogram_sum(Histogram.TIME_REAUTHENTICATION_NS) == 7_000_000
    client.recv(65536)
    client.sendall(frame(METADATA, 1, 3))
    short.step()
    assert len(short.requests_taken()) == 1


def test_a_re_authentication_that_fails_is_counted(short: SecureRig) -> None:
    client = short.meet(SASL)
    log_in(short, client)
    client.recv(65536)
    ask(short, client, ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
    client.sendall(TOKEN.replace(b"secret", b"secreT"))
    short.step()
    assert short.counter(Counter.COUNT_REAUTHENTICATIONS_FAILED) == 1
    assert short.counter(Counter.COUNT_AUTHENTICATIONS_FAILED) == 0
    assert sum(short.memory.counters(PROCESSOR).histogram(Histogram.TIME_REAUTHENTICATION_NS)) == 0


def test_who_cannot_renew_and_comes_too_late_is_counted(short: SecureRig) -> None:
    """Check that the session of a client with SaslAuthenticate v0, which is told no lifetime, ends, too."""
    short.secure.sasl.wall_ms = lambda: time.time_ns() // 1_000_000 + 3_600_000
    client = short.meet(SASL)
    ask(short, client, ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
    client.sendall(request(ApiKey.SASL_AUTHENTICATE, 0, SaslAuthenticateRequest(b"\0ann\0secret")))
    short.now_ns = time.monotonic_ns()
    short.step()
    assert short.counter(Counter.COUNT_AUTHENTICATIONS_NO_REAUTH) == 1
    client.sendall(frame(METADATA, 1, 3))
    short.step()
    assert short.counter(Counter.COUNT_EXPIRED_KILLED) == 1
    assert [reason for _, reason in short.ends] == [CloseReason.CLOSED_SESSION_EXPIRED]


def test_a_name_that_no_session_can_keep_fails_the_authentication(
    rig: SecureRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = rig.meet(SASL)
    monkeypatch.setattr(Principal, "__str__", lambda _: "User:a\0b")
    log_in(rig, client)
    rig.now_ns += 10**10
    rig.step()
    assert [reason for _, reason in rig.ends] == [CloseReason.CLOSED_AUTHENTICATION]
    assert rig.counter(Counter.COUNT_AUTHENTICATIONS) == 0
