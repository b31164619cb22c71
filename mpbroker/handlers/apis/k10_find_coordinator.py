"""FindCoordinator (key 10), versions 0-6: which broker coordinates a group or a transactional id. None, in
this version.

Groups and transactions are not built, and their APIs are not advertised. A client that wants one must fail at
once with an error it shows, not search for ever: COORDINATOR_NOT_AVAILABLE would be retried until the end of
time. UNSUPPORTED_VERSION is retried by none: Java's AbstractCoordinator and kafka-python raise whatever is
not retriable, aiokafka too, librdkafka reports it as a consumer error. For transactions it is
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, the error that librdkafka takes as fatal there. (Kafka:
KafkaApis.handleFindCoordinatorRequest; KIP-699 for v4.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.exchange import Exchange
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import FindCoordinatorResponse

GROUP, TRANSACTION, SHARE = 0, 1, 2
FIRST_VERSION_WITH_KEYS = 4
NO_NODE = -1

NOT_BUILT = {
    GROUP: (
        ErrorCode.UNSUPPORTED_VERSION,
        "Consumer groups are not built in this version of the broker; assign partitions instead.",
    ),
    TRANSACTION: (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "Transactions are not built in this version of the broker.",
    ),
    SHARE: (ErrorCode.UNSUPPORTED_VERSION, "Share groups are not built in this version of the broker."),
}


def respond(exchange: Exchange, code: ErrorCode, message: str) -> FindCoordinatorResponse:
    if exchange.version < FIRST_VERSION_WITH_KEYS:
        return FindCoordinatorResponse(
            error_code=code, error_message=message, node_id=NO_NODE, host="", port=-1
        )
    return FindCoordinatorResponse(
        coordinators=[
            FindCoordinatorResponse.Coordinator(key, NO_NODE, "", -1, code, message)
            for key in exchange.body.coordinator_keys
        ]
    )


def failed(exchange: Exchange, code: ErrorCode) -> FindCoordinatorResponse:
    return respond(exchange, code, code.message)


@api(ApiKey.FIND_COORDINATOR, 0, 6, name="FindCoordinator", failed=failed)
def handle(exchange: Exchange) -> FindCoordinatorResponse:
    """Says that groups and transactions are not built, in a way that no client retries."""
    unknown = ErrorCode.INVALID_REQUEST, f"Unknown coordinator type {exchange.body.key_type}."
    return respond(exchange, *NOT_BUILT.get(exchange.body.key_type, unknown))
