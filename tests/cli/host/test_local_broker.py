"""The broker on this host that flags name: by its port or its log directory, and no other's."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
from functools import partial
from pathlib import Path

import pytest

from mpbroker.cli.errors import CliError
from mpbroker.cli.host import ctl, local_broker, ready, scrub
from mpbroker.cli.host.local_broker import LocalBroker, by_log_dirs, by_port, listening_owners
from mpbroker.cli.main import run
from mpbroker.ipc.control_client import ControlError
from mpbroker.ipc.pointer import CONTROL_NAME, LOCK, POINTER_NAME, Pointer, write_pointer
from mpbroker.storage.names import STANDBY_FACE
from mpbroker.testing import Broker
from tests.support.own_cli import OwnCli


def test_a_broker_is_found_by_its_port(mpbroker_broker: Broker) -> None:
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
    assert gone.err.startswith(f"mpbroker: no process listens on port {others} of this host: ")


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


def test_one_way_to_name_a_broker() -> None:
    with pytest.raises(CliError, match="--port and --log-dirs exclude each other"):
        LocalBroker("data", 9092).control()
    with pytest.raises(CliError, match="--bootstrap-server and --port exclude each other"):
        LocalBroker(None, 9092, "localhost").control()


def test_a_broker_is_found_by_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker is found by -b and the environment, also by a socket; flags come before the environment."""
    cli = OwnCli("nobody:1")
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:0,LOCAL://unix:{tmp_path}/b.sock",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOCAL:PLAINTEXT",
    }
    with Broker(settings) as broker, Broker() as other:
        port = broker.bootstrap_servers.rpartition(":")[2]
        for address in (f"127.0.0.1:{port}", f"localhost:{port},elsewhere:1", f"unix:{tmp_path}/b.sock"):
            for words in (["-b", address, "status"], ["status", "-b", address]):
                assert cli("ctl", *words, "--json").json["pid"] == broker.pid
            monkeypatch.setenv("MPBROKER_BOOTSTRAP_SERVER", address)
            assert LocalBroker().control().call("status")["pid"] == broker.pid
        others = other.bootstrap_servers.rpartition(":")[2]
        for named in (
            LocalBroker(log_dirs=str(other.log_dir)),
            LocalBroker(port=int(others)),
            LocalBroker(bootstrap=other.bootstrap_servers),
        ):
            assert named.control().call("status")["pid"] == other.pid
        assert (
            cli("doctor", "-b", other.bootstrap_servers, "--json")
            .json["checks"][0]["found"]
            .startswith(f"runs on {other.log_dir}")
        )


def test_without_a_name_it_is_the_broker_on_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stopped one is an error: another broker on the default port must not be asked in its place."""
    monkeypatch.delenv("MPBROKER_BOOTSTRAP_SERVER", raising=False)
    monkeypatch.chdir(tmp_path)
    with Broker(log_dir=tmp_path / "data") as broker:
        broker.create_topic("here")
        assert run(["topic", "list"]) == 0
        assert "here" in capsys.readouterr().out
    assert run(["topic", "list"]) == 1
    assert capsys.readouterr().err.startswith(f"mpbroker: no broker is running on {tmp_path / 'data'}: start")
    # Files are read without a broker.
    assert run(["consume", "here", "--to", "here.parquet", "--log-dirs", "data"]) == 0
    capsys.readouterr()
    assert run(["topic", "list", "-b", "127.0.0.1:1"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_without_a_name_and_data_it_is_the_broker_on_the_default_port(
    mpbroker_broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("MPBROKER_BOOTSTRAP_SERVER", raising=False)
    monkeypatch.chdir(tmp_path)
    default = mpbroker_broker.bootstrap_servers
    monkeypatch.setattr(local_broker, "DEFAULT_BOOTSTRAP", default)
    local_broker._name_default.cache_clear()
    for _again in range(2):
        assert LocalBroker().control().call("status")["pid"] == mpbroker_broker.pid
    assert capsys.readouterr().err == "", "a script reads what it always read"
    local_broker._name_default.cache_clear()
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    for _again in range(2):
        LocalBroker().control()
    said = f"mpbroker: no ./data here: this is about the broker on {default}\n"
    assert capsys.readouterr().err == said
    # Who waits for one that is still to start does not mean the one that runs.
    assert ready.ready(LocalBroker(), 0, as_json=False) == 1
    assert "no broker is running here" in capsys.readouterr().out


def test_an_address_that_is_no_brokers_of_this_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for address, said in (
        ("192.0.2.1:9092", "192.0.2.1 is not an address of this host"),
        ("nowhere.invalid:9092", "nowhere.invalid cannot be resolved"),
        ("127.0.0.1:port", "is not HOST:PORT"),
        (f"unix:{tmp_path}/none.sock", "nothing listens at unix:.*: No such file"),
    ):
        with pytest.raises(CliError, match=said):
            LocalBroker(bootstrap=address).control()
    monkeypatch.setenv("MPBROKER_BOOTSTRAP_SERVER", "192.0.2.1:9092")
    with pytest.raises(CliError, match="MPBROKER_BOOTSTRAP_SERVER names it: unset that"):
        LocalBroker().control()


def test_a_broker_that_does_not_listen_yet_is_found_by_its_port(
    mpbroker_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpbroker.cli.host.local_broker.listening_owners", lambda _port: set())
    port = int(mpbroker_broker.bootstrap_servers.rpartition(":")[2])
    assert by_port(port).call("status")["pid"] == mpbroker_broker.pid


def test_the_log_directory_says_where_the_broker_is(tmp_path: Path) -> None:
    pointer = tmp_path / POINTER_NAME
    pointer.write_text(json.dumps({"runtime_dir": str(tmp_path / "run"), "pid": 1, "node_id": 1}))
    assert by_log_dirs(f"{tmp_path},/other").path == tmp_path / "run" / CONTROL_NAME
    pointer.write_text("{")
    with pytest.raises(CliError, match="is damaged"):
        by_log_dirs(str(tmp_path))
    pointer.unlink()
    with pytest.raises(CliError, match="no broker is running on"):
        by_log_dirs(str(tmp_path))


def test_a_standby_is_found_by_its_log_directory(tmp_path: Path) -> None:
    """The face of a standby runs in a directory below. If it has ended, its pointer is ignored."""
    for directory, runs in ((tmp_path, "owner"), (tmp_path / STANDBY_FACE, "face")):
        directory.mkdir(exist_ok=True)
        write_pointer(directory, Pointer(str(tmp_path / runs), 1, 1))
    assert by_log_dirs(str(tmp_path)).path.parent.name == "owner"
    with (tmp_path / STANDBY_FACE / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert by_log_dirs(str(tmp_path)).path.parent.name == "face"


def test_a_copy_is_not_taken_for_the_broker_that_it_was_copied_from(
    mpbroker_broker: Broker, tmp_path: Path
) -> None:
    copied = shutil.copytree(mpbroker_broker.log_dir, tmp_path / "copy")
    assert by_log_dirs(str(mpbroker_broker.log_dir)).call("status")["pid"] == mpbroker_broker.pid
    with pytest.raises(CliError, match="was copied from the directory of another broker, which runs"):
        by_log_dirs(str(copied))
    # Of one that does not run it says the same as its own directory would.
    (copied / POINTER_NAME).write_text(json.dumps({"runtime_dir": str(tmp_path), "pid": 1, "node_id": 1}))
    with pytest.raises(ControlError, match="no broker is running"):
        by_log_dirs(str(copied)).call("status")


def test_a_log_directory_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path is what is wrong: whether a broker runs nobody has looked."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for name, why in (("nope", "is not there"), ("file", "is not a directory")):
        for command in (ctl.status, partial(scrub.scrub, only_status=True)):
            with pytest.raises(CliError) as raised:
                command(LocalBroker(name), as_json=False)
            assert str(raised.value).startswith(f"--log-dirs: {tmp_path / name} {why}; name the broker with")
            assert raised.value.exit_code == 2
    # Another broker of this user may listen on 9092.
    monkeypatch.setattr(local_broker, "PLACES", ())
    with pytest.raises(CliError, match=f"no broker is running here: {tmp_path}/data is not there") as raised:
        ctl.status(LocalBroker(), as_json=False)
    assert raised.value.exit_code == 1
