"""UnregisterBroker (key 64), version 0: removes no broker, since this one is the only one and is running.

Kafka unregisters a running broker, too; a cluster of one node is unusable then. (Kafka:
ReplicationControlManager.unregisterBroker; KIP-746.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import UnregisterBrokerResponse


def failed(_: RequestContext, code: ErrorCode) -> UnregisterBrokerResponse:
    return UnregisterBrokerResponse(error_code=code, error_message=code.message)


@api(ApiKey.UNREGISTER_BROKER, 0, 0, name="UnregisterBroker", failed=failed)
def handle(context: RequestContext) -> UnregisterBrokerResponse:
    """Refuses to remove this broker from the cluster; no other one is registered."""
    broker_id = context.body.broker_id
    if broker_id == context.broker.metadata.node_id:
        message = f"Broker ID {broker_id} is running, and it is the cluster's only broker"
        return UnregisterBrokerResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=message)
    return UnregisterBrokerResponse(
        error_code=ErrorCode.BROKER_ID_NOT_REGISTERED,
        error_message=f"Broker ID {broker_id} is not currently registered",
    )
