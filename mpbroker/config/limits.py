"""Limits of connections: those of single listeners, and of single addresses.

Kafka looks `listener.name.<listener>.<key>` up first and `<key>` if that is not set, so a listener without a
limit of its own has the broker's, for itself alone (ListenerName.configPrefix, ConnectionQuotas).
"""

import ipaddress
import re
import socket

import msgspec

from mpbroker.config.keys import INT_MAX, ConfigType, Key

_PREFIXED = re.compile(
    r"listener\.name\.(?P<listener>[^.]+)\.(?P<key>max\.connections|max\.connection\.creation\.rate)"
)
_LIMIT = re.compile(r"(?P<host>.+):(?P<limit>[0-9]{1,10})")


class ListenerLimits(msgspec.Struct, frozen=True):
    """None: the broker's."""

    max_connections: int | None = None
    max_connection_creation_rate: int | None = None


def names_limit(key: str) -> bool:
    """Whether it is a limit of one listener."""
    return _PREFIXED.fullmatch(key) is not None


def parse_limit(key: str, text: str, listeners: set[str]) -> tuple[str, str, int]:
    """-> listener, key without prefix, limit. ValueError says what is wrong."""
    match = _PREFIXED.fullmatch(key)
    assert match is not None
    listener = match["listener"].upper()
    if listener not in listeners:
        raise ValueError(f"{key}: there is no listener {listener}; there are {', '.join(sorted(listeners))}")
    limit = Key(ConfigType.INT, "", name=key, at_least=0).parse(text)
    assert isinstance(limit, int)
    return listener, match["key"], limit


def overrides_problem(entries: tuple[str, ...]) -> str:
    """What is wrong with max.connections.per.ip.overrides, "" if nothing is."""
    for entry in entries:
        match = _LIMIT.fullmatch(entry)
        if match is None or int(match["limit"]) > INT_MAX:
            return f"{entry} is not HOST:COUNT"
    return ""


def resolve_overrides(entries: tuple[str, ...]) -> dict[bytes, int]:
    """Limits by packed address; names are looked up, once. Raises OSError, naming the host."""
    found = {}
    for entry in entries:
        host, _, limit = entry.rpartition(":")
        host = host.strip("[] ")
        try:
            packed = ipaddress.ip_address(host).packed
        except ValueError:
            try:
                packed = ipaddress.ip_address(socket.getaddrinfo(host, None)[0][4][0]).packed
            except OSError as error:
                raise OSError(
                    error.errno,
                    f"max.connections.per.ip.overrides: host {host!r} cannot be resolved ({error.strerror})",
                ) from error
        found[packed] = int(limit)
    return found
