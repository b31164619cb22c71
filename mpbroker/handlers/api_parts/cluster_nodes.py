"""The brokers of the cluster, with the addresses at which the client of a request reaches them."""

from __future__ import annotations

from typing import NamedTuple

from mpbroker.handlers.context import RequestContext


class ClusterNode(NamedTuple):
    id: int
    host: str
    port: int
    rack: str | None = None


def cluster_nodes(context: RequestContext) -> list[ClusterNode]:
    """Return this broker and, in a cluster with a standby, all others that have the client's listener."""
    broker = context.broker
    address, metadata = broker.advertised(context), broker.metadata
    found = [ClusterNode(metadata.node_id, address.host, address.port, broker.config.broker_rack)]
    if metadata.nodes is not None:
        listener = broker.process.listener(context.slot.listener).listener.name
        found += [
            ClusterNode(node.id, *node.listeners[listener], node.rack or None)
            for node in metadata.nodes.nodes
            if node.id != metadata.node_id and listener in node.listeners
        ]
    return found


def leader_node(context: RequestContext) -> ClusterNode | None:
    """Return the broker that leads; None if the client's listener does not exist there."""
    leader = context.broker.metadata.leader_id
    return next((node for node in cluster_nodes(context) if node.id == leader), None)
