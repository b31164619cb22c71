"""What the APIs of delegation tokens share: who may ask, and times in answers."""

from __future__ import annotations

from mpbroker.handlers.broker import ApiExchange
from mpbroker.ipc.session import ANONYMOUS, SecurityProtocol

# The time in an answer that has none.
NO_TIME_MS = -1


def may_ask_for_tokens(exchange: ApiExchange) -> bool:
    """Return whether the connection may be used for requests about tokens (KafkaApis.allowTokenRequests).

    It may not if it has logged in by a token itself, or not at all: then a token would outlive its bounds, or
    give a name to somebody without one.
    """
    session = exchange.session
    if session.token_authenticated or session.security_protocol == SecurityProtocol.PLAINTEXT:
        return False
    return session.security_protocol != SecurityProtocol.SSL or session.principal != ANONYMOUS
