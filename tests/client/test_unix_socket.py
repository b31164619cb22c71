"""A listener on a Unix-domain socket: asked over it, a broker says of itself that it is there."""

from pathlib import Path

import pytest

from mpbroker.client.cluster import Cluster
from mpbroker.client.config import ClientConfig, parse_servers
from mpbroker.client.errors import ConnectionLost
from mpbroker.client.metadata import bootstrap_nodes
from mpbroker.protocol import messages as m
from ops.bench.brokers import Mpbroker
from tests.real_clients.conftest import served


def test_a_broker_is_asked_over_its_socket(tmp_path: Path) -> None:
    path, server = tmp_path / "kafka.sock", Mpbroker(tmp_path)
    server.flags = (
        *("--listeners", f"PLAINTEXT://{server.bootstrap},LOCAL://unix:{path}"),
        *("-o", "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,LOCAL:PLAINTEXT"),
    )
    with served(server):
        cluster = Cluster(parse_servers(f"unix:{path}"), ClientConfig())
        try:
            (broker,) = cluster.refresh(m.MetadataRequest()).brokers
            assert (broker.host, broker.port) == (f"unix:{path}", 0)
            answer = cluster.ask(broker.node_id, m.ListGroupsRequest())
            assert answer.error_code == 0
        finally:
            cluster.close()


def test_a_socket_that_is_not_there(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'nobody.sock'}"
    assert [node.address for node in bootstrap_nodes(parse_servers(address))] == [address]
    cluster = Cluster(parse_servers(address), ClientConfig())
    with pytest.raises(ConnectionLost, match=f"cannot connect to {address}: No such file"):
        cluster.ask_any(m.ListGroupsRequest())
    cluster.close()
