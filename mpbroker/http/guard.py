"""Whom the HTTP port answers: the rules about Host, Origin and tokens, without I/O.

A page of another site may make a browser of this host send requests here. Its requests have a Host that is
not ours, if it has pointed a name of its own at this address (DNS rebinding), or they have an Origin that is
not ours. Neither is answered. An address in Host is ours: a browser that writes it has not been led here by a
name. Ports are not compared, since tunnels and containers map them. User-Agent is not evidence. Browsers send
Sec-Fetch-Site over plain HTTP to loopback alone.
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
    """The status and the words of a refusal."""

    status: int
    why: str


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the value of the first header of this name (in lower case)."""
    return next((value for key, value in scope["headers"] if key == name), None)


def refused_host(scope: Scope, names: Collection[str]) -> Refusal | None:
    """Return the refusal of a Host that is no address, nor localhost, nor one of `names`; else None."""
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
    """Return the refusal of a request by another site's page, or of a change without an Origin, or None."""
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
    """Return whether the request has the token (RFC 6750), in a time that does not depend on it."""
    given = header(scope, b"authorization") or b""
    if not token or given[: len(_BEARER)].lower() != _BEARER:
        return False
    return hmac.compare_digest(given[len(_BEARER) :].strip(), token.encode())


def host_of(text: str) -> str:
    """Return the host of HOST or HOST:PORT, in lower case and without brackets; "" if it is neither."""
    match = _HOST.fullmatch(text)
    return plain(match["v6"] or match["name"]) if match else ""


def plain(name: str) -> str:
    """Return a name in lower case and without the dot of the root."""
    return name.lower().rstrip(".")


def is_address(host: str) -> bool:
    """Return whether it is an IP address, of version 6 without brackets."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
