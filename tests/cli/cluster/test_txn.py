"""`mpbroker txn` against a broker of its own, with transactions that are open, ended and hanging."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
from confluent_kafka import KafkaException

from mpbroker.cli.cluster.txn import hanging
from mpbroker.client.cluster import Cluster
from mpbroker.client.config import ClientConfig, parse_servers
from mpbroker.client.transactions import Transactions
from mpbroker.protocol import messages as m
from mpbroker.records.batch import assign_producer
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from mpbroker.testing import Broker
from tests.support.fake_broker import FakeBroker
from tests.support.own_cli import OwnCli

LONG_AGO_MS = 1_700_000_000_000


@pytest.fixture(name="topic")
def _topic(mpbroker_topics: Callable[..., str]) -> str:
    return mpbroker_topics(partitions=2)


def hang(cli: OwnCli, name: str, topic: str) -> int:
    """Write a batch of a transaction that its coordinator does not know; return the producer id."""
    with closing(Cluster(parse_servers(cli.bootstrap), ClientConfig())) as cluster:
        producer = Transactions(cluster).init(name, 60_000)
        batch = build_batch([NewRecord(b"x", timestamp=LONG_AGO_MS)])
        assign_producer(batch, producer.id, producer.epoch, 0, True)
        part = m.ProduceRequest.PartitionProduceData(1, batch)
        data = m.ProduceRequest.TopicProduceData(topic, partition_data=[part])
        (answer,) = cluster.ask(1, m.ProduceRequest(name, -1, 30_000, [data])).responses
    assert answer.partition_responses[0].error_code == 0
    return producer.id


def committed_ends(cli: OwnCli, topic: str) -> list[int]:
    rows = cli("offsets", topic, "--isolation-level", "read_committed", "--json").json
    return [row["latest"] for row in rows]


def test_an_open_transaction_is_listed_described_and_aborted(cli: OwnCli, topic: str) -> None:
    producer = cli.begun(topic, topic, (0, 1))
    (row,) = [row for row in cli("txn", "list", "--json").json if row["transactional_id"] == topic]
    assert (row["coordinator"], row["state"]) == (1, "Ongoing")
    assert cli("txn", "list").table[0] == ["TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "STATE"]
    (found,) = cli("txn", "describe", topic, "--json").json
    assert (found["producer_id"], found["state"]) == (row["producer_id"], "Ongoing")
    assert found["partitions"] == [[topic, 0], [topic, 1]]
    assert found["duration_ms"] >= 0
    assert topic in cli("txn", "describe").out
    assert f"{topic}-0, {topic}-1" in cli("txn", "describe", topic).out
    (first, second) = cli("txn", "describe-producers", topic, "--json").json
    assert (first["producer_id"], first["partition"], first["start_offset"]) == (row["producer_id"], 0, 0)
    assert cli("txn", "describe-producers", topic, "-p", "1", "--json").json == [second]
    assert cli("txn", "find-hanging", topic).out == "no hanging transactions\n"

    said = cli("txn", "abort", "--transactional-id", topic)
    assert said.out == f"aborted the transaction of {topic}, its producer is fenced\n"
    assert committed_ends(cli, topic) == [2, 2]
    with pytest.raises(KafkaException):
        producer.commit_transaction()
    none = cli("txn", "abort", "--transactional-id", topic, code=1)
    assert f"transactional id {topic} has no open transaction: it is " in none.err
    producer.purge()


def test_a_list_is_narrowed(cli: OwnCli, topic: str) -> None:
    producer = cli.begun(topic, topic, (0, 1))
    ended = cli.begun(f"{topic}-ended", topic, (0, 1))
    ended.commit_transaction()
    (mine,) = cli("txn", "describe", topic, "--json").json
    narrowed = {
        ("--state", "Ongoing"): True,
        ("--state", "CompleteCommit"): False,
        ("--producer-id", str(mine["producer_id"])): True,
        ("--longer-than", "7d"): False,
        ("--transactional-id-pattern", f"{topic[:-1]}."): True,
        ("--transactional-id-pattern", topic[:-1]): False,
    }
    for flags, is_there in narrowed.items():
        listed = {row["transactional_id"] for row in cli("txn", "list", *flags, "--json").json}
        assert (topic in listed) is is_there, flags
    producer.abort_transaction()


@pytest.mark.mpbroker({"transaction.partition.verification.enable": "false"})
@pytest.mark.parametrize("by", ["--start-offset", "--producer-id", "epochs"])
def test_a_hanging_transaction_is_found_and_aborted(mpbroker_own_broker: Broker, by: str) -> None:
    cli = OwnCli(mpbroker_own_broker.bootstrap_servers)
    cli("topic", "create", "t", "-p", "2")
    producer_id = hang(cli, "hanging", "t")
    assert committed_ends(cli, "t") == [0, 0]
    (row,) = cli("txn", "find-hanging", "--json").json
    assert row == {
        "topic": "t",
        "partition": 1,
        "producer_id": producer_id,
        "producer_epoch": 0,
        "coordinator_epoch": -1,
        "last_timestamp": LONG_AGO_MS,
        "start_offset": 0,
    }
    which = {
        "--start-offset": ["--start-offset", "0"],
        "--producer-id": ["--producer-id", str(producer_id)],
        "epochs": ["--producer-id", str(producer_id), "--producer-epoch", "0", "--coordinator-epoch", "0"],
    }
    place = ["txn", "abort", "--topic", "t", "--partition", "1"]
    none = cli(*place, "--start-offset", "7", code=1)
    assert none.err.startswith(
        "mpbroker: t-1 has no open transaction that begins at 7; mpbroker txn describe-pro"
    )
    said = cli(*place, *which[by])
    assert said.out == f"aborted the transaction of producer {producer_id} in t-1\n"
    assert committed_ends(cli, "t") == [0, 2]
    assert cli("txn", "find-hanging").out == "no hanging transactions\n"


def test_a_partition_that_is_offline_is_said(broker: FakeBroker) -> None:
    cli = OwnCli(broker.address)
    cli("topic", "create", "orders")
    broker.offline.add(("orders", 0))
    for words in (("describe-producers", "orders"), ("find-hanging",)):
        said = cli("txn", *words, code=1)
        assert said.out.startswith("no ")
        assert said.err.startswith("mpbroker: partition orders-0: it has no leader")


def test_what_a_coordinator_has_open_does_not_hang() -> None:
    rows = [{"producer_id": 1, "topic": "t", "partition": partition} for partition in (0, 1)]
    assert hanging(rows, {(1, "t", 0), (2, "t", 1)}) == rows[1:]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "say which: --transactional-id, or --topic and --partition of a hanging one"),
        (["--transactional-id", "a", "--topic", "t"], 2, "say which: --transactional-id, or --topic"),
        (["--topic", "t", "--start-offset", "0"], 2, "a hanging transaction is in a partition"),
        (["--topic", "t", "-p", "0"], 2, "say which in that partition: --start-offset or --producer-id"),
        (
            ["--topic", "t", "-p", "0", "--start-offset", "0", "--producer-epoch", "0"],
            2,
            "go with --producer-id",
        ),
        (["--transactional-id", "nope"], 1, "transactional id nope: "),
        (["--topic", "nope", "-p", "0", "--start-offset", "0"], 1, "topic nope: does not exist"),
    ],
)
def test_wrong_aborts(cli: OwnCli, words: list[str], code: int, message: str) -> None:
    cli.refused("txn", "abort", *words, says=message, code=code)


def test_an_id_that_is_not_there_hides_no_other(cli: OwnCli, topic: str) -> None:
    cli.begun(topic, topic, (0, 1)).commit_transaction()
    said = cli("txn", "describe", "nope", topic, "--json", code=1)
    assert [one["transactional_id"] for one in said.json] == [topic]
    assert "transactional id nope" in said.err
