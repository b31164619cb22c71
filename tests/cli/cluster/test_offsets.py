"""`mpbroker offsets` against a broker of its own."""

from __future__ import annotations

import re

import pytest
from confluent_kafka import Producer

from mpbroker.client.times import format_time
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.testing import Broker
from tests.support.fake_broker import FakeBroker
from tests.support.own_cli import OwnCli

FIRST_MS = 1_700_000_000_000


@pytest.fixture(name="topic", scope="module")
def _topic(cli: OwnCli, mpbroker_broker: Broker) -> str:
    """A topic with a record each second in partition 0, and none in partition 1."""
    topic = mpbroker_broker.create_topic(partitions=2)
    producer = Producer({"bootstrap.servers": cli.bootstrap})
    for number in range(10):
        producer.produce(topic, b"x", partition=0, timestamp=FIRST_MS + 1000 * number)
    producer.flush()
    cli("topic", "delete-records", topic, "--before", "2", "--partition", "0", "--yes")
    return topic


def test_both_ends(cli: OwnCli, topic: str) -> None:
    assert cli("offsets", topic, "--json").json == [
        {"topic": topic, "partition": 0, "earliest": 2, "latest": 10},
        {"topic": topic, "partition": 1, "earliest": 0, "latest": 0},
    ]
    assert [topic, "0", "2", "10"] in cli("offsets").table


@pytest.mark.parametrize(
    ("time", "offset", "second"),
    [
        ("earliest", 2, None),
        ("latest", 10, None),
        ("max-timestamp", 9, 9),
        (str(FIRST_MS + 4500), 5, 5),
        (format_time(FIRST_MS + 4000), 4, 4),
        ("2222-01-01", None, None),
    ],
)
def test_an_offset_at_a_time(
    cli: OwnCli, topic: str, time: str, offset: int | None, second: int | None
) -> None:
    (row, _) = cli("offsets", topic, "--time", time, "--json").json
    timestamp = -1 if second is None else FIRST_MS + 1000 * second
    assert (row["offset"], row["timestamp"]) == (offset, timestamp)
    (line,) = [words for words in cli("offsets", topic, "--time", time).table if words[:2] == [topic, "0"]]
    assert line[2:] == ["-" if offset is None else str(offset), format_time(timestamp)]


def test_a_time_that_no_date_says_is_a_number(cli: OwnCli, mpbroker_topic: str) -> None:
    topic, far_ms = mpbroker_topic, 1 << 60
    cli("topic", "alter", topic, "-c", f"message.timestamp.after.max.ms={far_ms}")
    producer = Producer({"bootstrap.servers": cli.bootstrap})
    producer.produce(topic, b"x", timestamp=far_ms)
    assert producer.flush() == 0
    assert cli("offsets", topic, "--time", "max-timestamp").table[1:] == [[topic, "0", "0", str(far_ms)]]


def test_a_partition_that_is_offline_hides_no_other(broker: FakeBroker) -> None:
    cli = OwnCli(broker.address)
    cli("topic", "create", "orders", "--partitions", "2")
    broker.offline.add(("orders", 0))
    why = "mpbroker: partition orders-0: it has no leader"
    for words in ((), ("-p", "0", "-p", "1")):
        said = cli("offsets", "orders", *words, code=1)
        assert said.table[1:] == [["orders", "0", "-", "-"], ["orders", "1", "0", "0"]]
        assert said.err.startswith(why)
        assert said.err.count("\n") == 1
    said = cli("offsets", "--time", "latest", "--json", code=1)
    assert [(row["offset"], row["timestamp"]) for row in said.json] == [(None, None), (0, -1)]


def test_a_partition_that_fails_hides_no_other(broker: FakeBroker) -> None:
    cli = OwnCli(broker.address)
    cli("topic", "create", "orders", "--partitions", "2")
    told = "mpbroker: offsets of orders-0: .*\\(NOT_LEADER_OR_FOLLOWER\\)\n"
    broker.refuse[ApiKey.LIST_OFFSETS] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    said = cli("offsets", "orders", code=1)
    assert said.table[1:] == [["orders", "0", "-", "-"], ["orders", "1", "0", "0"]]
    assert re.fullmatch(told, said.err)
    # The second request for it is that of its end.
    broker.refuse[ApiKey.LIST_OFFSETS] = [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    said = cli("offsets", "orders", code=1)
    assert said.table[1:] == [["orders", "0", "0", "-"], ["orders", "1", "0", "0"]]
    assert re.fullmatch(told, said.err)
    broker.refuse[ApiKey.LIST_OFFSETS] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    said = cli("offsets", "orders", "--time", "latest", "--json", code=1)
    assert [row["offset"] for row in said.json] == [None, 0]


def test_committed_records_end_before_an_open_transaction(cli: OwnCli, mpbroker_topic: str) -> None:
    topic = mpbroker_topic
    cli.produce(topic, ["x"])
    producer = cli.begun(topic, topic)
    assert cli("offsets", topic).table[1] == [topic, "0", "0", "2"]
    assert cli("offsets", topic, "--isolation-level", "read_committed").table[1] == [topic, "0", "0", "1"]
    producer.abort_transaction()


def test_a_topic_that_is_not_there_hides_no_other(cli: OwnCli, topic: str) -> None:
    said = cli("offsets", "nope", topic, "--json", code=1)
    assert [row["latest"] for row in said.json] == [10, 0]
    assert said.err == "mpbroker: topic nope: does not exist (UNKNOWN_TOPIC_OR_PARTITION)\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-p", "7"], "has no partition 7, only 0 to 1"),
        (["--time", "noon"], "--time noon: not a time"),
        (
            ["--isolation-level", "serializable"],
            "--isolation-level serializable: a level is one of read_uncommitted, read_committed",
        ),
    ],
)
def test_wrong_calls(cli: OwnCli, topic: str, words: list[str], message: str) -> None:
    cli.refused("offsets", topic, *words, says=message)
