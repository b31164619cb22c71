"""Socket addresses of the hosts and ports that a user or a broker names (Kafka: ClientUtils)."""

import socket
from typing import Any, NamedTuple

from mpbroker.client.config import UNIX

_FAMILIES = (socket.AF_INET, socket.AF_INET6)


class Address(NamedTuple):
    """A socket family, and an address in the form that `socket.connect` takes for this family."""

    family: int
    sockaddr: tuple[Any, ...] | str


def resolve(host: str, port: int, *, with_sockets: bool = False) -> list[Address]:
    """Return the addresses of a host. `with_sockets` also allows unix:/path as the host. Raises OSError."""
    if with_sockets and host.startswith(UNIX):
        return [Address(socket.AF_UNIX, host.removeprefix("unix:"))]
    if not 0 < port < 65536:
        raise OSError(f"{port} is not a port")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (UnicodeError, ValueError) as error:
        raise OSError(f"{host!r} is not the name of a host") from error
    return [Address(family, sockaddr) for family, _, _, _, sockaddr in found if family in _FAMILIES]
