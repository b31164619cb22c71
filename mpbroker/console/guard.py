"""Tells whether a request has the console's token, and whether only this host reaches an address; no I/O.

(`exporter/guard.py` has the rules about Host and Origin.)
"""

from __future__ import annotations

import hmac
import ipaddress
from typing import Final

from mpbroker.exporter.guard import LOCAL_NAME, header, is_address
from mpbroker.exporter.http_server import Scope

_BEARER: Final = b"bearer "


def has_token(scope: Scope, token: str) -> bool:
    """Return whether the request has the token (RFC 6750), in a time that does not tell how much of it."""
    given = header(scope, b"authorization") or b""
    if not token or given[: len(_BEARER)].lower() != _BEARER:
        return False
    return hmac.compare_digest(given[len(_BEARER) :].strip(), token.encode())


def is_loopback(host: str) -> bool:
    """Return whether only this host reaches an address to listen on."""
    if host == LOCAL_NAME:
        return True
    return is_address(host) and ipaddress.ip_address(host).is_loopback
