"""Tells whether a request has the console's token; no I/O.

(`exporter/guard.py` has the rules about Host and Origin.)
"""

from __future__ import annotations

import hmac
from typing import Final

from mpbroker.exporter.guard import header
from mpbroker.exporter.http_server import Scope

_BEARER: Final = b"bearer "


def has_token(scope: Scope, token: str) -> bool:
    """Return whether the request has the token (RFC 6750), in a time that does not tell how much of it."""
    given = header(scope, b"authorization") or b""
    if not token or given[: len(_BEARER)].lower() != _BEARER:
        return False
    return hmac.compare_digest(given[len(_BEARER) :].strip(), token.encode())
