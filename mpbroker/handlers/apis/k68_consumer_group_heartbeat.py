"""ConsumerGroupHeartbeat (key 68), versions 0-1: refused, since only classic groups are served.

The API is advertised, since librdkafka with group.protocol=consumer waits forever, without an error, for a
broker that has this API, but stops with an error if the response is UNSUPPORTED_VERSION. A Kafka broker
without the consumer protocol responds with the same error. (Kafka: KafkaApis.handleConsumerGroupHeartbeat;
KIP-848.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ConsumerGroupHeartbeatResponse

REFUSED = (
    "Groups of the consumer protocol are not built in this version of the broker: set group.protocol=classic."
)


@api(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, name="ConsumerGroupHeartbeat")
def handle(_context: RequestContext) -> ConsumerGroupHeartbeatResponse:
    """Refuses requests with UNSUPPORTED_VERSION; advertised because librdkafka hangs otherwise."""
    return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=REFUSED)
