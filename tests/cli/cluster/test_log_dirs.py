"""`mpbroker log-dirs` against a broker of its own, whose files say the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from mpbroker.testing import Broker
from ops.bench.brokers import MPBROKER_COMMAND, Mpbroker
from tests.support.own_cli import OwnCli
from tests.support.real_brokers import served


def test_sizes_of_partitions(
    cli: OwnCli, mpbroker_broker: Broker, mpbroker_topics: Callable[..., str]
) -> None:
    topic, other = mpbroker_topics(partitions=2), mpbroker_topics()
    cli.produce(topic, ["x" * 1000] * 10, "-p", "1")
    (found,) = cli("log-dirs", topic, "--json").json
    sizes = [
        sum(path.stat().st_size for path in (mpbroker_broker.log_dir / f"{topic}-{number}").glob("*.log"))
        for number in range(2)
    ]
    assert sizes[1] > 10_000
    assert (found["broker"], found["log_dir"], found["error"]) == (1, str(mpbroker_broker.log_dir), None)
    assert found["partitions"] == [
        {"topic": topic, "partition": number, "size": size, "offset_lag": 0, "is_future": False}
        for number, size in enumerate(sizes)
    ]
    assert 0 < found["usable_bytes"] <= found["total_bytes"]
    title, headings, *rows = cli("log-dirs", topic).out.splitlines()
    free = r"[\d,]+ of [\d,]+ bytes are free"
    told = rf"broker 1  {mpbroker_broker.log_dir}, 2 partition\(s\) with {sizes[1]:,} bytes, {free}"
    assert re.fullmatch(told, title)
    assert headings.split() == ["TOPIC", "PARTITION", "SIZE", "OFFSET-LAG", "FUTURE"]
    assert rows[1].split() == [topic, "1", str(sizes[1]), "0", "no"]
    assert {row["topic"] for row in cli("log-dirs", "--broker", "1", "--json").json[0]["partitions"]} >= {
        topic,
        other,
    }


def test_wrong_calls(cli: OwnCli) -> None:
    assert cli("log-dirs", "--broker", "7", code=2).err == (
        "mpbroker: --broker 7 does not exist; there is 1\n"
    )
    assert "topic nope: does not exist" in cli("log-dirs", "nope", code=1).err


def test_partitions_move_to_another_directory(tmp_path: Path) -> None:
    """Slowly at first: a limit keeps what is large on its way."""
    data, other = tmp_path / "data", tmp_path / "other"
    template = MPBROKER_COMMAND.replace("{log_dir}", f"{data},{other}")
    limit = "replica.alter.log.dirs.io.max.bytes.per.second"
    flags = ("-o", "log.journal.bytes=1048576", "-o", f"{limit}=1000")
    with served(Mpbroker(tmp_path, template=template, flags=flags)) as broker:
        cli = OwnCli(broker.bootstrap)
        cli("topic", "create", "orders", "--partitions", "4")
        home = data if (data / "orders-3").exists() else other
        away = other if home == data else data
        cli.produce("orders", ["x" * 1000] * 50, "-p", "3")
        assert cli("log-dirs", "move", "orders", "3", "--to", str(home), "--wait").out == (
            f"moved orders-3 to {home}\n"
        )
        # A relative path, as for `serve`.
        told = cli("log-dirs", "move", "orders", "3", "--to", f"./{away.name}").out
        assert re.match(
            rf"orders-3 moves to {away}; it lacks [\d,]+ offset\(s\)\. mpbroker log-dirs orders ", told
        )
        late = cli("log-dirs", "move", "orders", "3", "--to", str(away), "--wait", "0", code=1).err
        assert re.search(rf"orders-3 is not in {away} after 0 s: it lacks [\d,]+ offset", late)
        cli("config", "set", f"{limit}=1000000000")
        rows = cli("log-dirs", "move", "orders", "--to", str(away), "--wait", "--json").json
        assert [(row["partition"], row["is_there"]) for row in rows] == [(n, True) for n in range(4)]
        assert all((away / f"orders-{number}").is_dir() for number in range(4))
        assert cli("consume", "orders", "--from-beginning", "-e").out.count("x" * 1000) == 50


def test_wrong_moves(cli: OwnCli, mpbroker_topics: Callable[..., str], mpbroker_broker: Broker) -> None:
    topic, there = mpbroker_topics(), str(mpbroker_broker.log_dir)
    for words in ((topic,), ("move",), ("move", topic, "x"), ("move", topic, "--broker", "1")):
        told = cli("log-dirs", *words, "--to", there, code=2).err
        assert told == "mpbroker: write mpbroker log-dirs move TOPIC [PARTITION]... --to DIR\n"
    assert "has no partition 7" in cli("log-dirs", "move", topic, "7", "--to", there, code=2).err
    told = cli("log-dirs", "move", topic, "--to", "/nowhere", code=2).err
    assert told == f"mpbroker: --to /nowhere: broker 1 has no such log directory; there is {there}\n"
    assert "needs --to DIR" in cli("log-dirs", "move", topic, "--wait", code=2).err
