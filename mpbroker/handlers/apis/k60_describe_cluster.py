"""DescribeCluster (key 60), versions 0-2: the cluster's id, brokers and controller, all of it this broker.

v1 asks for brokers or controllers (KIP-919). Controllers have no listener of their own here, so asking for
them is a mismatch. No broker is ever fenced (v2). (Kafka: AuthHelper.computeDescribeClusterResponse.)
"""

from __future__ import annotations

from mpbroker.handlers.api_parts.acl_operations import cluster_operations
from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DescribeClusterResponse

BROKERS, CONTROLLERS = 1, 2


def refused(exchange: ApiExchange, code: ErrorCode, message: str) -> DescribeClusterResponse:
    return DescribeClusterResponse(
        error_code=code, error_message=message, endpoint_type=exchange.body.endpoint_type
    )


def failed(exchange: ApiExchange, code: ErrorCode) -> DescribeClusterResponse:
    return refused(exchange, code, code.message)


@api(ApiKey.DESCRIBE_CLUSTER, 0, 2, name="DescribeCluster", failed=failed)
def handle(exchange: ApiExchange) -> DescribeClusterResponse:
    """The cluster's id, its brokers and its controller."""
    request, broker = exchange.body, exchange.broker
    if request.endpoint_type == CONTROLLERS:
        return refused(
            exchange,
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "The request was sent to an endpoint of type BROKER, "
            "but we wanted an endpoint of type CONTROLLER",
        )
    if request.endpoint_type != BROKERS:
        return refused(
            exchange,
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            f"Unsupported endpoint type {request.endpoint_type}",
        )
    address = broker.advertised(exchange.slot)
    node = broker.metadata.node_id
    return DescribeClusterResponse(
        cluster_id=broker.metadata.cluster_id,
        controller_id=node,
        brokers=[DescribeClusterResponse.DescribeClusterBroker(node, address.host, address.port)],
        cluster_authorized_operations=cluster_operations(
            exchange, request.include_cluster_authorized_operations
        ),
    )
