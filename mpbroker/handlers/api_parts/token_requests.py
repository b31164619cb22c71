"""Parts of the APIs of delegation tokens: who may ask for tokens, and changes of a token's expiry."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator

from mpbroker.handlers.api_parts.coordinator_questions import ask_coordinator
from mpbroker.handlers.context import RequestContext
from mpbroker.ipc.calls import ChangedToken, ChangeToken, TokenDetails
from mpbroker.ipc.session import ANONYMOUS, SecurityProtocol
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import Message
from mpbroker.security.principals import principal_of

log = logging.getLogger("mpbroker.handlers")

# The time in a response that has none.
NO_TIME_MS = -1


def may_ask_for_tokens(context: RequestContext) -> bool:
    """Return whether the connection may be used for requests about tokens (KafkaApis.allowTokenRequests).

    It may not if its client has logged in with a token or is anonymous: a new token could be valid for longer
    than that token, or give a name to the anonymous client.
    """
    session = context.session
    if session.token_authenticated or session.security_protocol == SecurityProtocol.PLAINTEXT:
        return False
    return session.security_protocol != SecurityProtocol.SSL or session.principal != ANONYMOUS


def fields_of(token: TokenDetails) -> tuple[str, str, str, str, int, int, int, str, bytes]:
    """Return the fields of a token in the order in which responses have them."""
    owner, requester = principal_of(token.owner), principal_of(token.requester)
    return (
        *(owner.type, owner.name, requester.type, requester.name),
        *(token.issued_ms, token.expires_ms, token.max_ms, token.token_id, token.hmac),
    )


def change_token(
    context: RequestContext, call: ChangeToken, response: Callable[[int, int], Message], verb: str
) -> Generator[None, None, Message]:
    """Ask the coordinator to change a token's expiry. Return the response.

    `response` builds the response from an error code and the new expiry in ms. `verb` is the word for the
    change in a log line.
    """
    if not may_ask_for_tokens(context):
        return response(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, NO_TIME_MS)
    answer = yield from ask_coordinator(context, call, ChangedToken)
    if not answer.error:
        log.info("%s has %s delegation token %s", context.session.principal, verb, answer.token_id)
    return response(answer.error, answer.expires_ms)
