"""SaslHandshake (key 17), versions 0-1: authentication, which processors do before requests reach a handler.

A handler gets it only from a connection that has no SASL or has finished it, and that is an error. (Kafka:
KafkaApis.handleSaslHandshakeRequest.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import SaslHandshakeResponse


@api(ApiKey.SASL_HANDSHAKE, 0, 1, name="SaslHandshake")
def handle(_context: RequestContext) -> SaslHandshakeResponse:
    """Begins SASL authentication; refused at any other time."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
