"""Puts a client together: channels for a security protocol, addresses of names (Kafka: ClientUtils)."""

import socket
from collections.abc import Callable, Iterable
from functools import partial

from mpbroker.client.backoff import ExponentialBackoff
from mpbroker.client.channel import Channel
from mpbroker.client.config import UNIX, ClientConfig
from mpbroker.client.connection_states import ConnectionStates
from mpbroker.client.metadata import Metadata, Node
from mpbroker.client.network_client import NetworkClient
from mpbroker.client.sasl import Authenticator, NoAuthentication, SaslAuthenticator
from mpbroker.client.selector import Address, Selector
from mpbroker.client.transport import PlaintextTransport, Transport

_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def network_client(config: ClientConfig, servers: Iterable[tuple[str, int]]) -> NetworkClient:
    """A client of its own selector, connected to nobody yet. Raises ConfigError.

    A broker may lead it to a socket of this host only if it was told of one itself.
    """
    servers = list(servers)
    make_channel = channel_maker(config)
    with_sockets = any(host.startswith(UNIX) for host, _ in servers)
    states = ConnectionStates(
        ExponentialBackoff(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms),
        ExponentialBackoff(
            config.socket_connection_setup_timeout_ms, config.socket_connection_setup_timeout_max_ms
        ),
        partial(resolve, with_sockets=with_sockets),
    )
    backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
    metadata = Metadata(servers, backoff, config.metadata_max_age_ms)
    return NetworkClient(Selector(config.connections_max_idle_ms), make_channel, states, metadata, config)


def resolve(host: str, port: int, *, with_sockets: bool = False) -> list[Address]:
    """All addresses of a host, in the order in which the system prefers them. Raises OSError.

    A broker says where the others are, and it may say anything.
    """
    if with_sockets and host.startswith(UNIX):
        return [Address(socket.AF_UNIX, host.removeprefix("unix:"))]
    if not 0 < port < 65536:
        raise OSError(f"there is no port {port}")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (UnicodeError, ValueError) as error:
        raise OSError(f"{host!r} is no name of a host") from error
    return [Address(family, sockaddr) for family, _, _, _, sockaddr in found if family in _FAMILIES]


def channel_maker(config: ClientConfig) -> Callable[[int, str, int], Channel]:
    """From id, host and port to a channel for the configured security protocol. Raises ConfigError."""
    make_transport = _transport_maker(config)
    make_authenticator = _authenticator_maker(config)

    def make(channel_id: int, host: str, port: int) -> Channel:
        return Channel(
            channel_id,
            Node(channel_id, host, port).address,
            make_transport("localhost" if host.startswith(UNIX) else host),
            make_authenticator(),
            config.receive_max_bytes,
        )

    return make


def _transport_maker(config: ClientConfig) -> Callable[[str], Transport]:
    if not config.uses_tls:
        return lambda _host: PlaintextTransport()
    # ssl is a large module; who has no use for it does not load it.
    from mpbroker.client.tls import TlsTransport, client_context

    context = client_context(config)
    return lambda host: TlsTransport(context, host)


def _authenticator_maker(config: ClientConfig) -> Callable[[], Authenticator]:
    if not config.uses_sasl:
        return NoAuthentication
    from mpbroker.client.mechanisms import mechanism

    made = mechanism(config.sasl_mechanism, config.sasl_username, config.sasl_password)
    return lambda: SaslAuthenticator(made, config.client_id)
