"""SaslHandshake (key 17), versions 0-1: authentication, which processors do before requests reach a handler.

A handler gets this request only from a connection that does not use SASL or is authenticated already. In both
cases the response is an error. (Kafka: KafkaApis.handleSaslHandshakeRequest.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import SaslHandshakeResponse


@api(ApiKey.SASL_HANDSHAKE, 0, 1, name="SaslHandshake")
def handle(_context: RequestContext) -> SaslHandshakeResponse:
    """Refuses SASL authentication, which is possible only before all other requests of a connection."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
