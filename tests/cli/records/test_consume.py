"""`mpbroker consume` and `produce` against a broker of its own: groups, isolation, times, JSON, null."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer

from mpbroker.client.cluster import Cluster
from mpbroker.client.config import ClientConfig, parse_servers
from mpbroker.protocol import messages as m
from mpbroker.testing import Broker
from tests.support.client_tools import eventually
from tests.support.group_members import QUICK, member
from tests.support.own_cli import OwnCli
from tests.support.polling import PATIENCE_S

FIRST_MS = 1_700_000_000_000
EVERYTHING = ("--from-beginning", "-e")


# ---- JSON and tombstones


def test_json_goes_round(cli: OwnCli, mpbroker_topics: Callable[..., str]) -> None:
    topic, copy = mpbroker_topics(partitions=2), mpbroker_topics(partitions=2)
    producer = Producer({"bootstrap.servers": cli.bootstrap})
    for number, (key, value) in enumerate(
        [(b"k", b"v"), (None, None), (b"\xff", b"\x80\0"), (b"", "é".encode())]
    ):
        headers = [("text", b"x"), ("none", None), ("bytes", b"\xfe")]
        producer.produce(topic, value, key, number % 2, headers=headers, timestamp=FIRST_MS + number)
    producer.flush()
    lines = cli("consume", topic, *EVERYTHING, "--json").out.splitlines()
    cli.produce(copy, lines, "--json")
    copied = cli("consume", copy, *EVERYTHING, "--json").out.splitlines()
    renamed = [line.replace(f'"topic":"{topic}"', f'"topic":"{copy}"') for line in lines]
    assert sorted(copied) == sorted(renamed)
    assert len(copied) == 4


def test_the_partition_of_lines_may_be_ignored(cli: OwnCli, mpbroker_broker: Broker) -> None:
    """Lines of a topic with more partitions, or other ones, go by their keys."""
    topic = mpbroker_broker.create_topic(partitions=3)
    keyed = [f'{{"key": "{key}", "value": "x"}}' for key in "abcdef"]
    cli.produce(topic, keyed, "--json")
    expected = cli("consume", topic, *EVERYTHING, "-f", "%p %k\\n").out
    copy = mpbroker_broker.create_topic(partitions=3)
    elsewhere = [line.replace("{", '{"partition": 7, ') for line in keyed]
    cli.produce(copy, elsewhere, "--json", "--ignore-partition")
    assert cli("consume", copy, *EVERYTHING, "-f", "%p %k\\n").out == expected


def test_a_line_of_json_that_is_wrong_is_named(cli: OwnCli, mpbroker_topic: str) -> None:
    lines = ['{"value": "a"}', '{"value": "b"}', '{"vlaue": "c"}', '{"value": "d"}']
    said = cli.produce(mpbroker_topic, lines, "--json", code=2)
    assert said.err == ("mpbroker: line 3: Object contains unknown field `vlaue`; 2 records are written\n")
    assert cli("consume", mpbroker_topic, *EVERYTHING).out == "a\nb\n"
    lines = ['{"value": "a"}', '{"value": "b", "partition": 3}', '{"value": "c"}']
    said = cli.produce(mpbroker_topic, lines, "--json", code=2)
    assert said.err == (
        f"mpbroker: line 2: topic {mpbroker_topic} has no partition 3, only 0 to 0: --ignore-partition sends "
        "lines by their keys, -p N all to one partition; 1 record is written\n"
    )
    cli.produce(mpbroker_topic, ['{"value": "c", "partition": 3}'], "--json", "-p", "0", "-H", "a=1")
    last = json.loads(cli("consume", mpbroker_topic, "-o", "-1", "-e", "--json").out)
    assert (last["value"], last["headers"]) == ("c", [["a", "1"]])
    assert "goes with --json" in cli.produce(mpbroker_topic, [], "--ignore-partition", code=2).err
    assert "leave -K and --null out" in cli.produce(mpbroker_topic, [], "--json", "-K", ":", code=2).err


def test_a_time_that_no_record_can_have_loses_no_line_before_it(cli: OwnCli, mpbroker_topic: str) -> None:
    late = '{"value": "c", "timestamp": 99999999999999999999}'
    lines = ['{"value": "a"}', "", '{"value": "b"}', " \t", late]
    said = cli.produce(mpbroker_topic, lines, "--json", code=2)
    assert said.err == (
        "mpbroker: line 5: Expected `int` <= 9223372036854775807 - at `$.timestamp`; 2 records are written\n"
    )
    assert cli("consume", mpbroker_topic, *EVERYTHING).out == "a\nb\n", "blank lines are none"


def pairs(cli: OwnCli, topic: str) -> list[tuple[str | None, str | None]]:
    """Return key and value of each record."""
    rows = map(json.loads, cli("consume", topic, *EVERYTHING, "--json").out.splitlines())
    return [(row["key"], row["value"]) for row in rows]


@pytest.mark.parametrize(("null", "marker"), [("", ""), ("NULL", "NULL"), (r"\0", "\0")])
def test_tombstones(cli: OwnCli, mpbroker_topic: str, null: str, marker: str) -> None:
    lines = [f"a:{marker}", "b:x", f"{marker}:y", f"a:{marker}z"]
    cli.produce(mpbroker_topic, lines, "-K", ":", "--null", null)
    assert pairs(cli, mpbroker_topic) == [("a", None), ("b", "x"), (None, "y"), ("a", f"{marker}z")]


def test_without_a_marker_nothing_is_null(cli: OwnCli, mpbroker_topic: str) -> None:
    cli.produce(mpbroker_topic, ["", ":"], "-K", ":")
    assert pairs(cli, mpbroker_topic) == [(None, ""), ("", "")]


# ---- isolation and times


@pytest.fixture(name="transacted")
def _transacted(cli: OwnCli, mpbroker_topic: str) -> Iterator[str]:
    """A topic with committed, aborted, plain and open records, in this order."""
    producer = Producer({"bootstrap.servers": cli.bootstrap, "transactional.id": mpbroker_topic})
    producer.init_transactions()
    for value, end in ((b"committed", producer.commit_transaction), (b"aborted", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(mpbroker_topic, value)
        producer.flush()
        end()
    cli.produce(mpbroker_topic, ["plain"])
    producer.begin_transaction()
    producer.produce(mpbroker_topic, b"open")
    producer.flush()
    yield mpbroker_topic
    producer.abort_transaction()


def test_isolation_levels(cli: OwnCli, transacted: str) -> None:
    everything = "committed\naborted\nplain\nopen\n"
    assert cli("consume", transacted, *EVERYTHING).out == everything
    committed = ("--isolation-level", "read_committed")
    assert cli("consume", transacted, *EVERYTHING, *committed).out == "committed\nplain\n"
    # The last ones are those before the open transaction.
    assert cli("consume", transacted, "-o", "-1", "-e", *committed).out == "plain\n"


def test_count_and_exit_at_end_by_their_long_names(cli: OwnCli, mpbroker_topics: Callable[..., str]) -> None:
    """Check --count and --exit-at-end: whichever comes first ends the command."""
    topic = mpbroker_topics(partitions=2)
    assert cli("consume", topic, "--from-beginning", "--exit-at-end").out == ""
    for partition in ("0", "1"):
        cli.produce(topic, [f"{partition}-{number}" for number in range(3)], "-p", partition)
    everything = sorted(f"{partition}-{number}" for partition in "01" for number in range(3))
    counted = cli("consume", topic, "--from-beginning", "--count", "4").out.split()
    assert len(counted) == 4
    assert set(counted) < set(everything)
    for count in ("0", "100"):
        said = cli("consume", topic, "--from-beginning", "--count", count, "--exit-at-end").out
        assert sorted(said.split()) == everything
    assert "--count" in cli("consume", topic, "--count", "-1", code=2).err


def test_from_a_time_until_another(cli: OwnCli, mpbroker_topics: Callable[..., str]) -> None:
    topic = mpbroker_topics(partitions=2)
    producer = Producer({"bootstrap.servers": cli.bootstrap})
    for number in range(10):
        producer.produce(topic, b"%d" % number, partition=number % 2, timestamp=FIRST_MS + 1000 * number)
    producer.flush()

    def read(*words: str) -> list[str]:
        return sorted(cli("consume", topic, *words).out.split())

    assert read("--from-time", str(FIRST_MS + 6500), "-e") == ["7", "8", "9"]
    assert read("-o", f"@{FIRST_MS + 8000}", "-e") == ["8", "9"]
    assert read("--from-time", "2023-11-14T22:13:24Z", "--until-time", str(FIRST_MS + 7000)) == [
        "4",
        "5",
        "6",
    ]
    assert read("--from-beginning", "--until-time", "2222-01-01") == [str(number) for number in range(10)]
    assert read("--from-beginning", "--until-time", "2000-01-01") == []
    assert read("-o", "+4", "-e") == ["8", "9"]


# ---- groups


PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@PROTOCOLS
def test_a_group_goes_on_where_it_was(
    cli: OwnCli, mpbroker_topics: Callable[..., str], protocol: str
) -> None:
    topic = group = mpbroker_topics(partitions=2)
    by = ("--group-protocol", protocol)
    for partition in ("0", "1"):
        cli.produce(topic, [f"{partition}-{number}" for number in range(5)], "-p", partition)
    assert cli("consume", topic, "--group", group, *by, "-e").out == "", "a new group begins at the end"
    cli("group", "reset-offsets", group, "--topic", topic, "--to-earliest", "--execute")
    first = cli("consume", topic, "--group", group, *by, "-n", "3").out.split()
    assert sum(cli.committed(group).values()) == 3, "what was printed is committed, and no more"
    rest = cli("consume", topic, "--group", group, *by, "-e").out.split()
    assert sorted(first + rest) == sorted(f"{one}-{number}" for one in "01" for number in range(5))
    assert cli.committed(group) == {0: 5, 1: 5}
    assert cli("consume", topic, "-g", f"{group}-new", *by, *EVERYTHING).out.count("\n") == 10
    (left,) = cli("group", "describe", group, "--json").json
    assert (left["type"], left["state"], left["members"]) == (protocol, "Empty", [])


@pytest.mark.parametrize(("place", "left"), [("beginning", "3\n4\n"), ("end", "")])
def test_a_group_that_retention_has_overtaken_goes_on(
    cli: OwnCli, mpbroker_topic: str, place: str, left: str
) -> None:
    topic = group = mpbroker_topic
    cli.produce(topic, [str(number) for number in range(5)])
    assert cli("consume", topic, "--group", group, "--from-beginning", "-n", "1").out == "0\n"
    cli("topic", "delete-records", topic, "--before", "3", "--yes")
    said = cli("consume", topic, "--group", group, "-o", place, "-e")
    assert said.out == left
    at = 3 if left else 5
    assert said.err == (
        f"mpbroker: {topic}-0 at offset 1: this offset no longer exists; group {group} continues at "
        f"the {place}, offset {at} (-o beginning or end)\n"
    )
    assert cli.committed(group) == {0: 5}
    assert cli("consume", topic, "--group", group, "-e").err == "", "it is committed"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_commit_what_was_printed_and_leave(
    cli: OwnCli, mpbroker_topic: str, number: signal.Signals, code: int
) -> None:
    topic = group = mpbroker_topic
    cli.produce(topic, ["a", "b"])
    with cli.running("consume", topic, "--group", group, "--from-beginning") as process:
        assert [process.stdout.readline() for _ in range(2)] == [b"a\n", b"b\n"]
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == code
        assert process.communicate() == (b"", b"")
    (left,) = cli("group", "describe", group, "--json").json
    assert (left["state"], left["members"]) == ("Empty", [])
    assert cli.committed(group) == {0: 2}


@PROTOCOLS
@pytest.mark.mpbroker(QUICK)
def test_partitions_are_shared_with_another_client(mpbroker_own_broker: Broker, protocol: str) -> None:
    """Our member leads the group, and gives librdkafka's its part; when that one leaves, it takes it over.

    In the consumer protocol, the coordinator assigns.
    """
    cli = OwnCli(mpbroker_own_broker.bootstrap_servers)
    topic = group = mpbroker_own_broker.create_topic(partitions=2)
    words = ("--group", group, "--group-protocol", protocol, "--from-beginning", "-f", "%p %v\n")
    how = {"group_protocol": protocol} | (
        {"partition_assignment_strategy": "range"} if protocol == "classic" else {}
    )
    with cli.running("consume", topic, *words) as process:
        cli.produce(topic, ["first"], "-p", "1")
        assert process.stdout.readline() == b"1 first\n"
        with member(cli.bootstrap, group, topic, **how) as other:
            (theirs,) = [part.partition for part in other.assignment()]
            cli.produce(topic, ["ours"], "-p", str(1 - theirs))
            assert process.stdout.readline() == b"%d ours\n" % (1 - theirs)
            (shared,) = cli("group", "describe", group, "--json").json
            assert sorted(len(one["partitions"]) for one in shared["members"]) == [1, 1]
            cli.produce(topic, ["theirs"], "-p", str(theirs))
        assert process.stdout.readline() == b"%d theirs\n" % theirs
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130


@PROTOCOLS
@pytest.mark.mpbroker(QUICK)
def test_a_member_that_was_forgotten_joins_again(mpbroker_own_broker: Broker, protocol: str) -> None:
    """It goes on from what was committed: records may come twice, and none is missing."""
    cli = OwnCli(mpbroker_own_broker.bootstrap_servers)
    topic = group = mpbroker_own_broker.create_topic()
    words = ("--group", group, "--group-protocol", protocol, "--from-beginning")
    with cli.running("consume", topic, *words) as process:
        cli.produce(topic, ["a"])
        assert process.stdout.readline() == b"a\n"
        (member,) = cli("group", "describe", group, "--json").json[0]["members"]
        dismiss(cli, group, member["member"])
        cli.produce(topic, ["b"])
        eventually(
            lambda: cli("group", "describe", group, "--json").json[0]["members"] != [],
            "it is a member again",
        )
        cli.produce(topic, ["c"])
        printed = list(iter(process.stdout.readline, b"c\n"))
        assert set(printed) <= {b"a\n", b"b\n"}
        assert b"b\n" in printed
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    assert cli.committed(group) == {0: 3}


def dismiss(cli: OwnCli, group: str, member: str) -> None:
    """Take a member out of a group, as its coordinator does when its session is over."""
    identity = m.LeaveGroupRequest.MemberIdentity(member)
    with closing(Cluster(parse_servers(cli.bootstrap), ClientConfig())) as cluster:
        assert cluster.ask_any(m.LeaveGroupRequest(group, member, [identity])).error_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--group", "g", "-p", "0"], "--group: its members share the partitions; -p cannot choose one"),
        (["--group", "g", "-o", "5"], "--group begins where it is"),
        (["--group", ""], "--group has no name"),
        (["--group-protocol", "consumer"], "--group-protocol goes with --group"),
        (["--group", "g", "--group-protocol", "x"], "--group-protocol x: a protocol is one of classic, con"),
        (["--from-beginning", "-o", "end"], "these exclude each other: --from-beginning, -o"),
        (["--from-time", "noon"], "--from-time noon: not a time"),
        (["-o", "@noon"], "-o @noon: not a time"),
        (["--isolation-level", "none"], "--isolation-level none: a level is one of"),
        (["--to", "x.parquet", "--group", "g"], "--group and --until-time are for printing"),
    ],
)
def test_wrong_calls(cli: OwnCli, mpbroker_topic: str, words: list[str], message: str) -> None:
    cli.refused("consume", mpbroker_topic, *words, says=message)
