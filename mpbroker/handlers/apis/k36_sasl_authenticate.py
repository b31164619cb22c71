"""SaslAuthenticate (key 36), versions 0-2: handlers refuse it always, since processors authenticate clients.

A processor passes this request to a handler only if the connection uses no SASL, or is authenticated already.
(Kafka: KafkaApis.handleSaslAuthenticateRequest.)
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
    """Refuses SASL authentication, which is possible only before all other requests of a connection."""
    return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=ERROR)
