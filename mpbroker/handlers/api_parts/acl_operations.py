"""Authorized operations of a client, as the bit fields of responses.

(Kafka: AuthHelper.authorizedOperations; KIP-430.)
"""

from __future__ import annotations

from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.permissions import DESCRIBE_CLUSTER
from mpbroker.security.acls import CLUSTER_NAME, ResourceType

# Value of the field if it was not asked for.
NOT_ASKED = -(2**31)


def operations(context: RequestContext, kind: ResourceType, name: str, is_asked: bool) -> int:
    """Return the client's allowed operations on a resource as a bit field; NOT_ASKED if not `is_asked`."""
    return context.broker.authorization.operations(context, kind, name) if is_asked else NOT_ASKED


def cluster_operations(context: RequestContext, is_asked: bool) -> int:
    """Return what `operations` returns for the cluster; 0 if the client may not describe the cluster."""
    if not is_asked:
        return NOT_ASKED
    if not context.broker.authorization.allows_cluster(context, DESCRIBE_CLUSTER, is_logged=False):
        return 0
    return operations(context, ResourceType.CLUSTER, CLUSTER_NAME, True)
