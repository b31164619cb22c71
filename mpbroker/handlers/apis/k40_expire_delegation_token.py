"""ExpireDelegationToken (key 40), versions 1-2: has a token expire soon, or now: then it is removed.

Connections that have logged in by it stay until their sessions end. (Kafka:
KafkaApis.handleExpireTokenRequest, DelegationTokenControlManager; KIP-48.)
"""

from __future__ import annotations

import logging

from mpbroker.handlers.api_parts.coordinator_questions import Unanswered, ask_coordinator
from mpbroker.handlers.api_parts.token_requests import NO_TIME_MS, may_ask_for_tokens
from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.requests.exchange import FEW_MAX
from mpbroker.ipc.calls import ChangedToken, ChangeToken
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ExpireDelegationTokenResponse as Response

log = logging.getLogger("mpbroker")


def failed(_exchange: ApiExchange, code: ErrorCode) -> Response:
    return Response(code, NO_TIME_MS)


def expired(exchange: ApiExchange, answer: ChangedToken | Unanswered) -> None:
    if isinstance(answer, Unanswered):
        exchange.fail(answer.code)
        return
    if not answer.error:
        log.info("%s has set the expiry of delegation token %s", exchange.session.principal, answer.token_id)
    exchange.reply(Response(answer.error, answer.expires_ms))


@api(ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2, name="ExpireDelegationToken", failed=failed, elements_max=FEW_MAX)
def handle(exchange: ApiExchange) -> Response | None:
    """Has a token expire, soon or now."""
    if not may_ask_for_tokens(exchange):
        return failed(exchange, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    body = exchange.body
    call = ChangeToken(body.hmac, exchange.session.principal, body.expiry_time_period_ms, expires=True)
    ask_coordinator(exchange, call, ChangedToken, lambda answer: expired(exchange, answer))
    return None
