"""ExpireDelegationToken (key 40), versions 1-2: has a token expire soon, or now: then it is removed.

Connections that have logged in by it stay until their sessions end. (Kafka:
KafkaApis.handleExpireTokenRequest, DelegationTokenControlManager; KIP-48.)
"""

from __future__ import annotations

from mpbroker.handlers.api_parts.token_requests import NO_TIME_MS, change_token
from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.requests.limits import SMALL_REQUEST_ELEMENTS_MAX
from mpbroker.ipc.calls import ChangeToken
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ExpireDelegationTokenResponse as Response
from mpbroker.protocol.messages import Message


def failed(_exchange: ApiExchange, code: ErrorCode) -> Response:
    return Response(code, NO_TIME_MS)


@api(
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    1,
    2,
    name="ExpireDelegationToken",
    failed=failed,
    elements_max=SMALL_REQUEST_ELEMENTS_MAX,
)
def handle(exchange: ApiExchange) -> Message | None:
    """Has a token expire, soon or now."""
    body = exchange.body
    call = ChangeToken(body.hmac, exchange.session.principal, body.expiry_time_period_ms, expires=True)
    return change_token(exchange, call, Response, "set the expiry of")
