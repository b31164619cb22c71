"""`mpbroker cluster`: id, controller, brokers and features of a cluster, and its brokers' API versions.

(Kafka: ClusterTool, FeatureCommand, BrokerApiVersionsCommand)
"""

from __future__ import annotations

from typing import Annotated, Any

from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.flags import ClusterAddress, Json, flag
from mpbroker.cli.text.output import print_json, print_table
from mpbroker.client.admin import Admin
from mpbroker.client.errors import ApiFailed, ClientError, raise_all
from mpbroker.client.versions import SOFTWARE_NAME, SOFTWARE_VERSION
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey

# By the keys of the document, in its order.
_HEADINGS = {
    "brokers": ["broker_id", "advertised_host", "port", "rack"],
    "features": ["feature", "supported_min", "supported_max", "finalized_level"],
    "apis": ["broker_id", "api_key", "api", "supported_min", "supported_max"],
}


def cluster(
    api_versions: Annotated[
        bool, flag("--api-versions", "The versions of each API that each broker speaks.")
    ] = False,
    *,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Print the cluster's id, controller, brokers and features."""
    # The error of a broker that cannot be reached is raised at the end: the rest helps to find the cause.
    failed: list[ClientError] = []
    with open_admin(where) as client:
        about: m.DescribeClusterResponse = client.cluster.ask_any(m.DescribeClusterRequest())
        if about.error_code:
            raise ApiFailed("cluster", about.error_code, about.error_message)
        spoken = _versions(client, client.broker_ids(), failed)
    document: dict[str, Any] = {
        "cluster_id": about.cluster_id,
        "controller": about.controller_id if about.controller_id >= 0 else None,
        "brokers": [
            {"id": one.broker_id, "host": one.host, "port": one.port, "rack": one.rack}
            for one in sorted(about.brokers, key=lambda broker: broker.broker_id)
        ],
        "features": _features(next(iter(spoken.values()))) if spoken else [],
    }
    if api_versions:
        document["apis"] = [row for node, versions in sorted(spoken.items()) for row in _apis(node, versions)]
    if json:
        print_json(document)
    else:
        _print(document)
    raise_all(failed)


def _print(document: dict[str, Any]) -> None:
    """Print the document as tables, whose headings are longer and clearer than the keys of the JSON."""
    print_table(["cluster_id", "controller_id"], [[document["cluster_id"], document["controller"]]])
    for name, headings in _HEADINGS.items():
        if rows := document.get(name):
            print()
            print_table(headings, [list(row.values()) for row in rows])


def _versions(client: Admin, nodes: list[int], failed: list[ClientError]) -> dict[int, m.ApiVersionsResponse]:
    """Return the API versions by broker id; add an error to `failed` for each broker that does not answer."""
    spoken: dict[int, m.ApiVersionsResponse] = {}
    for node in nodes:
        try:
            response = client.cluster.ask(node, m.ApiVersionsRequest(SOFTWARE_NAME, SOFTWARE_VERSION))
            if response.error_code:
                raise ApiFailed(f"broker {node}", response.error_code)
        except ClientError as error:
            failed.append(error)
        else:
            spoken[node] = response
    return spoken


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
