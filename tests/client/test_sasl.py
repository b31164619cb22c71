"""SASL over real connections against the broker's own half, and frame by frame; sessions are renewed."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st

from mpbroker.client.cluster import Cluster
from mpbroker.client.errors import AuthenticationFailed, ConnectionLost
from mpbroker.client.mechanisms import mechanism
from mpbroker.client.sasl import MIN_RESERVED_CORRELATION_ID, SaslAuthenticator, is_reserved
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.security.jaas import PlainUsers
from mpbroker.security.plain import PlainServer
from mpbroker.security.sasl import SaslServer, State
from tests.client.server import (
    HOST,
    MECHANISMS,
    PASSWORD,
    USER,
    Closes,
    Listener,
    ask,
    offer,
    offered,
    settings,
)
from tests.support.forms import rounds


@pytest.mark.parametrize("name", MECHANISMS)
def test_sasl(name: str) -> None:
    with Listener(offered()) as listener:
        ask(listener, settings("SASL_PLAINTEXT", name), times=2)
    tokens = 1 if name == "PLAIN" else 2
    own = [ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, *[ApiKey.SASL_AUTHENTICATE] * tokens]
    assert listener.requests == [*own, ApiKey.API_VERSIONS, ApiKey.LIST_GROUPS, ApiKey.LIST_GROUPS]


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_wrong_password(name: str) -> None:
    with Listener(offered()) as listener, pytest.raises(AuthenticationFailed) as failed:
        ask(listener, settings("SASL_PLAINTEXT", name, "wrong"))
    assert f"authentication with {HOST}:{listener.port} failed: " in str(failed.value)
    assert "(SASL_AUTHENTICATION_FAILED)" in str(failed.value)
    assert "wrong" not in str(failed.value)


def test_a_mechanism_that_is_not_offered() -> None:
    only_plain = offer({"PLAIN": lambda: PlainServer(PlainUsers({}))})
    with Listener(only_plain) as listener:
        expected = "it does not offer SCRAM-SHA-256 but PLAIN: set sasl.mechanism"
        with pytest.raises(AuthenticationFailed, match=expected):
            ask(listener, settings("SASL_PLAINTEXT", "SCRAM-SHA-256"))


def test_sasl_in_the_clear_to_who_answers_nothing() -> None:
    """A listener with TLS, most often."""
    expected = "is SASL_PLAINTEXT: does this listener want another"
    with Closes() as listener, pytest.raises(ConnectionLost, match=expected):
        ask(listener, settings("SASL_PLAINTEXT", "PLAIN"))


def converse(client: SaslAuthenticator, server: SaslServer) -> None:
    while (request := client.next_request()) is not None:
        frame = b"".join(request)[4:]
        client.receive(bytearray(server.receive(frame)[4:]))


def authenticator(name: str, password: str = PASSWORD) -> SaslAuthenticator:
    exchange = mechanism(name, USER, password)
    return SaslAuthenticator(name, exchange, "test", lambda: 0.0, lambda low, _high: low)


def test_its_requests_have_correlation_ids_of_their_own() -> None:
    client, server = authenticator("SCRAM-SHA-256"), SaslServer(offered())
    seen = []
    while (request := client.next_request()) is not None:
        frame = b"".join(request)[4:]
        seen.append(struct.unpack_from(">i", frame, 4)[0])
        client.receive(bytearray(server.receive(frame)[4:]))
    assert client.complete
    assert not any(
        is_reserved(bytearray(struct.pack(">i", one))) for one in (0, MIN_RESERVED_CORRELATION_ID - 1)
    )
    assert all(is_reserved(bytearray(struct.pack(">i", one))) for one in seen)
    assert not is_reserved(bytearray(b"\x7f"))
    assert seen == [MIN_RESERVED_CORRELATION_ID + number for number in range(4)]


def test_another_ones_response_is_refused() -> None:
    client, server = authenticator("PLAIN"), SaslServer(offered())
    request = client.next_request()
    assert request is not None
    answer = bytearray(server.receive(b"".join(request)[4:])[4:])
    answer[:4] = struct.pack(">i", 5)
    with pytest.raises(AuthenticationFailed, match="request 5 was answered instead of 2147483640"):
        client.receive(answer)


def test_a_session_is_renewed_before_it_ends() -> None:
    client, server = authenticator("SCRAM-SHA-256"), SaslServer(offered(lifetime_ms=10_000))
    converse(client, server)
    assert client.complete
    client.restart_if_due(8_499)
    assert client.complete
    client.restart_if_due(8_500)
    assert not client.complete
    assert server.session is not None
    again = SaslServer(offered(10_000), again=server.session)
    converse(client, again)
    assert (client.complete, again.state) == (True, State.COMPLETE)


def test_a_session_is_renewed_between_requests() -> None:
    """Over a real connection, which stays the same one."""
    with Listener(offered(lifetime_ms=1)) as listener:
        cluster = Cluster([(HOST, listener.port)], settings("SASL_PLAINTEXT", "PLAIN"))
        for _ in range(10_000):
            cluster.ask_any(m.ListGroupsRequest())
            if listener.requests.count(ApiKey.SASL_AUTHENTICATE) > 3:
                break
        cluster.close()
    assert listener.requests.count(ApiKey.SASL_AUTHENTICATE) > 3
    assert listener.requests.count(ApiKey.API_VERSIONS) == 2, "one connection"
    assert listener.problems == []


@given_settings(max_examples=rounds(100), deadline=None)
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=6), st.sampled_from(["PLAIN", "SCRAM-SHA-256"]))
def test_frames_that_no_broker_sends(frames: list[bytes], name: str) -> None:
    client = authenticator(name)
    for frame in frames:
        client.next_request()
        with pytest.raises(AuthenticationFailed):
            client.receive(bytearray(frame))
        assert not client.complete
        client = authenticator(name)
