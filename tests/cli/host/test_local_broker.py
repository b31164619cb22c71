"""`mpbroker ctl --port`: the broker that listens there, and no other's."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from mpbroker.cli.errors import CliError
from mpbroker.cli.host.local_broker import Here, by_port, listening_owners, port_of
from mpbroker.testing import Broker
from tests.support.own_cli import OwnCli


def test_a_broker_is_found_by_its_port(mpbroker_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPBROKER_RUNTIME_DIR", raising=False)
    port = mpbroker_broker.bootstrap_servers.rpartition(":")[2]
    cli = OwnCli("nobody:1")
    with Broker() as other:
        for words in (["ctl", "status", "--port", port], ["ctl", "--port", port, "status"]):
            assert cli(*words, "--json").json["pid"] == mpbroker_broker.pid
        others = other.bootstrap_servers.rpartition(":")[2]
        assert cli("ctl", "--port", others, "status", "--json").json["pid"] == other.pid
        listed = cli("ctl", "listener", "list", "--port", others, "--json").json["listeners"]
        assert [one["listener"].rpartition(":")[2] for one in listed] == [others]
    gone = cli("ctl", "status", "--port", others, code=1)
    assert gone.err == f"mpbroker: nobody listens on port {others} of this host\n"


def test_who_listens_is_no_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert listening_owners(port) == {os.getuid()}
        with pytest.raises(CliError, match=f"no broker that you may ask listens on port {port}"):
            by_port(port)


def test_sockets_of_both_families(tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    row = "  0: 0100007F:{port:04X} 00000000:0000 {state} 0:0 0:0 0 {uid} 0 1\n"
    table.write_text(
        "  sl  local_address\n"
        + row.format(port=9092, state="0A", uid=7)
        + row.format(port=9092, state="01", uid=8)
        + row.format(port=9093, state="0A", uid=9)
    )
    assert listening_owners(9092, (str(table), str(tmp_path / "tcp6"))) == {7}


@pytest.mark.parametrize(
    ("listener", "port"), [("A://127.0.0.1:9092", 9092), ("A://[::1]:7", 7), ("A://unix:/run/k.sock", None)]
)
def test_ports_of_listeners(listener: str, port: int | None) -> None:
    assert port_of(listener) == port


def test_one_way_to_name_a_broker() -> None:
    with pytest.raises(CliError, match="--port and --log-dirs exclude each other"):
        Here("data", 9092).control()
