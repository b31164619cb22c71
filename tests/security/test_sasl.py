"""The server's SASL states: every order of requests, what failures answer, sessions and their renewal."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.api_versions import Served
from mpbroker.protocol.codec import encode_bytes
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.headers import RequestHeader, decode_response_frame, encode_request_frame
from mpbroker.protocol.messages import (
    ApiVersionsRequest,
    Message,
    MetadataRequest,
    ProduceRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from mpbroker.security.jaas import PlainUsers
from mpbroker.security.mechanism import Mechanism, SaslFailed
from mpbroker.security.plain import PlainServer
from mpbroker.security.principals import Principal
from mpbroker.security.sasl import Failure, Offer, SaslServer, Session, State
from tests.support.forms import rounds

NOW_MS = 1_800_000_000_000
USERS = PlainUsers({"ann": b"secret", "bob": b"hidden"})
SERVED = (Served(0, 0, 13), Served(18, 0, 4))


class Ending(Mechanism):
    """Knows everybody, for a minute."""

    name = "ENDING"

    def step(self, token: bytes) -> bytes:
        if token == b"fail":
            raise SaslFailed("secret reason")
        if token == b"more":
            return b"go on"
        self.principal, self.expires_ms = Principal(token.decode("latin-1")), NOW_MS + 60_000
        return b"welcome"


def offer(**reauth_ms: int) -> Offer:
    def make(name: str) -> Mechanism:
        return PlainServer(USERS) if name == "PLAIN" else Ending()

    return Offer(("PLAIN", "ENDING"), make, SERVED, reauth_ms, lambda: NOW_MS)


def request(key: ApiKey, version: int, body: Message) -> bytes:
    return encode_bytes(encode_request_frame(RequestHeader(key, version, 7, "test"), body))[4:]


def versions(version: int = 3, software: str = "librdkafka") -> bytes:
    return request(ApiKey.API_VERSIONS, version, ApiVersionsRequest(software, "1.0"))


def handshake(mechanism: str = "PLAIN", version: int = 1) -> bytes:
    return request(ApiKey.SASL_HANDSHAKE, version, SaslHandshakeRequest(mechanism))


def token(data: bytes = b"\0ann\0secret", version: int = 2) -> bytes:
    return request(ApiKey.SASL_AUTHENTICATE, version, SaslAuthenticateRequest(data))


def read(key: ApiKey, version: int, frame: bytes) -> Any:
    (size,) = struct.unpack_from(">i", frame)
    assert size == len(frame) - 4
    correlation, body = decode_response_frame(key, version, frame[4:])
    assert correlation == 7
    return body


def fails(server: SaslServer, frame: bytes) -> Failure:
    with pytest.raises(Failure) as raised:
        server.receive(frame)
    assert server.state is State.FAILED
    assert server.session is None
    return raised.value


def test_the_usual_way() -> None:
    server = SaslServer(offer())
    answer = read(ApiKey.API_VERSIONS, 3, server.receive(versions()))
    assert [(k.api_key, k.max_version) for k in answer.api_keys] == [(0, 13), (18, 4)]
    assert server.software == ("librdkafka", "1.0")
    assert read(ApiKey.SASL_HANDSHAKE, 1, server.receive(handshake())).mechanisms == ["PLAIN", "ENDING"]
    answer = read(ApiKey.SASL_AUTHENTICATE, 2, server.receive(token()))
    assert (answer.error_code, answer.auth_bytes, answer.session_lifetime_ms) == (0, b"", 0)
    assert server.state is State.COMPLETE
    assert server.session == Session(Principal("ann"), "PLAIN", None)


def test_bare_tokens_after_a_handshake_of_version_0() -> None:
    server = SaslServer(offer())
    server.receive(handshake("ENDING", 0))
    assert server.receive(b"more") == b"\0\0\0\x05go on"
    assert server.receive(b"eve") == b"\0\0\0\x07welcome"
    assert server.session == Session(Principal("eve"), "ENDING", NOW_MS + 60_000)
    server = SaslServer(offer())
    server.receive(handshake("PLAIN", 0))
    assert server.receive(b"\0ann\0secret") == b"\0\0\0\0"
    server = SaslServer(offer())
    server.receive(handshake("PLAIN", 0))
    assert fails(server, b"\0ann\0wrong").answer == b""


def test_versions_that_are_not_known_may_be_asked_again() -> None:
    server = SaslServer(offer())
    raw = bytearray(versions())
    struct.pack_into(">h", raw, 2, 77)
    answer = read(ApiKey.API_VERSIONS, 0, server.receive(bytes(raw)))
    assert (answer.error_code, len(answer.api_keys)) == (ErrorCode.UNSUPPORTED_VERSION, 1)
    answer = read(ApiKey.API_VERSIONS, 3, server.receive(versions(software="-bad-")))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert server.state is State.HANDSHAKE_OR_VERSIONS
    assert read(ApiKey.API_VERSIONS, 0, server.receive(versions(0))).error_code == 0
    assert fails(server, versions(0)).answer == b""


def test_a_mechanism_that_is_not_enabled() -> None:
    failure = fails(SaslServer(offer()), handshake("GSSAPI"))
    said = "the client wants the mechanism GSSAPI, which is not enabled; enabled are PLAIN, ENDING"
    assert str(failure) == said
    answer = read(ApiKey.SASL_HANDSHAKE, 1, failure.answer)
    assert (answer.error_code, answer.mechanisms) == (
        ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        ["PLAIN", "ENDING"],
    )


@pytest.mark.parametrize("name", ["a\n2026 ERROR b", "x" * 30_000, "\x1b[2J" * 99, "\u202eMALP", "é" * 64])
def test_the_log_has_one_short_line_of_a_mechanism(name: str) -> None:
    said = str(fails(SaslServer(offer()), handshake(name)))
    assert said.replace("…", "").isascii(), said
    assert (said.isprintable(), len(said) < 150) == (True, True), said


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x16\x03\x01\x02\x00\x01\x00",
        token(),
        request(ApiKey.METADATA, 12, MetadataRequest()),
        handshake() + b"x",
        b"\0\x11\0\x09" + handshake()[4:],
    ],
    ids=["nothing", "a TLS hello", "too early", "another API", "too long", "unknown version"],
)
def test_what_ends_before_the_handshake(frame: bytes) -> None:
    assert fails(SaslServer(offer()), frame).answer == b""


def test_another_api_during_authentication() -> None:
    for key, version, body, answers in (
        (ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"), True),
        (ApiKey.API_VERSIONS, 3, ApiVersionsRequest("a", "b"), True),
        (ApiKey.PRODUCE, 9, ProduceRequest(), False),
    ):
        server = SaslServer(offer())
        server.receive(handshake())
        answer = fails(server, request(key, version, body)).answer
        assert bool(answer) is answers
        assert not answer or read(key, version, answer).error_code == ErrorCode.ILLEGAL_SASL_STATE


@pytest.mark.parametrize(
    ("mechanism", "data", "shown"),
    [
        ("PLAIN", b"\0ann\0wrong", "Authentication failed: Invalid username or password"),
        (
            "ENDING",
            b"fail",
            "Authentication failed during authentication due to invalid credentials with SASL mechanism "
            "ENDING",
        ),
    ],
)
def test_what_a_failure_shows(mechanism: str, data: bytes, shown: str) -> None:
    server = SaslServer(offer())
    server.receive(handshake(mechanism))
    answer = read(ApiKey.SASL_AUTHENTICATE, 1, fails(server, token(data, 1)).answer)
    assert (answer.error_code, answer.error_message, answer.auth_bytes) == (58, shown, b"")


@pytest.mark.parametrize(
    ("mechanism", "reauth_ms", "lifetime_ms"),
    [
        ("PLAIN", {}, 0),
        ("PLAIN", {"PLAIN": 5000}, 5000),
        ("ENDING", {}, 60_000),
        ("ENDING", {"ENDING": 5}, 5),
    ],
)
def test_sessions_end(mechanism: str, reauth_ms: dict[str, int], lifetime_ms: int) -> None:
    server = SaslServer(offer(**reauth_ms))
    server.receive(handshake(mechanism))
    answer = read(ApiKey.SASL_AUTHENTICATE, 1, server.receive(token(version=1)))
    assert answer.session_lifetime_ms == lifetime_ms
    assert server.session is not None
    assert server.session.expires_ms == (NOW_MS + lifetime_ms if lifetime_ms else None)


ANN = Session(Principal("ann"), "PLAIN", NOW_MS)


def test_a_session_is_renewed() -> None:
    server = SaslServer(offer(PLAIN=1000), ANN)
    server.receive(handshake())
    server.receive(token())
    assert server.session == Session(Principal("ann"), "PLAIN", NOW_MS + 1000)


def test_a_renewal_keeps_mechanism_and_user() -> None:
    server = SaslServer(offer(), ANN)
    assert read(ApiKey.SASL_HANDSHAKE, 1, server.receive(handshake("ENDING"))).error_code == 0
    answer = read(ApiKey.SASL_AUTHENTICATE, 2, fails(server, token()).answer)
    assert "'ENDING' requested by client is not supported for reauthentication" in answer.error_message
    server = SaslServer(offer(), ANN)
    server.receive(handshake())
    answer = read(ApiKey.SASL_AUTHENTICATE, 2, fails(server, token(b"\0bob\0hidden")).answer)
    assert answer.error_message.startswith("Cannot change principals during re-authentication")
    assert fails(SaslServer(offer(), ANN), versions()).answer == b""


FRAMES = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            versions(),
            handshake(),
            handshake("ENDING"),
            handshake(version=0),
            token(),
            token(b"fail"),
            token(b"more"),
        ]
    ),
)


@settings(max_examples=rounds(300))
@given(st.lists(FRAMES, max_size=6), st.data())
def test_any_frames_in_any_order(frames: list[bytes], data: st.DataObject) -> None:
    """No other exception than Failure, and nobody is let in without the right token."""
    server = SaslServer(offer(PLAIN=1000))
    for frame in frames:
        if data.draw(st.booleans()):
            at = data.draw(st.integers(0, max(0, len(frame) - 1)))
            frame = frame[:at] + data.draw(st.binary(max_size=2)) + frame[at + 1 :]
        try:
            answer = server.receive(frame)
        except Failure:
            assert server.state is State.FAILED
            return
        assert len(answer) >= 4
        if server.state is State.COMPLETE:
            assert server.session is not None
            assert server.session.mechanism == "ENDING" or server.session.principal.name == "ann"
            return
