"""The client's half of each mechanism, token by token."""

from __future__ import annotations

import base64

import pytest

from mpbroker.client.errors import AuthenticationFailed, ClientConfigError
from mpbroker.client.mechanisms import mechanism, plain, scram
from mpbroker.security.delegation import credential_of_token
from mpbroker.security.principals import Principal
from mpbroker.security.scram import TYPES, ScramServer, ScramType, TokenLogin
from tests.client.server import PASSWORD, USER, look_up


def test_plain_is_one_token() -> None:
    exchange = plain("user", "password")
    assert next(exchange) == b"\0user\0password"
    with pytest.raises(StopIteration):
        exchange.send(b"")


def test_plain_with_more_to_say() -> None:
    exchange = plain("user", "password")
    next(exchange)
    with pytest.raises(AuthenticationFailed, match="ends with an empty token"):
        exchange.send(b"more")


@pytest.mark.parametrize("kind", TYPES.values())
def test_scram_with_the_brokers_own_half(kind: ScramType) -> None:
    client, server = scram(kind, USER, PASSWORD), ScramServer(kind, look_up)
    last = server.step(client.send(server.step(next(client))))
    assert server.complete
    with pytest.raises(StopIteration):
        client.send(last)


@pytest.mark.parametrize("name", TYPES)
def test_scram_by_a_delegation_token(name: str) -> None:
    mac = b"hmac of a token"
    token = TokenLogin(Principal("owner"), 5, credential_of_token(TYPES[name], mac))
    server = ScramServer(
        TYPES[name],
        lambda *_: None,
        look_up_token=lambda _, token_id: token if token_id == "id" else None,
        now_ms=lambda: 4,
    )
    client = mechanism(name, "id", base64.b64encode(mac).decode(), by_token=True)()
    last = server.step(client.send(server.step(next(client))))
    assert server.principal == Principal("owner")
    with pytest.raises(StopIteration):
        client.send(last)


def test_a_broker_that_does_not_know_the_password_is_not_believed() -> None:
    client = scram(ScramType.SCRAM_SHA_256, USER, PASSWORD)
    nonce = next(client).decode().rpartition("r=")[2]
    client.send(f"r={nonce}more,s=c2FsdA==,i=4096".encode())
    with pytest.raises(AuthenticationFailed, match="SCRAM-SHA-256: the server could not prove"):
        client.send(b"v=" + b"A" * 43 + b"=")


@pytest.mark.parametrize(
    "challenge",
    [
        "r=other,s=c2FsdA==,i=4096",
        "r={}x,s=c2FsdA==,i=1",
        "r={}x,s=c2FsdA==,i=999999999",
        "nonsense",
        "r={}x,s=A,i=4096",
    ],
)
def test_challenges_that_no_honest_broker_sends(challenge: str) -> None:
    client = scram(ScramType.SCRAM_SHA_256, USER, PASSWORD)
    nonce = next(client).decode().rpartition("r=")[2]
    with pytest.raises(AuthenticationFailed):
        client.send(challenge.format(nonce).encode())


def test_each_authentication_is_a_new_exchange() -> None:
    begin = mechanism("SCRAM-SHA-512", USER, PASSWORD)
    assert next(begin()) != next(begin())
    assert next(mechanism("PLAIN", "u", "p")()) == b"\0u\0p"
    with pytest.raises(ClientConfigError, match=r"sasl\.mechanism=GSSAPI is not supported"):
        mechanism("GSSAPI", USER, PASSWORD)
