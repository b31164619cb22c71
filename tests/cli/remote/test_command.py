"""`mpbroker remote` beside a broker whose object store is a directory."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpbroker.ipc.nodes import NODES_FILE, Node, Nodes, write_nodes
from mpbroker.remote.store.directory import DirectoryStore
from mpbroker.remote.tier.collector import ORPHAN_MS
from mpbroker.testing import Broker
from tests.support.client_tools import eventually
from tests.support.ledger_parts import read
from tests.support.own_cli import OwnCli
from tests.support.produced import produce
from tests.support.tiered_brokers import tiering

TOPIC = "orders"
RECORDS = 25


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def cli(place: Path) -> Iterator[OwnCli]:
    """With a topic of two uploaded segments, of which the first is deleted here, and an active one."""
    with Broker(settings=tiering(place)) as broker:
        tiered = {
            "remote.storage.enable": "true",
            "segment.bytes": "1048576",
            "local.retention.bytes": "1200000",
        }
        broker.create_topic(TOPIC, 1, tiered)
        produce(broker.bootstrap_servers, TOPIC, [os.urandom(100_000) for _ in range(RECORDS)])
        made = OwnCli(broker.bootstrap_servers)
        eventually(lambda: partition(made)["local_segments"] == 2, "a segment is deleted here")
        yield made


def partition(cli: OwnCli) -> dict[str, Any]:
    (row,) = cli("remote", "status", "--topic", TOPIC, "--json").json
    found: dict[str, Any] = row
    return found


def test_status_counts_what_the_store_has(cli: OwnCli, place: Path) -> None:
    eventually(lambda: cli("remote", "status", "--json").json["segments"] == 2, "the tier has counted")
    found = cli("remote", "status", "--json").json
    assert (found["state"], found["fenced"], found["down_since_ms"]) == ("ok", False, None)
    assert found["url"] == f"file://{place}"
    assert found["pending_segments"] == 0
    assert found["bytes"] == sum(path.stat().st_size for path in place.rglob("*.log"))
    assert found["last_entry"] >= 2
    assert found["owner"] in next(place.glob("mpbroker/log/*")).read_text()
    said = cli("remote", "status").out
    assert "2 segments" in said
    assert "generation 1" in said
    assert "one is due every 60 s" in said


def test_status_tells_who_serves_reads(cli: OwnCli) -> None:
    assert "serve reads" not in cli("remote", "status").out
    directory = Path(cli("remote", "status", "--json").json["log_dirs"][0])
    write_nodes(directory, Nodes(1, 1, [Node(1), Node(7, "a", {}, True)]))
    try:
        assert "serve reads" in (said := cli("remote", "status").out)
        assert "broker 7" in said
        assert cli("remote", "status", "--json").json["replicas"] == [7]
    finally:
        (directory / NODES_FILE).unlink()


def test_status_of_a_topic_tells_where_it_begins_and_ends(cli: OwnCli) -> None:
    row = partition(cli)
    assert row["log_start"] == 0
    assert 0 < row["local_start"] < row["remote_end"] < RECORDS
    assert (row["remote_segments"], row["local_segments"]) == (2, 2)
    cli.refused("remote", "status", "--topic", "absent", says="no partition", code=1)


def test_why_says_what_keeps_each_segment(cli: OwnCli) -> None:
    uploaded, active = cli("remote", "why", TOPIC, "--json").json
    assert "within local retention" in uploaded["why"]
    assert "not sealed" in active["why"]
    assert active["end"] == RECORDS
    assert "orders-0, offsets from" in cli("remote", "why", TOPIC).out


def test_why_takes_what_status_takes(cli: OwnCli) -> None:
    """Whichever flag names the broker, the broker named by the environment is not asked."""
    (directory,) = cli("remote", "status", "--json").json["log_dirs"]
    elsewhere = OwnCli("127.0.0.1:1")
    for named in (
        ("--log-dirs", directory),
        ("-b", cli.bootstrap),
        ("--port", cli.bootstrap.rpartition(":")[2]),
    ):
        assert "orders-0, offsets from" in elsewhere("remote", "why", TOPIC, *named).out


def test_verify_finds_what_is_missing(cli: OwnCli, place: Path) -> None:
    assert cli("remote", "verify", "--deep", "--json").json["problems"] == []
    assert "All is whole" in cli("remote", "verify", "--url", f"file://{place}", "--deep").out
    victim = next(place.rglob("*.indexes"))
    kept = victim.rename(place / "elsewhere")
    try:
        said = cli("remote", "verify", code=1).out
        assert f"bad: {victim.relative_to(place)}: it is missing" in said
    finally:
        kept.rename(victim)


def test_orphans_of_more_than_a_day_are_listed_and_deleted_on_demand(cli: OwnCli, place: Path) -> None:
    named = next(place.rglob("*.log"))
    name = str(named.relative_to(place))[:-26] + "A" * 22 + ".log"
    DirectoryStore(place).create(name, b"given up")
    assert "no orphans" in cli("remote", "gc").out
    written = (place / name).stat().st_mtime - ORPHAN_MS / 1000 - 60
    os.utime(place / name, (written, written))
    assert name in cli("remote", "gc").out
    assert (place / name).exists()
    found = cli("remote", "gc", "--delete", "--json").json
    assert [one["name"] for one in found["objects"]] == [name]
    assert found["asked_to_delete"]
    eventually(lambda: not (place / name).exists(), "the tier deletes it")
    assert named.exists()


def test_a_deleted_topic_comes_back_with_what_was_uploaded(cli: OwnCli, place: Path) -> None:
    cli.refused("remote", "undelete", TOPIC, says="its name is taken", code=1)
    cli.refused("remote", "undelete", "absent", says="no deleted topic absent", code=1)
    (before,) = cli("topic", "describe", TOPIC, "--json").json
    end = partition(cli)["remote_end"]
    cli("topic", "delete-records", TOPIC, "--partition", "0", "--before", "3", "--yes")
    store = DirectoryStore(place)
    eventually(lambda: 3 in read(store).state.log_starts.values(), "the ledger has the log start")
    cli("topic", "delete", TOPIC, "--yes")
    (row,) = cli("remote", "undelete", TOPIC, "--json").json
    assert (row["partition"], row["start"], row["end"]) == (0, 3, end)
    (after,) = cli("topic", "describe", TOPIC, "--json").json
    assert after["configs"] == before["configs"]
    found = cli("consume", TOPIC, "-o", "beginning", "-n", str(end - 3), "--json").out.splitlines()
    assert [json.loads(one)["offset"] for one in found] == list(range(3, end))


def test_a_url_that_names_no_store_is_one_sentence(cli: OwnCli, tmp_path: Path) -> None:
    cli.refused("remote", "verify", "--url", "ftp://x", says="names no store")
    cli.refused("remote", "verify", "--url", f"file://{tmp_path}/absent", says="is no directory")
    cli.refused("remote", "verify", "--url", f"file://{tmp_path}", says="no broker has used", code=1)
    cli.refused("remote", "gc", "--url", f"file://{tmp_path}", says="has no ledger", code=1)
    cli.refused("remote", "gc", "--delete", "--url", f"file://{tmp_path}", says="leave --url out")


def test_a_bucket_without_its_package_says_what_to_install(
    cli: OwnCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    cli.refused("remote", "verify", "--url", "s3://bucket", says="mpbroker-server[tier]")


def test_a_broker_without_a_store_says_what_to_set(mpbroker_broker: Broker) -> None:
    plain = OwnCli(mpbroker_broker.bootstrap_servers)
    for words in (["status"], ["verify"], ["gc"], ["why", TOPIC], ["undelete", TOPIC]):
        plain.refused("remote", *words, says="remote.log.storage.system.enable=true", code=1)
