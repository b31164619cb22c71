"""ExpireDelegationToken (key 40), versions 1-2: sets a token's expiry, or removes the token at once.

Connections that have logged in with the token stay until their sessions end. (Kafka:
KafkaApis.handleExpireTokenRequest, DelegationTokenControlManager; KIP-48.)
"""

from __future__ import annotations

from mpbroker.handlers.api_parts.token_requests import NO_TIME_MS, change_token
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import SMALL_REQUEST_ELEMENTS_MAX
from mpbroker.handlers.requests.request import Outcome
from mpbroker.ipc.calls import ChangeToken
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ExpireDelegationTokenResponse as Response


def failed(_context: RequestContext, code: ErrorCode) -> Response:
    return Response(code, NO_TIME_MS)


@api(
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    1,
    2,
    name="ExpireDelegationToken",
    failed=failed,
    elements_max=SMALL_REQUEST_ELEMENTS_MAX,
)
def handle(context: RequestContext) -> Outcome:
    """Sets the expiry of a token, or removes the token at once."""
    body = context.body
    call = ChangeToken(body.hmac, context.session.principal, body.expiry_time_period_ms, expires=True)
    return change_token(context, call, Response, "set the expiry of")
