"""SaslAuthenticate (key 36), versions 0-2: authentication, which processors do before handlers get requests.

A handler gets it only from a connection that has no SASL or has finished it, and that is an error. (Kafka:
KafkaApis.handleSaslAuthenticateRequest.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import SaslAuthenticateResponse

ERROR = "SaslAuthenticate request received after successful authentication"


@api(ApiKey.SASL_AUTHENTICATE, 0, 2, name="SaslAuthenticate")
def handle(_context: RequestContext) -> SaslAuthenticateResponse:
    """Continues SASL authentication; refused at any other time."""
    return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=ERROR)
