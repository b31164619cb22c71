"""Parts of the APIs of delegation tokens: who may ask for tokens, and changes of a token's expiry."""

from __future__ import annotations

import logging
from collections.abc import Callable

from mpbroker.handlers.api_parts.coordinator_questions import Unanswered, ask_coordinator
from mpbroker.handlers.broker import ApiExchange
from mpbroker.ipc.calls import ChangedToken, ChangeToken
from mpbroker.ipc.session import ANONYMOUS, SecurityProtocol
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import Message

log = logging.getLogger("mpbroker.handlers")

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


def change_token(
    exchange: ApiExchange, call: ChangeToken, response: Callable[[int, int], Message], verb: str
) -> Message | None:
    """Ask the coordinator to change a token's expiry; return the answer if the client may not ask for that.

    `response` makes an answer from an error code and the new expiry; `verb` says in the log what was done.
    """
    if not may_ask_for_tokens(exchange):
        return response(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, NO_TIME_MS)

    def changed(answer: ChangedToken | Unanswered) -> None:
        if isinstance(answer, Unanswered):
            exchange.fail(answer.code)
            return
        if not answer.error:
            log.info("%s has %s delegation token %s", exchange.session.principal, verb, answer.token_id)
        exchange.reply(response(answer.error, answer.expires_ms))

    ask_coordinator(exchange, call, ChangedToken, changed)
    return None
