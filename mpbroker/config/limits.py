"""Limits of connections for single listeners and for single addresses.

Kafka reads `listener.name.<listener>.<key>` or, if it is not set, `<key>`. A listener without a limit of its
own therefore gets the broker's value as a limit on the connections of this listener alone
(ListenerName.configPrefix, ConnectionQuotas).
"""

import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import structs

from mpbroker.config.integers import INT_MAX
from mpbroker.config.keys import ConfigType, Key, field_name, format_value

LIMIT_KEYS = ("max.connections", "max.connection.creation.rate")
_PREFIXED = re.compile(
    rf"listener\.name\.(?P<listener>[^.]+)\.(?P<key>{'|'.join(map(re.escape, LIMIT_KEYS))})"
)
_LIMIT = re.compile(r"(?P<host>.+):(?P<limit>[0-9]{1,10})")


class ListenerLimits(msgspec.Struct, frozen=True):
    """Limits of a single listener. None means that the broker's limit applies."""

    max_connections: int | None = None
    max_connection_creation_rate: int | None = None


def names_limit(key: str) -> bool:
    """Return whether the key is a limit of one listener."""
    return _PREFIXED.fullmatch(key) is not None


def parse_limit(key: str, text: str, listeners: set[str]) -> tuple[str, str, int]:
    """Return (listener, key without prefix, limit). Raises ValueError with the reason."""
    match = _PREFIXED.fullmatch(key)
    assert match is not None
    listener = match["listener"].upper()
    if listener not in listeners:
        raise ValueError(no_listener(key, listener, listeners))
    limit = Key(ConfigType.INT, "", name=key, at_least=0).parse(text)
    assert isinstance(limit, int)
    return listener, match["key"], limit


def no_listener(key: str, name: str, listeners: Iterable[str]) -> str:
    return f"{key}: listener {name} does not exist; there are {', '.join(sorted(listeners))}"


def laid_over(
    own: Mapping[str, ListenerLimits], texts: Mapping[str, str | None]
) -> dict[str, ListenerLimits]:
    """Return the limits `own` (by listener) with the new limits `texts` (by key). None removes a limit."""
    found = dict(own)
    for key, text in texts.items():
        listener, field = _place(key)
        limit = None if text is None else int(text)
        found[listener] = structs.replace(found.get(listener, ListenerLimits()), **{field: limit})
    return {name: one for name, one in found.items() if one != ListenerLimits()}


def text_of(own: Mapping[str, ListenerLimits], key: str) -> str | None:
    """Return the text of the listener's limit that `key` names, None if it is not set."""
    listener, field = _place(key)
    return format_value(getattr(own.get(listener, ListenerLimits()), field))


def _place(key: str) -> tuple[str, str]:
    match = _PREFIXED.fullmatch(key)
    assert match is not None
    return match["listener"].upper(), field_name(match["key"])


def overrides_problem(entries: tuple[str, ...]) -> str:
    """Return the problem with the entries of max.connections.per.ip.overrides, or ""."""
    for entry in entries:
        match = _LIMIT.fullmatch(entry)
        if match is None or int(match["limit"]) > INT_MAX:
            return f"{entry} is not HOST:COUNT"
    return ""


def resolved_overrides(entries: tuple[str, ...]) -> tuple[str, ...]:
    """Replace host names in max.connections.per.ip.overrides by addresses. Raises ValueError.

    Names are resolved once, before the first process starts. So a process that is restarted while the name
    server is down knows the addresses.
    """
    found = []
    for entry in entries:
        host, limit = _split(entry)
        try:
            address = str(ipaddress.ip_address(host))
        except ValueError:
            address = _look_up(host)
        found.append(f"[{address}]:{limit}")
    return tuple(found)


def limits_by_address(entries: tuple[str, ...]) -> dict[bytes, int]:
    """Return the limits by packed address, from entries that have addresses and no host names."""
    return {ipaddress.ip_address(host).packed: limit for host, limit in map(_split, entries)}


def _split(entry: str) -> tuple[str, int]:
    host, _, limit = entry.rpartition(":")
    return host.strip("[] "), int(limit)


def _look_up(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None)[0][4][0])
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(
            f"max.connections.per.ip.overrides: host {host!r} cannot be resolved ({why})"
        ) from error
