"""What the APIs of delegation tokens share: who may ask, and principals as requests name them."""

from __future__ import annotations

from mpbroker.handlers.broker import ApiExchange
from mpbroker.ipc.session import ANONYMOUS, SecurityProtocol
from mpbroker.security.principals import Principal


def may_ask_for_tokens(exchange: ApiExchange) -> bool:
    """Return whether the connection may be used for requests about tokens (KafkaApis.allowTokenRequests).

    It may not if it has logged in by a token itself, or not at all: then a token would outlive its bounds, or
    give a name to somebody without one.
    """
    session = exchange.session
    if session.token_authenticated or session.security_protocol == SecurityProtocol.PLAINTEXT:
        return False
    return session.security_protocol != SecurityProtocol.SSL or session.principal != ANONYMOUS


def principal_of(text: str) -> Principal:
    """Return the principal that is written `User:name`."""
    kind, _, name = text.partition(":")
    return Principal(name, kind)
