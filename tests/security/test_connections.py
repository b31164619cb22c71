"""TLS and SASL over real sockets, by raw clients: what the broker does at each turn of a connection."""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import struct
import time
from functools import partial

import pytest

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    AlterUserScramCredentialsRequest,
    ApiVersionsRequest,
    DescribeUserScramCredentialsRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from mpbroker.security.scram import ScramType, salted_password
from ops.bench.brokers import HOST
from tests.support.client_tools import eventually
from tests.support.polling import PATIENCE_S, TRIES, is_soon
from tests.support.secure_broker import (
    FAILED_DELAY_MS,
    FRAME_BYTES_MAX,
    PLAIN_PASSWORD,
    REAUTH_MS,
    SCRAM_PASSWORD,
    Closed,
    RawClient,
    SecureBroker,
)

METADATA = (ApiKey.METADATA, 12, MetadataRequest(topics=[]))
Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
SHA512 = ScramType.SCRAM_SHA_512
# A wake-up that is lost shows as the longest sleep of a process, 300 ms.
SOON_S = 0.2


def serves(client: RawClient) -> bool:
    """Tell whether ordinary requests are answered."""
    return len(client.ask(*METADATA).brokers) == 1


def add_user(
    broker: SecureBroker, user: str, password: str = SCRAM_PASSWORD, kind: ScramType = SHA512
) -> None:
    salt = os.urandom(16)
    salted = salted_password(kind, password, salt, 4096)
    with broker.connect("OPEN") as client:
        body = AlterUserScramCredentialsRequest([], [Upsertion(user, kind, 4096, salt, salted)])
        (result,) = client.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, body).results
        assert (result.error_code, result.error_message) == (0, None)


# ---- TLS


def test_a_request_over_tls(broker: SecureBroker) -> None:
    with broker.connect("TLS") as client, broker.connect("MUTUAL", own=True) as mutual:
        for one in (client, mutual):
            assert isinstance(one.sock, ssl.SSLSocket)
            assert one.sock.version() == "TLSv1.3"
            assert serves(one)
            assert serves(one)


def test_who_must_show_a_certificate_and_does_not(broker: SecureBroker) -> None:
    with pytest.raises((ssl.SSLError, Closed)), broker.connect("MUTUAL") as client:
        serves(client)
    stranger = broker.tls_context()
    stranger.load_cert_chain(type(broker.authority)("stranger").sign("x").write(broker.directory / "x.pem"))
    with (
        pytest.raises((ssl.SSLError, Closed)),
        socket.create_connection((HOST, broker.ports["MUTUAL"])) as plain,
        stranger.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        serves(RawClient(secure))
    eventually(lambda: "failed TLS handshake" in broker.output(), "the log says why")


def test_who_speaks_no_tls_is_guessed(broker: SecureBroker) -> None:
    with socket.create_connection((HOST, broker.ports["TLS"])) as plain:
        plain.sendall(b"\0\0\0\x10 not a TLS hello")
        eventually(lambda: "(a client without TLS?)" in broker.output(), "the log guesses")


def test_a_frame_byte_by_byte(broker: SecureBroker) -> None:
    with broker.connect("BOTH") as client:
        for key, version, body in (
            (ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN")),
            (ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(f"\0ann\0{PLAIN_PASSWORD}".encode())),
            METADATA,
        ):
            for byte in client.frame(key, version, body):
                client.send(bytes([byte]))
            answer = client.answer(key, version)
        assert len(answer.brokers) == 1


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 200, os.urandom(500), b"\x16\x03\x01\x02\x00" + os.urandom(512), b""],
    ids=["http", "zeros", "garbage", "almost a hello", "nothing"],
)
def test_what_is_no_tls(broker: SecureBroker, data: bytes) -> None:
    with socket.create_connection((HOST, broker.ports["TLS"]), timeout=PATIENCE_S) as plain:
        plain.sendall(data)
        if not data:
            plain.shutdown(socket.SHUT_WR)
        received = b""
        while part := _receive(plain):
            received += part
        assert received[:1] in (b"", b"\x15"), "an alert, or nothing"


def _receive(sock: socket.socket) -> bytes:
    try:
        return sock.recv(4096)
    except ConnectionResetError:
        return b""


def test_garbage_after_the_handshake(broker: SecureBroker) -> None:
    with broker.connect("TLS") as client:
        serves(client)
        os.write(client.sock.fileno(), b"\x17\x03\x03\x00\x20" + os.urandom(32))
        assert client.ends()


def test_oversized_and_negative_frames(broker: SecureBroker) -> None:
    for listener, size in (("TLS", -1), ("TLS", 1 << 30), ("SASL", -1), ("BOTH", FRAME_BYTES_MAX + 1)):
        with broker.connect(listener) as client:
            client.send(struct.pack(">i", size))
            assert client.ends()
    said = "before authentication, outside 0..sasl.server.max.receive.size"
    eventually(lambda: said in broker.output(), "the log says why")


# ---- SASL


@pytest.mark.parametrize("listener", ["SASL", "BOTH"])
def test_plain(broker: SecureBroker, listener: str) -> None:
    with broker.connect(listener) as client:
        answer = client.ask(ApiKey.API_VERSIONS, 3, ApiVersionsRequest("raw", "1"))
        assert {17, 36} <= {key.api_key for key in answer.api_keys}
        answer = client.plain()
        assert (answer.error_code, answer.auth_bytes, answer.session_lifetime_ms) == (0, b"", 0)
        assert serves(client)
        # Authentication is over: such requests reach a handler, and the connection stays.
        assert client.handshake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert serves(client)


def test_pipelined_behind_the_last_token(broker: SecureBroker) -> None:
    """A client need not wait: what comes with the token is for whoever comes after it."""

    def come(listener: str) -> None:
        with broker.connect(listener) as client:
            client.handshake("PLAIN")
            token = SaslAuthenticateRequest(f"\0ann\0{PLAIN_PASSWORD}".encode())
            client.send(client.frame(ApiKey.SASL_AUTHENTICATE, 2, token) + client.frame(*METADATA))
            assert client.answer(ApiKey.SASL_AUTHENTICATE, 2).error_code == 0
            assert len(client.answer(ApiKey.METADATA, 12).brokers) == 1

    for listener in ("SASL", "BOTH"):
        assert is_soon(partial(come, listener), SOON_S)


def test_a_wrong_password_is_answered_late(broker: SecureBroker) -> None:

    def fail(listener: str) -> None:
        with broker.connect(listener) as client:
            client.handshake("PLAIN")
            begun = time.monotonic()
            answer = client.token(b"\0ann\0wrong")
            assert (time.monotonic() - begun) * 1000 >= FAILED_DELAY_MS
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert answer.error_message == "Authentication failed: Invalid username or password"
            assert client.ends()

    for listener in ("SASL", "BOTH"):
        assert is_soon(partial(fail, listener), FAILED_DELAY_MS / 1000 + SOON_S), "and no later"


def test_what_comes_while_an_answer_is_held_back_is_ignored(broker: SecureBroker) -> None:
    with broker.connect("SASL") as client:
        client.handshake("PLAIN")
        token = client.frame(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(b"\0ann\0wrong"))
        client.send(token + b"x" * 100_000)
        assert client.answer(ApiKey.SASL_AUTHENTICATE, 2).error_code == 58
        assert client.ends()


def test_scram_users_come_and_go(broker: SecureBroker) -> None:
    for kind in (ScramType.SCRAM_SHA_256, SHA512):
        user = f"user-{kind}"
        with broker.connect("SASL") as client:
            assert client.scram(kind, user, SCRAM_PASSWORD).error_code == 58
        add_user(broker, user, kind=kind)
        for listener in ("SASL", "BOTH"):
            with broker.connect(listener) as client:
                assert client.scram(kind, user, SCRAM_PASSWORD).error_code == 0
                assert serves(client)
        with broker.connect("SASL") as client:
            assert client.scram(kind, user, SCRAM_PASSWORD + "x").error_code == 58
            assert client.ends()
    with broker.connect("OPEN") as client:
        describe = DescribeUserScramCredentialsRequest(None)
        (first, second) = client.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, describe).results
        assert [(c.mechanism, c.iterations) for c in first.credential_infos] == [(1, 4096)]
        deletion = AlterUserScramCredentialsRequest([Deletion("user-2", 2)], [])
        assert client.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletion).results[0].error_code == 0
    with broker.connect("SASL") as client:
        assert client.scram(SHA512, second.user, SCRAM_PASSWORD).error_code == 58


def unsecured(subject: str, lifetime_s: float = 60) -> bytes:
    def segment(value: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    token = f"{segment({'alg': 'none'})}.{segment({'sub': subject, 'exp': time.time() + lifetime_s})}."
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


def test_oauthbearer(broker: SecureBroker) -> None:
    with broker.connect("BOTH") as client:
        client.handshake("OAUTHBEARER")
        answer = client.token(unsecured("carol"))
        assert answer.error_code == 0
        assert 50_000 < answer.session_lifetime_ms <= 60_000
        assert serves(client)
    with broker.connect("BOTH") as client:
        client.handshake("OAUTHBEARER")
        answer = client.token(unsecured("carol", -1))
        assert (answer.error_code, json.loads(answer.auth_bytes)) == (0, {"status": "invalid_token"})
        assert client.token(b"\x01").error_code == 58
        assert client.ends()


# ---- the end of a session


@pytest.mark.parametrize("listener", ["SHORT", "SHORTTLS"])
def test_a_session_is_renewed_in_time(broker: SecureBroker, listener: str) -> None:
    assert any(outlives_two_sessions(broker, listener) for _ in range(TRIES))


def outlives_two_sessions(broker: SecureBroker, listener: str) -> bool:
    """False if this machine was busy with something else when the session should have been renewed."""
    lives_s = REAUTH_MS / 1000
    with broker.connect(listener) as client:
        begun = renewed = time.monotonic()
        assert client.plain().session_lifetime_ms == REAUTH_MS
        while time.monotonic() < begun + 2.1 * lives_s:
            try:
                if (now := time.monotonic()) - renewed > 0.7 * lives_s:
                    assert client.plain().session_lifetime_ms == REAUTH_MS
                    renewed = now
                assert serves(client)
            except Closed:
                assert time.monotonic() - renewed > lives_s, "it was not late"
                return False
        return True


@pytest.mark.parametrize("listener", ["SHORT", "SHORTTLS"])
def test_a_request_after_the_end_closes(broker: SecureBroker, listener: str) -> None:
    with broker.connect(listener) as client:
        client.plain()
        until = time.monotonic() + 3 * REAUTH_MS / 1000
        with pytest.raises(Closed):  # noqa: PT012
            while time.monotonic() < until:
                serves(client)
    said = "a request came after its authentication had expired"
    eventually(lambda: said in broker.output(), "the log says why")


def test_an_expired_session_can_still_be_renewed_but_by_nobody_else(broker: SecureBroker) -> None:
    add_user(broker, "ann")
    with broker.connect("SHORT") as client, broker.connect("SHORT") as other:
        client.plain()
        other.plain()
        # The first renewal is allowed at once; a second within a second is an ordinary request.
        assert client.plain().error_code == 0
        assert client.handshake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
        other.handshake("SCRAM-SHA-512")
        answer = other.token(b"n,,n=ann,r=x")
        assert answer.error_code == 58
        assert "is not supported for reauthentication" in (answer.error_message or "")
        assert other.ends()
    with broker.connect("SHORT") as client:
        client.plain()
        answer = client.plain("bob", PLAIN_PASSWORD + "2")
        assert answer.error_code == 58
        assert "Cannot change principals" in (answer.error_message or "")
        assert client.ends()
