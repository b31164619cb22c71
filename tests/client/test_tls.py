"""TLS of the client against Python's own server side, and what it says when the two do not fit."""

from __future__ import annotations

import select
import socket
import ssl
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mpbroker.client import cluster as cluster_module
from mpbroker.client.cluster import Cluster
from mpbroker.client.errors import AuthenticationFailed, ClientConfigError, ConnectionLost
from mpbroker.client.network_client import NetworkClient
from mpbroker.client.tls import TlsTransport, client_context
from tests.client.server import HOST, MECHANISMS, Closes, Listener, ask, offered, settings
from tests.support.certificates import Authority
from tests.support.polling import until


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


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls(server_context: ssl.SSLContext, trusted: str, version: ssl.TLSVersion) -> None:
    server_context.maximum_version = version
    with Listener(context=server_context) as listener:
        ask(listener, settings("SSL", ssl_truststore_location=trusted), times=3)


def test_sasl_over_tls(server_context: ssl.SSLContext, trusted: str) -> None:
    with Listener(offered(), server_context) as listener:
        ask(listener, settings("SASL_SSL", "SCRAM-SHA-512", ssl_truststore_location=trusted), times=2)


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
    monkeypatch.setattr(cluster_module, "NetworkClient", partial(NetworkClient, epoll=ImpatientEpoll))
    context = server_context if protocol in ("SSL", "SASL_SSL") else None
    with Listener(offered() if name else None, context) as listener:
        ask(listener, settings(protocol, name, ssl_truststore_location=trusted), times=2)


def test_an_authority_in_the_settings_in_one_line(
    server_context: ssl.SSLContext, authority: Authority
) -> None:
    folded = authority.pem.decode().replace("\n", " ")
    with Listener(context=server_context) as listener:
        ask(listener, settings("SSL", ssl_truststore_certificates=folded))


def test_a_certificate_that_is_not_trusted(server_context: ssl.SSLContext, tmp_path: Path) -> None:
    stranger = str(Authority("somebody else").write(tmp_path / "stranger.pem"))
    with (
        Listener(context=server_context) as listener,
        pytest.raises(AuthenticationFailed, match=r"certificate is not trusted: .*ssl.truststore.location"),
    ):
        ask(listener, settings("SSL", ssl_truststore_location=stranger))


def test_a_certificate_for_another_host(authority: Authority, trusted: str, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.sign("broker", hosts=["elsewhere"]).write(tmp_path / "broker.pem"))
    with Listener(context=context) as listener:
        expected = r"for another name: IP address mismatch, .*'127.0.0.1'; connect by .* or add 127.0.0.1 to"
        with pytest.raises(AuthenticationFailed, match=expected):
            ask(listener, settings("SSL", ssl_truststore_location=trusted))
        careless = settings("SSL", ssl_truststore_location=trusted, ssl_endpoint_identification_algorithm="")
        ask(listener, careless)


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
        ask(
            listener,
            settings(
                "SSL",
                ssl_truststore_location=trusted,
                ssl_keystore_location=str(own),
                ssl_key_password="key password",
            ),
        )
        with pytest.raises(AuthenticationFailed, match="it refused the TLS handshake"):
            ask(listener, settings("SSL", ssl_truststore_location=trusted))


def test_a_refusal_is_told_though_the_connection_closes_before_the_first_request(
    server_context: ssl.SSLContext, trusted: str
) -> None:
    server_context.verify_mode = ssl.CERT_REQUIRED
    context = client_context(settings("SSL", ssl_truststore_location=trusted))
    with (
        Listener(context=server_context) as listener,
        socket.create_connection((HOST, listener.port)) as sock,
    ):
        sock.setblocking(False)
        transport = TlsTransport(context, HOST, sock)
        until(transport.handshake, "the handshake is done")
        until(lambda: listener.problems, "the listener has refused and closed")
        with pytest.raises(AuthenticationFailed, match="it refused the TLS handshake"):
            until(lambda: transport.send([b"a request"]) is None, "the closed connection is noticed")
        transport.close()


def test_tls_to_a_port_of_plaintext(trusted: str) -> None:
    """A close with bytes unread is a reset, which may be seen before the end of the stream."""
    expected = r"has no TLS, set security\.protocol to PLAINTEXT|is SSL: does this listener want another"
    with Closes() as listener, pytest.raises(ConnectionLost, match=expected) as raised:
        ask(listener, settings("SSL", ssl_truststore_location=trusted))
    assert str(raised.value).count("security.protocol") == 1


@pytest.mark.parametrize(
    "config",
    [
        {"ssl_truststore_location": "nowhere.pem"},
        {"ssl_keystore_key": "x", "ssl_keystore_certificate_chain": "y"},
        {"ssl_cipher_suites": ("ROT13",)},
    ],
)
def test_settings_of_tls_that_cannot_work(config: dict[str, str]) -> None:
    with pytest.raises(ClientConfigError):
        Cluster([(HOST, 1)], settings("SSL", **config))
