"""DescribeCluster (key 60), versions 0-2: the cluster's id, brokers and controller: the one that leads.

From v1 on a request asks for brokers or for controllers (KIP-919). There is no listener for controllers, so a
request for controllers gets MISMATCHED_ENDPOINT_TYPE. No broker is ever fenced (v2). (Kafka:
AuthHelper.computeDescribeClusterResponse.)
"""

from __future__ import annotations

from mpbroker.handlers.api_parts.acl_operations import cluster_operations
from mpbroker.handlers.api_parts.cluster_nodes import cluster_nodes
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DescribeClusterResponse

BROKERS, CONTROLLERS = 1, 2


def refused(context: RequestContext, code: ErrorCode, message: str) -> DescribeClusterResponse:
    return DescribeClusterResponse(
        error_code=code, error_message=message, endpoint_type=context.body.endpoint_type
    )


def failed(context: RequestContext, code: ErrorCode) -> DescribeClusterResponse:
    return refused(context, code, code.message)


@api(ApiKey.DESCRIBE_CLUSTER, 0, 2, name="DescribeCluster", failed=failed)
def handle(context: RequestContext) -> DescribeClusterResponse:
    """Returns the cluster's id, its brokers and its controller."""
    request, broker = context.body, context.broker
    if request.endpoint_type == CONTROLLERS:
        return refused(
            context,
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "The request was sent to an endpoint of type BROKER, "
            "but we wanted an endpoint of type CONTROLLER",
        )
    if request.endpoint_type != BROKERS:
        return refused(
            context,
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            f"Unsupported endpoint type {request.endpoint_type}",
        )
    return DescribeClusterResponse(
        cluster_id=broker.metadata.cluster_id,
        controller_id=broker.metadata.leader_id,
        brokers=[DescribeClusterResponse.DescribeClusterBroker(*node) for node in cluster_nodes(context)],
        cluster_authorized_operations=cluster_operations(
            context, request.include_cluster_authorized_operations
        ),
    )
