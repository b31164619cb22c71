"""Whom the console answers: the rules about Host, Origin and the token, without I/O.

A page of another site may make a browser of this host send requests here. Its requests have a Host that is
not ours, if it has pointed a name of its own at this address (DNS rebinding), or they have an Origin that is
not ours. Neither is answered. An address in Host is ours: a browser that writes it has not been led here by a
name. Ports are not compared, since tunnels and containers map them.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Collection
from typing import Final, NamedTuple

from mpbroker.exporter.http_server import Scope

LOCAL_NAME: Final = "localhost"
_BEARER: Final = b"bearer "
_HOST: Final = re.compile(r"(\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[0-9A-Za-z._-]+))(:[0-9]{1,5})?", re.ASCII)
_OWN_SITES: Final = (b"same-origin", b"none")


class Refusal(NamedTuple):
    """The status and the words of a refusal."""

    status: int
    why: str


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first header of this name, in lower case."""
    return next((value for key, value in scope["headers"] if key == name), None)


def refused_host(scope: Scope, hosts: Collection[str]) -> Refusal | None:
    """Refuse a Host that is neither an address, nor localhost, nor one of `hosts`."""
    host = host_of((header(scope, b"host") or b"").decode("latin-1"))
    if host == LOCAL_NAME or _is_address(host) or host in {name.lower().rstrip(".") for name in hosts}:
        return None
    shown = host[:100] or "no name"
    return Refusal(
        421, f"this console is not called {shown!r}: use its address, or add the name to http.console.hosts"
    )


def refused_origin(scope: Scope, *, is_change: bool) -> Refusal | None:
    """Refuse what another site's page asks for. A change has to say its origin; browsers do."""
    site = header(scope, b"sec-fetch-site")
    if site is not None and site not in _OWN_SITES:
        return Refusal(403, "a page of another site asks for this")
    origin = header(scope, b"origin")
    if origin is None:
        return Refusal(403, "a change needs the header Origin") if is_change else None
    ours = (header(scope, b"host") or b"").decode("latin-1").lower()
    if origin.decode("latin-1").lower() in (f"http://{ours}", f"https://{ours}"):
        return None
    return Refusal(403, "a page of another origin asks for this")


def has_token(scope: Scope, token: str) -> bool:
    """Return whether the request has the token (RFC 6750), in a time that does not tell how much of it."""
    given = header(scope, b"authorization") or b""
    if not token or given[: len(_BEARER)].lower() != _BEARER:
        return False
    return hmac.compare_digest(given[len(_BEARER) :].strip(), token.encode())


def host_of(text: str) -> str:
    """Return the host of HOST or HOST:PORT, in lower case and without brackets; "" if it is neither."""
    match = _HOST.fullmatch(text)
    return (match["v6"] or match["name"]).lower().rstrip(".") if match else ""


def is_loopback(host: str) -> bool:
    """Return whether only this host reaches an address to listen on."""
    if host == LOCAL_NAME:
        return True
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
