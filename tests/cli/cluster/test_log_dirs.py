"""`mpbroker log-dirs` against a broker of its own, whose files say the same."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from mpbroker.testing import Broker
from tests.support.own_cli import OwnCli


@pytest.fixture(name="cli")
def _cli(mpbroker_broker: Broker) -> OwnCli:
    return OwnCli(mpbroker_broker.bootstrap_servers)


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
        "mpbroker: --broker 7: there is no such broker; there is 1\n"
    )
    assert "topic nope: does not exist" in cli("log-dirs", "nope", code=1).err
