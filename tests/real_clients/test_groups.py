"""Consumer groups: members share partitions, come and go; and what Kafka's command and ours say of them.

That a member of any client goes on where another has committed is in `test_matrix.py`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from ops.bench.brokers import Broker
from tests.support import client_adapters
from tests.support.client_adapters import CONSUMER, MEMBERS
from tests.support.client_samples import sample_records
from tests.support.client_tools import dump, kafka_tool
from tests.support.committed_offsets import offset_of
from tests.support.forms import each
from tests.support.group_members import subscriber
from tests.support.own_cli import OwnCli
from tests.support.polling import PATIENCE_S
from tests.support.produced import produce
from tests.support.real_brokers import TopicMaker, create_topic, make_broker, stop_cleanly

PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
VERIFIABLE = "org.apache.kafka.tools.VerifiableConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
BROKER_SETTINGS = {"group.min.session.timeout.ms": "1000"}


def write(broker: Broker, topic: str, count: int, partitions: int = 1) -> None:
    records = sample_records(partitions, count, seed=count)
    client_adapters.confluent_write(broker.bootstrap, topic, records, "none")


def member(broker: Broker, group: str, topic: str, **settings: Any) -> AbstractContextManager[Consumer]:
    timing = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 200}
    return subscriber(broker.bootstrap, group, topic, **{**timing, **settings})


def poll_until(holds: Callable[[], bool], *consumers: Consumer) -> list[tuple[int, int]]:
    """Polls all members until that holds; -> partition and offset of what they got."""
    deadline = time.monotonic() + PATIENCE_S
    got: list[tuple[int, int]] = []
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s; got {len(got)} records"
        for consumer in consumers:
            message = consumer.poll(0.02)
            if message is not None:
                assert message.error() is None, message.error()
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                got.append((partition, offset))
    return got


def read(consumer: Consumer, count: int) -> list[tuple[int, int]]:
    got: list[tuple[int, int]] = []
    for _ in range(count):
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None, message.error()
        got.append((message.partition() or 0, message.offset() or 0))
    return got


def shares(*consumers: Consumer) -> list[set[int]]:
    return [{p.partition for p in consumer.assignment()} for consumer in consumers]


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_two_members_share_partitions_and_one_takes_over(
    broker: Broker, new_topic: TopicMaker, strategy: str
) -> None:
    topic = new_topic(4)
    settings = {"partition_assignment_strategy": strategy}
    with member(broker, topic, topic, **settings) as first:
        poll_until(lambda: shares(first) == [{0, 1, 2, 3}], first)
        with member(broker, topic, topic, **settings) as second:
            poll_until(lambda: [len(share) for share in shares(first, second)] == [2, 2], first, second)
            assert set.union(*shares(first, second)) == {0, 1, 2, 3}
        poll_until(lambda: shares(first) == [{0, 1, 2, 3}], first)


def test_a_member_that_stops_without_leaving_is_missed(broker: Broker, new_topic: TopicMaker) -> None:
    """A consumer that no longer polls leaves no trace but silence."""
    topic = new_topic(2)
    silent = {"session_timeout_ms": 1500, "max_poll_interval_ms": 1500}
    with member(broker, topic, topic, **silent) as first, member(broker, topic, topic) as second:
        poll_until(lambda: [len(share) for share in shares(first, second)] == [1, 1], first, second)
        poll_until(lambda: shares(second) == [{0, 1}], second)


def test_a_static_member_comes_back_to_its_partitions(broker: Broker, new_topic: TopicMaker) -> None:
    topic = new_topic(2)

    def static(number: int) -> Any:
        return member(broker, topic, topic, group_instance_id=f"instance-{number}")

    with static(1) as first:
        with static(2) as second:
            poll_until(lambda: [len(share) for share in shares(first, second)] == [1, 1], first, second)
            before = shares(first, second)
        with static(2) as second:
            poll_until(lambda: shares(first, second) == before, first, second)


def test_members_and_offsets_survive_restarts_in_records_that_are_kafkas(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    """Read by Kafka's decoder of group records."""
    broker = make_broker(tmp_path_factory.mktemp("restarted"))
    request.addfinalizer(broker.kill)
    broker.start()
    create_topic(broker.bootstrap, "t", 1)
    write(broker, "t", 10)
    with member(broker, "g", "t") as consumer:
        assert read(consumer, 3) == [(0, 0), (0, 1), (0, 2)]
        for first, stop in ((3, stop_cleanly), (5, Broker.kill)):
            consumer.commit(asynchronous=False)
            stop(broker)
            broker.start()
            # The same member, in the same generation, or it would read from the committed offset again.
            assert read(consumer, 2) == [(0, first), (0, first + 1)]
        consumer.commit(asynchronous=False)
    assert offset_of(broker, "g", "t") == 7
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_consumer_groups(["g"])["g"].result(PATIENCE_S)
    stop_cleanly(broker)
    logs = [path for path in sorted(broker.log_dir.glob("__consumer_offsets-*/*.log")) if path.stat().st_size]
    assert len(logs) == 1
    printed = dump("--offsets-decoder", "--print-data-log", "--files", str(logs[0]))
    records = [line for line in printed.splitlines() if "payload:" in line]
    assert '"group":"g","topic":"t","partition":0' in next(r for r in records if '"offset":7' in r)
    assert any('"protocolType":"consumer"' in r and '"members":[{' in r for r in records)
    assert sum("payload: null" in r or r.endswith("payload: <DELETE>") for r in records) == 2, printed


def test_kafkas_group_command(broker: Broker, new_topic: TopicMaker) -> None:
    topic = new_topic(1)
    write(broker, topic, 10)
    group = ("--bootstrap-server", broker.bootstrap, "--group", "java-members")
    assert MEMBERS["java"](broker.bootstrap, topic, "java-members", 4) == 4
    listed = kafka_tool(GROUPS, "--bootstrap-server", broker.bootstrap, "--list", "--state")
    assert ["java-members", "Empty"] in [line.split() for line in listed.splitlines()]
    row = next(
        line.split() for line in kafka_tool(GROUPS, *group, "--describe").splitlines() if topic in line
    )
    assert row[:6] == ["java-members", topic, "0", "4", "10", "6"]
    reset = ("--reset-offsets", "--topic", topic, "--to-offset", "8", "--execute")
    kafka_tool(GROUPS, *group, *reset)
    assert offset_of(broker, "java-members", topic) == 8
    assert MEMBERS["java"](broker.bootstrap, topic, "java-members", 2) == 2
    kafka_tool(GROUPS, *group, "--delete-offsets", "--topic", topic)
    assert offset_of(broker, "java-members", topic) is None
    with member(broker, "java-members", topic) as consumer:
        read(consumer, 1)
        described = kafka_tool(GROUPS, *group, "--describe", "--members")
        assert "rdkafka" in described
        assert "/127.0.0.1" in described
        assert "GroupNotEmptyException" in kafka_tool(GROUPS, *group, "--delete")
    kafka_tool(GROUPS, *group, "--delete")
    names = kafka_tool(GROUPS, "--bootstrap-server", broker.bootstrap, "--list").splitlines()
    assert "java-members" not in names


def test_our_own_command(broker: Broker, new_topic: TopicMaker) -> None:
    topic = group = new_topic(2)
    write(broker, topic, 10, partitions=2)
    cli = OwnCli(broker.bootstrap)
    with member(broker, group, topic, client_id="reader") as first, member(broker, group, topic) as second:
        poll_until(lambda: [len(share) for share in shares(first, second)] == [1, 1], first, second)
        (mine,) = shares(first)[0]
        first.commit(offsets=[TopicPartition(topic, mine, 4)], asynchronous=False)
        (seen,) = cli("group", "describe", group, "--json").json
        assert (seen["state"], seen["protocol"], len(seen["members"])) == ("Stable", "range", 2)
        rows = {row["partition"]: row for row in seen["partitions"]}
        assert (rows[mine]["committed"], rows[mine]["lag"], rows[mine]["client"]) == (
            4,
            rows[mine]["end_offset"] - 4,
            "reader",
        )
        assert (rows[1 - mine]["committed"], rows[1 - mine]["lag"]) == (None, None)
        assert rows[1 - mine]["member"] not in (None, rows[mine]["member"])
        assert {row["host"] for row in rows.values()} == {"127.0.0.1"}
        # Of two with one client id each is told apart, as Kafka's tool does it.
        table = cli("group", "describe", group).out.splitlines()
        assert table[1].split()[-3:] == ["CONSUMER-ID", "HOST", "CLIENT-ID"]
        (line,) = [line for line in table if line.split()[:2] == [topic, str(mine)]]
        assert line.split()[-3:] == [rows[mine]["member"], "127.0.0.1", "reader"]
        members = [line.split() for line in cli("group", "describe", group, "--members").out.splitlines()]
        wanted = ["CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "ASSIGNMENT"]
        assert members[1] == wanted
        assert [rows[mine]["member"], "-", "127.0.0.1", "reader", "1", f"{topic}({mine})"] in members


RESETS = (
    ["--to-earliest"],
    ["--to-latest"],
    ["--to-current"],
    ["--to-offset", "6"],
    ["--to-offset", "99"],
    ["--to-datetime", "2020-01-31T12:00:00.000"],
    ["--to-datetime", "2222-01-31T12:00:00.000+01:00"],
    ["--by-duration", "P1DT2H3M4S"],
    ["--shift-by", "-2"],
    ["--shift-by", "99"],
)


def test_our_resets_are_those_of_kafkas_tool(broker: Broker, new_topic: TopicMaker, tmp_path: Path) -> None:
    topic = group = new_topic(2)
    write(broker, topic, 20, partitions=2)
    with member(broker, group, topic) as consumer:
        read(consumer, 20)
        consumer.commit(
            offsets=[TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 5)], asynchronous=False
        )
    cli, kafkas = OwnCli(broker.bootstrap), ("--bootstrap-server", broker.bootstrap, "--group", group)
    for flags in RESETS:
        printed = kafka_tool(GROUPS, *kafkas, "--reset-offsets", "--topic", topic, *flags, "--dry-run")
        theirs = {tuple(line.split()[-3:]) for line in printed.splitlines() if line.startswith(group)}
        ours = cli("group", "reset-offsets", group, "--topic", topic, *flags, "--json").json
        assert {(topic, str(row["partition"]), str(row["new_offset"])) for row in ours} == theirs, flags
    # It reads what we export, and we read what it exports.
    file = tmp_path / "offsets.csv"
    file.write_text(cli("group", "reset-offsets", group, "--all-topics", "--shift-by", "2", "--export").out)
    exported = kafka_tool(GROUPS, *kafkas, "--reset-offsets", "--from-file", str(file), "--export")
    # It quotes whatever is long.
    assert sorted(exported.replace('"', "").split()) == [f"{topic},0,5", f"{topic},1,7"]
    file.write_text(exported)
    ours = cli("group", "reset-offsets", group, "--from-file", str(file), "--json").json
    assert [row["new_offset"] for row in ours] == [5, 7]
    cli("group", "reset-offsets", group, "--topic", f"{topic}:1", "--to-offset", "2", "--execute")
    described = kafka_tool(GROUPS, *kafkas, "--describe")
    rows = [line.split()[1:4] for line in described.splitlines() if line.startswith(group)]
    assert sorted(rows) == [[topic, "0", "3"], [topic, "1", "2"]]
    cli("group", "delete-offsets", group, "--topic", f"{topic}:1")
    described = kafka_tool(GROUPS, *kafkas, "--describe")
    assert [line.split()[1:4] for line in described.splitlines() if line.startswith(group)] == [
        [topic, "0", "3"]
    ]


@each("assignor", short=["range"], long=["range", "uniform"])
def test_javas_consumers_have_the_protocol(broker: Broker, new_topic: TopicMaker, assignor: str) -> None:
    topic, server = new_topic(2), ("--bootstrap-server", broker.bootstrap)
    values = [str(number) for number in range(20)]
    produce(broker.bootstrap, topic, values, 2)
    pattern, group = f"{topic[:-1]}.*", f"{assignor}-"
    settings = {
        "group.protocol": "consumer",
        "group.remote.assignor": assignor,
        "auto.offset.reset": "earliest",
    }
    properties = [
        word for name, value in settings.items() for word in ("--command-property", f"{name}={value}")
    ]
    for number, what in enumerate((("--topic", topic), ("--include", pattern))):
        limits = ("--group", f"{group}console-{number}", "--max-messages", "20")
        printed = kafka_tool(CONSUMER, *server, *what, *limits, *properties)
        assert sorted(printed.split()) == sorted(values)
        limits = ("--group", f"{group}performance-{number}", "--num-records", "20", "--timeout", "60000")
        (row,) = kafka_tool(PERFORMANCE, *server, *what, *limits, *properties, "--hide-header").splitlines()
        assert int(row.split(",")[4]) == 20
    of_group = ("--topic", topic, "--group-id", f"{group}verifiable", "--max-messages", "20")
    protocol = ("--group-protocol", "consumer", "--group-remote-assignor", assignor)
    events = map(json.loads, kafka_tool(VERIFIABLE, *server, *of_group, *protocol).splitlines())
    # Its first assignment is empty when its metadata has no partition of the topic yet.
    named = [event for event in events if event["name"] in ("partitions_assigned", "records_consumed")]
    assigned = [event["partitions"] for event in named if "count" not in event]
    assert {part["partition"] for partitions in assigned for part in partitions} == {0, 1}
    assert sum(event.get("count", 0) for event in named) == 20
    types = kafka_tool(GROUPS, *server, "--list", "--type", "consumer").splitlines()
    assert sum(line.startswith(group) for line in types) == 5
