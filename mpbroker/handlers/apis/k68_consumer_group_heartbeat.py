"""ConsumerGroupHeartbeat (key 68), versions 0-1: joins a group, stays its member, or leaves it (KIP-848).

From v1 on the client makes the member id, and may subscribe by a regular expression. A request is refused if
it names a topic that the client may not describe. Topics that a regular expression matches are filtered by
the coordinator. If the consumer protocol is switched off, the API is advertised nevertheless: librdkafka
would wait forever for a broker that has the API, but stops when the response is UNSUPPORTED_VERSION. (Kafka:
KafkaApis.handleConsumerGroupHeartbeat, GroupCoordinatorService.consumerGroupHeartbeat.)
"""

from __future__ import annotations

from collections.abc import Generator

from mpbroker.handlers.api_parts.group_sizes import is_too_large
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.permissions import DESCRIBE_TOPIC
from mpbroker.handlers.requests.request import Outcome
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.features import is_consumer_protocol_enabled
from mpbroker.protocol.messages import ConsumerGroupHeartbeatResponse

REFUSED = (
    "The broker has the consumer protocol switched off: add consumer to "
    "group.coordinator.rebalance.protocols, or set group.protocol=classic in the client."
)


def refusal(context: RequestContext) -> ConsumerGroupHeartbeatResponse | None:
    """Return an error response if the protocol is not served, or the request too large; else None."""
    if not is_consumer_protocol_enabled(context.broker.config.group_coordinator_rebalance_protocols):
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=REFUSED)
    if is_too_large(context):
        # Kafka's code for a record that is too large.
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    return None


@api(
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    0,
    1,
    name="ConsumerGroupHeartbeat",
    is_forwarded=True,
    refusal=refusal,
)
def handle(context: RequestContext) -> Outcome:
    """Keeps a member of the consumer protocol in its group; the response may have a new assignment."""
    if context.broker.authorization.is_on and context.body.subscribed_topic_names:
        return _forward_allowed(context)
    context.broker.forwarding.pass_on(context)
    return None


def _forward_allowed(context: RequestContext) -> Generator[None, None, ConsumerGroupHeartbeatResponse | None]:
    names = dict.fromkeys(context.body.subscribed_topic_names)
    _, denied = yield from context.split(DESCRIBE_TOPIC, names, str)
    if denied:
        return ConsumerGroupHeartbeatResponse(error_code=DESCRIBE_TOPIC.denied)
    context.broker.forwarding.pass_on(context)
    return None
