"""ListPartitionReassignments (key 46), version 0: none is ever in progress, for there is one broker.

(Kafka: ReplicationControlManager.listPartitionReassignments; KIP-455.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ListPartitionReassignmentsResponse


def failed(_: RequestContext, code: ErrorCode) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_code=code, error_message=code.message)


@api(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, name="ListPartitionReassignments", failed=failed)
def handle(_: RequestContext) -> ListPartitionReassignmentsResponse:
    """Reports that no partition is being moved to another broker."""
    return ListPartitionReassignmentsResponse(error_message=None)
