"""The operations that a client may do, as bits in answers.

(Kafka: AuthHelper.authorizedOperations; KIP-430.)
"""

from __future__ import annotations

from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.permissions import DESCRIBE_CLUSTER
from mpbroker.security.acls import CLUSTER_NAME, ResourceType

# Value of the field if it was not asked for.
NOT_ASKED = -(2**31)


def operations(context: RequestContext, kind: ResourceType, name: str, is_asked: bool) -> int:
    """Return the operations that the client may do to a resource."""
    return context.broker.authorization.operations(context, kind, name) if is_asked else NOT_ASKED


def cluster_operations(context: RequestContext, is_asked: bool) -> int:
    """Return the operations that the client may do to the cluster; none if it may not describe it."""
    if not is_asked:
        return NOT_ASKED
    if not context.broker.authorization.allows_cluster(context, DESCRIBE_CLUSTER, is_logged=False):
        return 0
    return operations(context, ResourceType.CLUSTER, CLUSTER_NAME, True)
