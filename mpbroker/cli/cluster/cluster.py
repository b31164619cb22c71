"""`mpbroker cluster`: id, controller, brokers, features and the versions of their APIs.

(Kafka: ClusterTool, FeatureCommand, BrokerApiVersionsCommand)
"""

from __future__ import annotations

from typing import Any

from mpbroker.cli.cluster.client import Client
from mpbroker.cli.cluster.cluster_address import ClusterAddress
from mpbroker.cli.text.output import print_groups, print_json, print_table
from mpbroker.client.errors import ApiFailed
from mpbroker.client.versions import SOFTWARE_NAME, SOFTWARE_VERSION
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey


def show(where: ClusterAddress, *, with_apis: bool, as_json: bool) -> None:
    """Print what a cluster is; `with_apis` adds the versions of each API that each broker speaks."""
    with Client(where) as client:
        about: m.DescribeClusterResponse = client.cluster.ask_any(m.DescribeClusterRequest())
        if about.error_code:
            raise ApiFailed("cluster", about.error_code, about.error_message)
        brokers = client.cluster.refresh(m.MetadataRequest(topics=[])).brokers
        spoken = {broker.node_id: _versions(client, broker.node_id) for broker in brokers}
    document: dict[str, Any] = {
        "cluster_id": about.cluster_id,
        "controller": about.controller_id if about.controller_id >= 0 else None,
        "brokers": [
            {"id": one.broker_id, "host": one.host, "port": one.port, "rack": one.rack}
            for one in sorted(about.brokers, key=lambda broker: broker.broker_id)
        ],
        "features": _features(next(iter(spoken.values()))),
    }
    if with_apis:
        document["apis"] = [row for node, versions in sorted(spoken.items()) for row in _apis(node, versions)]
    if as_json:
        print_json(document)
        return
    print_groups([(document["cluster_id"], {"controller": document["controller"]})])
    for name in ("brokers", "features", "apis"):
        if rows := document.get(name):
            print()
            print_table(list(rows[0]), [list(row.values()) for row in rows])


def _versions(client: Client, node: int) -> m.ApiVersionsResponse:
    asked = m.ApiVersionsRequest(SOFTWARE_NAME, SOFTWARE_VERSION)
    response: m.ApiVersionsResponse = client.cluster.ask(node, asked)
    if response.error_code:
        raise ApiFailed(f"broker {node}", response.error_code)
    return response


def _features(versions: m.ApiVersionsResponse) -> list[dict[str, Any]]:
    finalized = {one.name: one.max_version_level for one in versions.finalized_features}
    return [
        {
            "feature": one.name,
            "min_version": one.min_version,
            "max_version": one.max_version,
            "finalized": finalized.get(one.name, 0),
        }
        for one in sorted(versions.supported_features, key=lambda feature: feature.name)
    ]


def _apis(node: int, versions: m.ApiVersionsResponse) -> list[dict[str, Any]]:
    names = {int(key): key.name for key in ApiKey}
    return [
        {
            "broker": node,
            "key": one.api_key,
            "api": names.get(one.api_key),
            "min_version": one.min_version,
            "max_version": one.max_version,
        }
        for one in sorted(versions.api_keys, key=lambda api: api.api_key)
    ]
