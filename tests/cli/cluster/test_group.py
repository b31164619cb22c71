"""`mpbroker group` against a broker of its own, with consumers that come and go."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from mpbroker.testing import Broker
from mpbroker.testing.names import unique_name
from tests.support.group_members import commit, member
from tests.support.own_cli import OwnCli
from tests.support.polling import until


@pytest.fixture(name="topic", scope="module")
def _topic(cli: OwnCli, mpbroker_broker: Broker) -> str:
    """A topic with 10 records in partition 0 and 4 in partition 1."""
    topic = mpbroker_broker.create_topic(partitions=2)
    cli.produce(topic, ["x"] * 10, "-p", "0")
    cli.produce(topic, ["x"] * 4, "-p", "1")
    return topic


@pytest.fixture(name="group")
def _group() -> str:
    """The name of a group of the test's own."""
    return unique_name("group")


def test_all_groups_are_listed_and_described(cli: OwnCli, topic: str, group: str) -> None:
    idle, busy = f"{group}-idle", f"{group}-busy"
    commit(cli.bootstrap, idle, topic, {0: 3})
    with member(cli.bootstrap, busy, topic):
        rows = {row["group"]: row for row in cli("group", "list", "--json").json}
        assert rows[idle] == {"group": idle, "type": "classic", "state": "Empty", "protocol_type": ""}
        assert (rows[busy]["state"], rows[busy]["protocol_type"]) == ("Stable", "consumer")
        assert [busy, "classic", "Stable", "consumer"] in cli("group", "list", "--state", "stable").table
        assert idle not in cli("group", "list", "--state", "stable").out
        assert busy not in cli("group", "list", "--type", "Consumer").out
        described = {one["group"]: one for one in cli("group", "describe", "--json").json}
        assert described[idle]["members"] == []
        assert described[idle]["partitions"][0]["lag"] == 7
        assert len(described[busy]["members"]) == 1
        assert sorted(described[busy]["members"][0]["partitions"]) == [[topic, 0], [topic, 1]]
        table = cli("group", "describe").out
        assert idle in table
        assert busy in table


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        (
            "--state",
            "--state bogus: a state is one of Stable, Empty, PreparingRebalance, ",
        ),
        ("--type", "--type bogus: a type is one of classic, consumer, share, streams"),
    ],
)
def test_only_what_groups_can_be_is_listed(cli: OwnCli, flag: str, message: str) -> None:
    cli.refused("group", "list", flag, "bogus", says=message)


def test_a_group_of_the_consumer_protocol_shows_epochs_and_targets(
    cli: OwnCli, topic: str, group: str
) -> None:
    commit(cli.bootstrap, group, topic, {0: 3})
    with member(
        cli.bootstrap, group, f"^{topic}$", group_protocol="consumer", client_id="reader"
    ) as consumer:
        assert [group, "consumer", "Stable", "consumer"] in cli("group", "list", "--type", "consumer").table
        (document,) = cli("group", "describe", group, "--json").json
        epoch = document["epoch"]
        assert (document["type"], document["protocol"]) == ("consumer", "uniform")
        assert document["target_epoch"] == epoch
        (one,) = document["members"]
        places = [[topic, 0], [topic, 1]]
        assert (one["partitions"], one["target"], one["epoch"], one["state"]) == (
            places,
            places,
            epoch,
            "stable",
        )
        assert (one["topics"], one["upgraded"]) == ([], True)
        assert f"^{topic}$" in one["pattern"]
        assert (document["lag"], document["uncommitted"]) == (7, 1)
        said = cli("group", "describe", group, "--members").out
        assert (
            f"{group}  Stable, consumer, uniform, epoch {epoch}, target epoch {epoch}, 1 member(s)\n" in said
        )
        assert f"{topic}(0,1)" in said
        assert f"pattern {one['pattern']}" in said
        consumer.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
        refused = cli("group", "reset-offsets", group, "--topic", topic, "--to-latest", "--execute", code=1)
        assert f"group {group} is active (Stable, 1 member(s)): stop its consumers first" in refused.err
        refused = cli("group", "delete-offsets", group, "--topic", topic, code=1)
        assert "(GROUP_SUBSCRIBED_TO_TOPIC): stop its consumers first" in refused.err
        refused = cli("group", "delete", group, code=1)
        assert f"group {group}: has members: stop its consumers first (NON_EMPTY_GROUP)" in refused.err
    until(
        lambda: cli("group", "describe", group, "--json").json[0]["state"] == "Empty", "its member has left"
    )
    cli("group", "reset-offsets", group, "--topic", topic, "--to-latest", "--execute")
    assert cli.committed(group) == {0: 10, 1: 4}
    cli("group", "delete", group)


def test_a_group_that_is_not_there_hides_no_other(cli: OwnCli, topic: str, group: str) -> None:
    commit(cli.bootstrap, group, topic, {0: 3})
    said = cli("group", "describe", "nope", group, code=1)
    assert group in said.out
    assert said.err == "mpbroker: group nope: does not exist (GROUP_ID_NOT_FOUND)\n"
    deleted = cli("group", "delete", "nope", group, "--json", code=1)
    assert deleted.json == [{"group": group, "deleted": True}]
    assert "group nope" in deleted.err
    assert group not in {row["group"] for row in cli("group", "list", "--json").json}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--to-earliest"], {0: 0, 1: 0}),
        (["--to-latest"], {0: 10, 1: 4}),
        (["--to-current"], {0: 3, 1: 4}),
        (["--to-offset", "6"], {0: 6, 1: 4}),
        (["--to-datetime", "2020-01-31T12:00:00.000Z"], {0: 0, 1: 0}),
        (["--to-datetime", "2222-01-31T12:00:00"], {0: 10, 1: 4}),
        (["--by-duration", "PT1H"], {0: 0, 1: 0}),
        (["--by-duration", "0s"], {0: 10, 1: 4}),
        (["--shift-by", "-2"], {0: 1, 1: None}),
        (["--shift-by", "99"], {0: 10, 1: None}),
    ],
)
def test_offsets_are_reset(
    cli: OwnCli, topic: str, group: str, flags: list[str], expected: dict[int, int | None]
) -> None:
    commit(cli.bootstrap, group, topic, {0: 3})
    reset = ["group", "reset-offsets", group, "--topic", topic, *flags]
    planned = cli(*reset, "--json")
    assert {row["partition"]: row["new_offset"] for row in planned.json} == {
        partition: offset for partition, offset in expected.items() if offset is not None
    }
    assert cli.committed(group) == {0: 3}, "it was a dry run"
    done = cli(*reset, "--execute")
    assert [group, topic, "0", "3", str(expected[0])] in done.table
    assert cli.committed(group) == {number: at for number, at in expected.items() if at is not None}
    if flags[0] == "--shift-by":
        assert f"{topic}-1: nothing is committed that could be shifted" in done.err
    if flags == ["--to-offset", "6"]:
        assert f"{topic}-1: 6 is beyond the log end offset: set to 4" in done.err


def test_some_partitions_or_all_topics_of_groups_are_reset(cli: OwnCli, topic: str, group: str) -> None:
    one, other = f"{group}-one", f"{group}-other"
    for each in (one, other):
        commit(cli.bootstrap, each, topic, {0: 3, 1: 2})
    cli("group", "reset-offsets", one, "--topic", f"{topic}:1", "--to-latest", "--execute")
    assert cli.committed(one) == {0: 3, 1: 4}
    cli("group", "reset-offsets", one, other, "--all-topics", "--to-offset", "1", "--execute")
    assert cli.committed(one) == cli.committed(other) == {0: 1, 1: 1}


def test_offsets_are_exported_and_set_from_a_file(
    cli: OwnCli, topic: str, group: str, tmp_path: Path
) -> None:
    one, other = f'{group}-"one", quoted', f"{group}-other"
    commit(cli.bootstrap, one, topic, {0: 3, 1: 2})
    commit(cli.bootstrap, other, topic, {1: 1})
    reset = ["group", "reset-offsets"]
    mine, both = tmp_path / "one.csv", tmp_path / "both.csv"
    exported = cli(*reset, one, "--all-topics", "--to-current", "--export")
    assert exported.out == f"{topic},0,3\n{topic},1,2\n"
    mine.write_text(exported.out)
    exported = cli(*reset, one, other, "--all-topics", "--to-current", "--export")
    quoted = '"' + one.replace('"', '""') + '"'
    assert exported.out == f"{quoted},{topic},0,3\n{quoted},{topic},1,2\n{other},{topic},1,1\n"
    both.write_text("\ufeff" + exported.out.replace("\n", "\r\n") + "\r\n")
    cli(*reset, one, other, "--all-topics", "--to-earliest", "--execute")
    planned = cli(*reset, one, "--from-file", str(mine), "--dry-run", "--json")
    assert [(row["partition"], row["committed"], row["new_offset"]) for row in planned.json] == [
        (0, 0, 3),
        (1, 0, 2),
    ]
    assert cli.committed(one) == {0: 0, 1: 0}, "it was a dry run"
    said = cli(*reset, one, "--from-file", str(both), "--execute")
    assert f"{both}: group {other} is left out: it is not named, or not there\n" in said.err
    assert (cli.committed(one), cli.committed(other)) == ({0: 3, 1: 2}, {1: 0})
    both.write_text(f"{other},{topic},1,99\n")
    said = cli(*reset, one, other, "--from-file", str(both), "--execute", code=2)
    assert f"{other}, {topic}-1: 99 is beyond the log end offset: set to 4\n" in said.err
    assert f"mpbroker: {both} has no offsets of group {one}\n" in said.err
    assert cli.committed(other) == {1: 4}


def test_offsets_of_all_groups_are_reset() -> None:
    """All there are: in a broker of its own."""
    with Broker() as broker:
        cli = OwnCli(broker.bootstrap_servers)
        cli("topic", "create", "t")
        cli.produce("t", ["x"] * 10)
        for group in ("a", "b", "active"):
            commit(cli.bootstrap, group, "t", {0: 3})
        with member(cli.bootstrap, "active", "t"):
            refused = cli(
                *("group", "reset-offsets", "--all-groups", "--all-topics"),
                *("--shift-by", "2", "--export", "--execute"),
                code=1,
            )
        assert refused.out == "a,t,0,5\nb,t,0,5\n"
        assert "group active is active (Stable, 1 member(s))" in refused.err
        assert [cli.committed(group)[0] for group in ("a", "b", "active")] == [5, 5, 3]
        cli("group", "delete-offsets", "a", "--all-topics")
        planned = cli("group", "reset-offsets", "--all-groups", "--all-topics", "--to-earliest", "--json")
        assert [row["group"] for row in planned.json] == ["active", "b"]


@pytest.mark.parametrize(
    ("text", "names", "message"),
    [
        ("t,0,1\n\nt,x,1\n", "g", "line 3: 't,x,1' is not topic,partition,offset or group,topic,partition"),
        ("t,0\n", "g", "line 1: 't,0' is not topic,partition,offset or"),
        ("t,0,-1\n", "g", "line 1: 't,0,-1' is not topic,partition,offset or"),
        (f"t,0,{1 << 63}\n", "g", "is not topic,partition,offset or"),
        (f"t,0,{'9' * 5000}\n", "g", "is not topic,partition,offset or"),
        ("GROUP,TOPIC,PARTITION,NEW-OFFSET\n", "g", "line 1: 'GROUP,TOPIC,PARTITION,NEW-OFFSET' is not"),
        ("t,0,1\n", "g h", "line 1: topic,partition,offset does not say of which group"),
        ("g,t,0,1\ng,t,0,2\n", "g", "line 2: t-0 of group g has offset 1 in a line above"),
        ('g,"t,0,1\n', "g", "line 1: unexpected end of data"),
        ("\n", "g", "it has no offsets"),
        ("\udcff", "g", "it is not text in UTF-8"),
        ("g,t,7,1\n", "g", "topic t has no partition 7, only 0 to 1"),
    ],
)
def test_wrong_files(cli: OwnCli, topic: str, tmp_path: Path, text: str, names: str, message: str) -> None:
    file = tmp_path / "offsets.csv"
    if message.startswith("topic t"):
        text, message = (one.replace("t", topic, 1) for one in (text[2:], message[6:]))
    file.write_text(text, errors="surrogateescape")
    words = ["group", "reset-offsets", *names.split(), "--from-file", str(file)]
    cli.refused(*words, says=message)


def test_a_group_is_made_by_its_offsets(cli: OwnCli, topic: str, group: str) -> None:
    refused = cli("group", "reset-offsets", group, "--all-topics", "--to-latest", code=1)
    assert refused.err == f"mpbroker: group {group} has no committed offsets: name topics with --topic\n"
    cli("group", "reset-offsets", group, "--topic", topic, "--to-latest", "--execute")
    assert cli.committed(group) == {0: 10, 1: 4}


def test_offsets_of_an_active_group_are_its_own(cli: OwnCli, topic: str, group: str) -> None:
    idle = f"{group}-idle"
    commit(cli.bootstrap, idle, topic, {0: 3})
    with member(cli.bootstrap, group, topic) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
        # The group that may be reset is, whatever stands beside it.
        flags = ["--topic", topic, "--to-earliest", "--execute"]
        refused = cli("group", "reset-offsets", group, idle, *flags, code=1)
        assert f"group {group} is active (Stable, 1 member(s)): stop its consumers first" in refused.err
        assert (cli.committed(group)[0], cli.committed(idle)[0]) == (3, 0)
        refused = cli("group", "delete-offsets", group, "--topic", topic, code=1)
        assert "(GROUP_SUBSCRIBED_TO_TOPIC): stop its consumers first" in refused.err
        refused = cli("group", "delete", group, code=1)
        assert "(NON_EMPTY_GROUP)" in refused.err
    assert cli.committed(group)[0] == 3


def test_committed_offsets_are_deleted(cli: OwnCli, topic: str, group: str) -> None:
    commit(cli.bootstrap, group, topic, {0: 3, 1: 2})
    cli("group", "delete-offsets", group, "--topic", f"{topic}:0")
    assert cli.committed(group) == {1: 2}
    none = cli("group", "delete-offsets", group, "--topic", f"{topic}:0", code=1)
    assert none.err == f"mpbroker: group {group} has no committed offsets of these topics\n"
    said = cli("group", "delete-offsets", group, "--all-topics", "--json")
    assert said.json == [{"group": group, "topic": topic, "partition": 1}]
    assert "group nope: does not exist" in cli("group", "delete-offsets", "nope", "--all-topics", code=1).err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--topic", "t"], 2, "say where to, with one of --to-earliest, --to-latest, --to-current"),
        (["--topic", "t", "--to-latest", "--shift-by", "0"], 2, "these exclude each other: --to-latest"),
        (["--to-latest"], 2, "say of which topics: --topic TOPIC[:0,1] or --all-topics"),
        (["--topic", "t", "--all-topics", "--to-latest"], 2, "say of which topics"),
        (["--topic", "t:x", "--to-latest"], 2, "--topic t:x: this is not TOPIC or TOPIC:0,1,2"),
        (["--topic", "t", "--to-datetime", "noon"], 2, "--to-datetime noon: not a time"),
        (["--topic", "t", "--by-duration", "P1M"], 2, "--by-duration P1M: not a duration"),
        (["--topic", "not-there", "--to-latest"], 1, "topic not-there: does not exist"),
        (["--topic", "TOPIC:7", "--to-latest"], 2, "has no partition 7, only 0 to 1"),
        (["--topic", "t", "--from-file", "x"], 2, "--from-file names topics itself: leave out --topic"),
        (["--from-file", "not/there"], 2, "--from-file not/there: No such file or directory"),
        (["--all-groups", "--topic", "t", "--to-latest"], 2, "say of which groups: name them, or --all-gr"),
        (["--topic", "t", "--to-latest", "--execute", "--dry-run"], 2, "exclude each other: --execute, --dr"),
        (["--topic", "t", "--to-latest", "--export", "--json"], 2, "exclude each other: --export, --json"),
    ],
)
def test_wrong_resets(cli: OwnCli, topic: str, words: list[str], code: int, message: str) -> None:
    words = [word.replace("TOPIC", topic) for word in words]
    cli.refused("group", "reset-offsets", "g", *words, says=message, code=code)


def test_partitions_without_a_commit_are_counted(cli: OwnCli, mpbroker_broker: Broker) -> None:
    """Check those of the group's topics, whether a member has them or nobody does."""
    topic, group = mpbroker_broker.create_topic(partitions=6), "half-way"
    cli.produce(topic, ["1", "2", "3"], "-p", "0")
    commit(cli.bootstrap, group, topic, {0: 1, 1: 0})
    (document,) = cli("group", "describe", group, "--json").json
    assert (document["lag"], document["committed_partitions"], document["uncommitted"]) == (2, 2, 4)
    assert "lag 2 in 2 partitions; 4 partitions have no commit" in cli("group", "describe", group).out
    commit(cli.bootstrap, group, topic, dict.fromkeys(range(6), 0))
    assert "no commit" not in cli("group", "describe", group).out
