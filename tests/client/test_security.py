"""TLS and SASL of the client against the broker's own halves, and what it says when the two do not fit."""

from __future__ import annotations

import select
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mpbroker.client import selector
from mpbroker.client.cluster import Cluster
from mpbroker.client.config import ClientConfig
from mpbroker.client.errors import (
    AuthenticationFailed,
    ClientError,
    ConfigError,
    ConnectionLost,
)
from mpbroker.client.mechanisms import Scram, mechanism
from mpbroker.client.sasl import MIN_RESERVED_CORRELATION_ID, SaslAuthenticator
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.security.jaas import PlainUsers
from mpbroker.security.plain import PlainServer
from mpbroker.security.sasl import Offer, SaslServer, State
from mpbroker.security.scram import (
    ScramCredential,
    ScramServer,
    ScramType,
    credential_of,
    salted_password,
)
from tests.client.server import HOST, Listener, offer
from tests.support.certificates import Authority

USER, PASSWORD = "alice, the =1st", 'se"cret'
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SALT = b"salt" * 6


def look_up(kind: ScramType, user: str) -> ScramCredential | None:
    if user != USER:
        return None
    return credential_of(kind, salted_password(kind, PASSWORD, SALT, 4096), SALT, 4096)


def offered(lifetime_ms: int = 0) -> Offer:
    return offer(
        {
            "PLAIN": lambda: PlainServer(PlainUsers({USER: PASSWORD.encode()})),
            "SCRAM-SHA-256": lambda: ScramServer(ScramType.SCRAM_SHA_256, look_up),
            "SCRAM-SHA-512": lambda: ScramServer(ScramType.SCRAM_SHA_512, look_up),
        },
        lifetime_ms,
    )


def settings(protocol: str, name: str = "", password: str = PASSWORD, **more: Any) -> ClientConfig:
    return ClientConfig(
        security_protocol=protocol,
        sasl_mechanism=name,
        sasl_username=USER,
        sasl_password=password,
        socket_connection_setup_timeout_ms=30_000,
        **more,
    )


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def trusted(authority: Authority, tmp_path: Path) -> str:
    return str(authority.write(tmp_path / "authority.pem"))


@pytest.fixture
def server_context(authority: Authority, tmp_path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.sign("broker").write(tmp_path / "broker.pem"))
    context.load_verify_locations(cadata=authority.pem.decode())
    return context


def asked(listener: Listener, config: ClientConfig, times: int = 1) -> None:
    """Asks something twice: who is let in is let in for good."""
    cluster = Cluster([(HOST, listener.port)], config)
    try:
        for _ in range(times):
            assert isinstance(cluster.ask_any(m.ListGroupsRequest()), m.ListGroupsResponse)
    finally:
        cluster.close()


@pytest.fixture
def plain_listener() -> Iterator[Listener]:
    with Listener() as listener:
        yield listener


@pytest.mark.parametrize("name", MECHANISMS)
def test_sasl(name: str) -> None:
    with Listener(offered()) as listener:
        asked(listener, settings("SASL_PLAINTEXT", name), times=2)
    tokens = 1 if name == "PLAIN" else 2
    own = [ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, *[ApiKey.SASL_AUTHENTICATE] * tokens]
    assert listener.requests == [*own, ApiKey.API_VERSIONS, ApiKey.LIST_GROUPS, ApiKey.LIST_GROUPS]


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_wrong_password(name: str) -> None:
    with Listener(offered()) as listener, pytest.raises(AuthenticationFailed) as failed:
        asked(listener, settings("SASL_PLAINTEXT", name, "wrong"))
    assert f"authentication with {HOST}:{listener.port} failed: " in str(failed.value)
    assert "(SASL_AUTHENTICATION_FAILED)" in str(failed.value)
    assert "wrong" not in str(failed.value)


def test_a_mechanism_that_is_not_offered() -> None:
    only_plain = offer({"PLAIN": lambda: PlainServer(PlainUsers({}))})
    with Listener(only_plain) as listener:
        expected = "it does not offer SCRAM-SHA-256 but PLAIN: set sasl.mechanism"
        with pytest.raises(AuthenticationFailed, match=expected):
            asked(listener, settings("SASL_PLAINTEXT", "SCRAM-SHA-256"))


def test_sasl_where_nobody_asks_for_it(plain_listener: Listener) -> None:
    with pytest.raises(
        AuthenticationFailed, match=r"does not ask for SASL: set security\.protocol to PLAINTEXT"
    ):
        asked(plain_listener, settings("SASL_PLAINTEXT", "PLAIN"))


def test_no_sasl_where_somebody_asks_for_it() -> None:
    with (
        Listener(offered()) as listener,
        pytest.raises(ConnectionLost, match="is PLAINTEXT: does this listener want another"),
    ):
        asked(listener, settings("PLAINTEXT"))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls(server_context: ssl.SSLContext, trusted: str, version: ssl.TLSVersion) -> None:
    server_context.maximum_version = version
    with Listener(context=server_context) as listener:
        asked(listener, settings("SSL", ssl_truststore_location=trusted), times=3)


def test_sasl_over_tls(server_context: ssl.SSLContext, trusted: str) -> None:
    with Listener(offered(), server_context) as listener:
        asked(listener, settings("SASL_SSL", "SCRAM-SHA-512", ssl_truststore_location=trusted), times=2)


class ImpatientEpoll:
    """Of the client: a wait that nothing ends is one in which somebody forgot to go on."""

    def __init__(self) -> None:
        self._epoll = select.epoll()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        events = self._epoll.poll(timeout)
        assert events or timeout == 0, f"{timeout} s were waited for nothing"
        return events


@pytest.mark.parametrize(
    ("protocol", "name"),
    [
        ("PLAINTEXT", ""),
        ("SSL", ""),
        *[(protocol, name) for protocol in ("SASL_PLAINTEXT", "SASL_SSL") for name in MECHANISMS],
    ],
)
def test_whoever_becomes_ready_is_asked_at_once(
    server_context: ssl.SSLContext,
    trusted: str,
    protocol: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The event that ends the handshakes is the last one: a poll that waits for another waits in vain."""
    epoll_constants = {one: getattr(select, one) for one in dir(select) if one.startswith("EPOLL")}
    monkeypatch.setattr(selector, "select", SimpleNamespace(epoll=ImpatientEpoll, **epoll_constants))
    context = server_context if protocol in ("SSL", "SASL_SSL") else None
    with Listener(offered() if name else None, context) as listener:
        asked(listener, settings(protocol, name, ssl_truststore_location=trusted), times=2)


def test_an_authority_in_the_settings_in_one_line(
    server_context: ssl.SSLContext, authority: Authority
) -> None:
    folded = authority.pem.decode().replace("\n", " ")
    with Listener(context=server_context) as listener:
        asked(listener, settings("SSL", ssl_truststore_certificates=folded))


def test_a_certificate_that_is_not_trusted(server_context: ssl.SSLContext, tmp_path: Path) -> None:
    stranger = str(Authority("somebody else").write(tmp_path / "stranger.pem"))
    with (
        Listener(context=server_context) as listener,
        pytest.raises(AuthenticationFailed, match=r"certificate is not trusted: .*ssl.truststore.location"),
    ):
        asked(listener, settings("SSL", ssl_truststore_location=stranger))


def test_a_certificate_for_another_host(authority: Authority, trusted: str, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.sign("broker", hosts=["elsewhere"]).write(tmp_path / "broker.pem"))
    with Listener(context=context) as listener:
        expected = r"for another name: IP address mismatch, .*'127.0.0.1'; connect by .* or add 127.0.0.1 to"
        with pytest.raises(AuthenticationFailed, match=expected):
            asked(listener, settings("SSL", ssl_truststore_location=trusted))
        careless = settings("SSL", ssl_truststore_location=trusted, ssl_endpoint_identification_algorithm="")
        asked(listener, careless)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_listener_that_wants_a_certificate(
    server_context: ssl.SSLContext,
    trusted: str,
    authority: Authority,
    tmp_path: Path,
    version: ssl.TLSVersion,
) -> None:
    """With TLS 1.3 the refusal comes after the handshake; it is one of authentication all the same."""
    server_context.verify_mode = ssl.CERT_REQUIRED
    server_context.maximum_version = version
    own = authority.sign("client").write(tmp_path / "client.pem", b"key password")
    with Listener(context=server_context) as listener:
        asked(
            listener,
            settings(
                "SSL",
                ssl_truststore_location=trusted,
                ssl_keystore_location=str(own),
                ssl_key_password="key password",
            ),
        )
        with pytest.raises(AuthenticationFailed, match="it refused the TLS handshake"):
            asked(listener, settings("SSL", ssl_truststore_location=trusted))


def test_plaintext_to_a_port_of_tls(server_context: ssl.SSLContext) -> None:
    """The alert that says so may be lost when the connection is reset behind it."""
    expected = r"it speaks TLS: set security\.protocol to SSL|PLAINTEXT: does this listener want another\?"
    with Listener(context=server_context) as listener, pytest.raises(ClientError, match=expected):
        asked(listener, settings("PLAINTEXT"))


class Closes(Listener):
    """A broker without TLS takes the hello for a request of 369 MB and closes."""

    def answer_all(self, _connection: object, stream: Any) -> None:
        stream.read(4)


def test_sasl_in_the_clear_to_who_answers_nothing() -> None:
    """A listener with TLS, most often."""
    expected = "is SASL_PLAINTEXT: does this listener want another"
    with Closes() as listener, pytest.raises(ConnectionLost, match=expected):
        asked(listener, settings("SASL_PLAINTEXT", "PLAIN"))


class Silent(Listener):
    """A connection that waits for max.connections."""

    def answer_all(self, _connection: object, stream: Any) -> None:
        stream.read()


def test_who_answers_nothing_in_time_is_not_told_of_another_protocol() -> None:
    with Silent() as listener, pytest.raises(ConnectionLost, match=r"at its max\.connections\?$"):
        asked(listener, settings("PLAINTEXT", request_timeout_ms=1_000))


def test_tls_to_a_port_of_plaintext(trusted: str) -> None:
    """A close with bytes unread is a reset, which may be seen before the end of the stream."""
    expected = r"has no TLS, set security\.protocol to PLAINTEXT|is SSL: does this listener want another"
    with Closes() as listener, pytest.raises(ConnectionLost, match=expected) as raised:
        asked(listener, settings("SSL", ssl_truststore_location=trusted))
    assert str(raised.value).count("security.protocol") == 1


def converse(client: SaslAuthenticator, server: SaslServer) -> None:
    while (request := client.next_request()) is not None:
        frame = b"".join(request)[4:]
        client.receive(bytearray(server.receive(frame)[4:]))


def authenticator(name: str, password: str = PASSWORD) -> SaslAuthenticator:
    return SaslAuthenticator(mechanism(name, USER, password), "test", lambda: 0.0, lambda low, _high: low)


def test_its_requests_have_correlation_ids_of_their_own() -> None:
    client, server = authenticator("SCRAM-SHA-256"), SaslServer(offered())
    seen = []
    while (request := client.next_request()) is not None:
        frame = b"".join(request)[4:]
        seen.append(struct.unpack_from(">i", frame, 4)[0])
        client.receive(bytearray(server.receive(frame)[4:]))
    assert client.complete
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
    assert (client.complete, client.again) == (False, True)
    assert server.session is not None
    again = SaslServer(offered(10_000), again=server.session)
    converse(client, again)
    assert (client.complete, client.again, again.state) == (True, False, State.COMPLETE)


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


def test_a_broker_that_does_not_know_the_password_is_not_believed() -> None:
    client = Scram(ScramType.SCRAM_SHA_256, USER, PASSWORD)
    nonce = client.first().decode().rpartition("r=")[2]
    client.answer(f"r={nonce}more,s=c2FsdA==,i=4096".encode())
    with pytest.raises(AuthenticationFailed, match="could not prove"):
        client.answer(b"v=" + b"A" * 43 + b"=")
    assert not client.complete


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
    client = Scram(ScramType.SCRAM_SHA_256, USER, PASSWORD)
    nonce = client.first().decode().rpartition("r=")[2]
    with pytest.raises(AuthenticationFailed):
        client.answer(challenge.format(nonce).encode())


@pytest.mark.parametrize(
    "config",
    [
        {"ssl_truststore_location": "nowhere.pem"},
        {"ssl_keystore_key": "x", "ssl_keystore_certificate_chain": "y"},
        {"ssl_cipher_suites": ("ROT13",)},
    ],
)
def test_settings_of_tls_that_cannot_work(config: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        Cluster([(HOST, 1)], settings("SSL", **config))


def test_secrets_are_not_shown() -> None:
    config = settings("SASL_PLAINTEXT", "PLAIN", "se-cret")
    assert "se-cret" not in f"{config!r} {config}"
