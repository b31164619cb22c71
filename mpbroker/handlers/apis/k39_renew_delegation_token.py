"""RenewDelegationToken (key 39), versions 1-2: postpones a token's expiry, up to its maximum lifetime.

(Kafka: KafkaApis.handleRenewTokenRequest, DelegationTokenControlManager; KIP-48.)
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
from mpbroker.protocol.messages import RenewDelegationTokenResponse as Response


def failed(_context: RequestContext, code: ErrorCode) -> Response:
    return Response(code, NO_TIME_MS)


@api(
    ApiKey.RENEW_DELEGATION_TOKEN,
    1,
    2,
    name="RenewDelegationToken",
    failed=failed,
    elements_max=SMALL_REQUEST_ELEMENTS_MAX,
)
def handle(context: RequestContext) -> Outcome:
    """Postpones the expiry of a token."""
    body = context.body
    call = ChangeToken(body.hmac, context.session.principal, body.renew_period_ms)
    return change_token(context, call, Response, "renewed")
