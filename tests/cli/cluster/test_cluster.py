"""`mpbroker cluster` against a broker of its own."""

from __future__ import annotations

import socket

from mpbroker.testing import Broker
from tests.support.own_cli import OwnCli


def test_what_a_cluster_is(mpbroker_broker: Broker) -> None:
    cli = OwnCli(mpbroker_broker.bootstrap_servers)
    about = cli("cluster", "--json").json
    port = int(cli.bootstrap.rpartition(":")[2])
    assert about["brokers"] == [{"id": 1, "host": "127.0.0.1", "port": port, "rack": None}]
    assert about["controller"] == 1
    assert len(about["cluster_id"]) == 22
    features = {row["feature"]: row for row in about["features"]}
    assert features["transaction.version"] == {
        "feature": "transaction.version",
        "min_version": 0,
        "max_version": 2,
        "finalized": 2,
    }
    assert "apis" not in about


def test_a_broker_that_is_not_where_it_says_is_shown_all_the_same() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with Broker({"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}) as broker:
        said = OwnCli(broker.bootstrap_servers)("cluster", code=1)
    assert ["1", "127.0.0.1", str(port), "-"] in said.table
    assert said.err.startswith(
        f"mpbroker: cannot connect to 127.0.0.1:{port}: Connection refused; the broker at"
    )


def test_versions_of_apis(mpbroker_broker: Broker) -> None:
    cli = OwnCli(mpbroker_broker.bootstrap_servers)
    apis = {row["api"]: row for row in cli("cluster", "--api-versions", "--json").json["apis"]}
    assert apis["FETCH"] == {"broker": 1, "key": 1, "api": "FETCH", "min_version": 4, "max_version": 18}
    assert ["1", "1", "FETCH", "4", "18"] in cli("cluster", "--api-versions").table
