"""Decides which HTTP requests are refused, by Host, Origin and token, without I/O.

A page of another site may make a browser on this host send requests to the broker. Such a request has the
other site's Host if that name was pointed at the broker's address (DNS rebinding), otherwise the other site's
Origin. Both are refused. A Host that is an address is allowed, since DNS rebinding needs a name. Ports in
Host are not compared, since tunnels and containers map them. User-Agent is not checked, since it
proves nothing. Sec-Fetch-Site may be missing: over plain HTTP, browsers send it only to loopback addresses.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Collection
from typing import Final, NamedTuple

from mpbroker.config.listeners import LOCAL_NAME
from mpbroker.http.server import Scope

_HOST: Final = re.compile(r"(\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[0-9A-Za-z._-]+))(:[0-9]{1,5})?", re.ASCII)
_BEARER: Final = b"bearer "
_OWN_SITES: Final = (b"same-origin", b"none")
_SHOWN_MAX: Final = 100


class Refusal(NamedTuple):
    """The refusal of a request: an HTTP status, and the reason, as text for the response's body."""

    status: int
    why: str


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the value of the first header `name` (in lower case), or None if the request has none."""
    return next((value for key, value in scope["headers"] if key == name), None)


def refused_host(scope: Scope, names: Collection[str]) -> Refusal | None:
    """Return None if Host is an address, localhost or one of `names`, or missing; otherwise a refusal."""
    given = header(scope, b"host")
    if given is None:
        return None
    host = host_of(given.decode("latin-1"))
    if host == LOCAL_NAME or is_address(host) or host in names:
        return None
    shown = host[:_SHOWN_MAX] or "no name"
    return Refusal(
        421, f"this broker is not called {shown!r}: use its address, or add the name to http.hosts"
    )


def refused_origin(scope: Scope, *, is_change: bool = False) -> Refusal | None:
    """Return a refusal for a request of another site's page, or for a change that lacks Origin, else None."""
    site = header(scope, b"sec-fetch-site")
    if site is not None and site not in _OWN_SITES:
        return Refusal(403, "a page of another site asks for this")
    origin = header(scope, b"origin")
    if origin is None:
        return Refusal(403, "a change needs the header Origin") if is_change else None
    ours = (header(scope, b"host") or b"").decode("latin-1").lower()
    if ours and origin.decode("latin-1").lower() in (f"http://{ours}", f"https://{ours}"):
        return None
    return Refusal(403, "a page of another origin asks for this")


def has_token(scope: Scope, token: str) -> bool:
    """Return whether the request has the bearer token `token` (RFC 6750); compare in constant time."""
    given = header(scope, b"authorization") or b""
    if not token or given[: len(_BEARER)].lower() != _BEARER:
        return False
    return hmac.compare_digest(given[len(_BEARER) :].strip(), token.encode())


def host_of(text: str) -> str:
    """Return the host of HOST or HOST:PORT, in lower case and without brackets; "" for any other text."""
    match = _HOST.fullmatch(text)
    return plain(match["v6"] or match["name"]) if match else ""


def plain(name: str) -> str:
    """Return a host name in lower case and without the dot at its end."""
    return name.lower().rstrip(".")


def is_address(host: str) -> bool:
    """Return whether `host` is an IP address. An IPv6 address must have no brackets."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
