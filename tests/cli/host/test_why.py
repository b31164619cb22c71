"""`mpbroker why`: each check finds what it is about and nothing else, also in what a broker says."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from mpbroker.cli.errors import CliError
from mpbroker.cli.host import why
from mpbroker.cli.host import why_checks as checks
from mpbroker.cli.host.why_checks import (
    Check,
    Damage,
    DirectoryFacts,
    Facts,
    OpenTransaction,
    PartitionFacts,
    Quota,
    findings,
)
from mpbroker.client.errors import ApiFailed
from mpbroker.client.group_descriptions import Group, Member
from mpbroker.protocol.errors import ErrorCode
from mpbroker.testing import Broker
from tests.support.own_cli import OwnCli

PLACE, OTHER = ("orders", 0), ("orders", 1)
WELL = PartitionFacts(True, 10, 100, 100)


def group(*members: tuple[str, list[tuple[str, int]]], state: str = "Stable") -> Group:
    named = [Member(f"{client}-id", None, client, "host", places) for client, places in members]
    return Group("g", "classic", state, "consumer", "range", named)


def directory(error: str | None = None, usable: int | None = 1 << 40) -> DirectoryFacts:
    return DirectoryFacts("/data", error, usable, frozenset({PLACE}))


def quota(key: str, client: str | None = None) -> Quota:
    return Quota(f"client-id {client or '(default)'}", client, key, 1000)


RECONCILING = Group(
    *("g", "consumer", "Reconciling", "consumer", "range"),
    [Member(state, None, "app", "host", [], 2, state) for state in ("stable", "revoking")],
)
READER = group(("app", [PLACE, OTHER]))
HELD = PartitionFacts(True, 0, 100, 40, [OpenTransaction(7, 40, 0), OpenTransaction(8, 60, 0)])


@pytest.mark.parametrize(
    ("check", "facts", "said"),
    [
        (checks.offline, Facts({PLACE: PartitionFacts(has_leader=False), OTHER: WELL}), "cannot be served"),
        (checks.directories, Facts({}, [directory("KAFKA_STORAGE_ERROR")]), "offline (KAFKA_STORAGE_ERROR)"),
        (checks.directories, Facts({}, [directory(usable=5 << 20)]), "/data has only 5,242,880 bytes left"),
        (checks.directories, Facts({}, [directory(usable=5)]), "The disk of /data is full, 5 bytes are left"),
        (checks.coordinator, Facts({}, refused="COORDINATOR_NOT_AVAILABLE"), "(COORDINATOR_NOT_AVAILABLE)"),
        (checks.transactions, Facts({PLACE: HELD}), "at offset 40, of 100: producer 7 has a transaction"),
        (checks.damaged, Facts({}, damages={PLACE: [Damage(3, 8)]}), "3 to 7 of orders-0 are damaged"),
        (
            checks.produce_quotas,
            Facts({}, quotas=[quota("producer_byte_rate", "a")]),
            "producer_byte_rate=1000 of",
        ),
        (
            checks.consumer_quotas,
            Facts({}, quotas=[quota("consumer_byte_rate", "app")], group=READER),
            "consumer_byte_rate=1000 of client-id app",
        ),
        (checks.no_members, Facts({PLACE: WELL}, group=group(state="Empty")), "The group has no members"),
        (checks.rebalances, Facts({}, group=group(state="PreparingRebalance")), "(PreparingRebalance)"),
        (checks.rebalances, Facts({}, group=RECONCILING), "(Reconciling): 1 of 2 members do not have"),
        (checks.without_owner, Facts({PLACE: WELL}, group=group(("app", [OTHER]))), "No member has orders-0"),
        (
            checks.not_committing,
            Facts({PLACE: WELL}, group=READER, committed={PLACE: 50}, before={PLACE: 50}),
            "app has orders-0 and stays at offset 50 of 100",
        ),
        (checks.not_committing, Facts({PLACE: WELL}, group=READER), "has orders-0 and has committed nothing"),
        (
            checks.slower,
            Facts({PLACE: WELL}, group=READER, committed={PLACE: 50}, before={PLACE: 40}),
            "The group reads orders-0, with a lag of 50",
        ),
        (
            checks.out_of_range,
            Facts({PLACE: WELL}, committed={PLACE: 9}),
            "is before the log start offset 10",
        ),
        (
            checks.out_of_range,
            Facts({PLACE: WELL}, committed={PLACE: 101}),
            "is above the high watermark 100",
        ),
    ],
)
def test_a_check_finds_what_it_is_about(check: Check, facts: Facts, said: str) -> None:
    (found,) = check(facts)
    assert said in found.what
    assert found.do.endswith(".")


@pytest.mark.parametrize("check", dict.fromkeys((*checks.OF_TOPICS, *checks.OF_GROUPS)))
@pytest.mark.parametrize(
    "facts",
    [
        Facts({PLACE: WELL, OTHER: WELL}, [directory(), directory(usable=None)]),
        Facts({PLACE: WELL}, group=READER, committed={PLACE: 100}, before={PLACE: 100}),
        Facts({PLACE: WELL}, group=group(state="Empty"), committed={PLACE: 100}),
        Facts({}, quotas=[quota("controller_mutation_rate"), quota("consumer_byte_rate", "b")], group=READER),
    ],
    ids=["topic", "group", "empty", "others"],
)
def test_a_check_finds_nothing_where_all_is_well(check: Check, facts: Facts) -> None:
    assert list(check(facts)) == []


def test_the_lag_is_that_of_group_describe() -> None:
    """A partition without a commit has none, and one below the log start offset is not cut there."""
    facts = Facts({PLACE: WELL, OTHER: WELL}, group=READER, committed={PLACE: 4})
    assert why._lag(facts) == {"lag": 96}
    assert facts.lagging() == [PLACE, OTHER]


def test_a_consumer_that_a_transaction_holds_is_not_said_to_stand_by_itself() -> None:
    facts = Facts({PLACE: HELD}, group=READER, committed={PLACE: 40}, before={PLACE: 40})
    (found,) = findings(facts)
    assert "producer 7" in found.what


def test_partitions_can_move_only_where_there_is_another_directory() -> None:
    one = directory(usable=100 << 20)
    for facts, is_said in ((one, False), (msgspec.structs.replace(one, has_others=True), True)):
        (found,) = checks.directories(Facts({}, [facts]))
        assert ("log-dirs move" in found.do) == is_said


def test_a_broker(mpbroker_broker: Broker, mpbroker_topics: Callable[..., str]) -> None:
    cli = OwnCli(mpbroker_broker.bootstrap_servers)
    topic, name = mpbroker_topics(partitions=2), mpbroker_topics()
    assert cli("why", topic).out == f"topic {topic}\n  No cause was found.\n"
    cli.produce(topic, ["one", "two", "three"], "-p", "0")
    cli("consume", topic, "--group", name, "--from-beginning", "-n", "1")
    # A topic and a group of the same name.
    first, second = cli("why", name, "--json", "--look", "0").json
    assert (first["kind"], first["findings"]) == ("topic", [])
    assert (second["kind"], second["lag"]) == ("group", 2)
    (described,) = cli("group", "describe", name, "--json").json
    assert described["lag"] == second["lag"]
    assert [one["what"] for one in second["findings"]] == [
        "The group has no members: its partitions are not read."
    ]
    producer = cli.begun(name, topic)
    out = cli("why", topic).out
    assert f"* read_committed consumers of {topic}-0 stop at offset 3, of 4: producer " in out
    producer.abort_transaction()
    assert cli("why", topic).out == f"topic {topic}\n  No cause was found.\n"
    assert cli("why", "nope", code=1).err == "mpbroker: nope: there is no such topic, and no such group\n"
    for words in (["why"], ["group", "describe"], ["group", "delete", "--yes"], ["config", "get", "--topic"]):
        assert f"; did you mean {name}?" in cli(*words, f"{name}x", code=1).err


def test_what_could_not_be_asked_for_is_named(
    mpbroker_broker: Broker, mpbroker_topics: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise ApiFailed("it", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    def elsewhere(_: str) -> None:
        raise CliError("the broker is on another host")

    cli, topic = OwnCli(mpbroker_broker.bootstrap_servers), mpbroker_topics()
    assert cli("why", topic, "--json").json[0]["not_checked"] == []
    monkeypatch.setattr(why, "described", refused)
    monkeypatch.setattr(why, "describe_quotas", refused)
    monkeypatch.setattr(why, "by_address", elsewhere)
    said = cli("why", topic, "--json").json[0]["not_checked"]
    assert [one.partition(":")[0] for one in said] == ["log directories of broker 1", "damage", "quotas"]
    out = cli("why", topic).out
    assert out.splitlines()[1:] == ["  No cause was found.", f"  Not checked: {'; '.join(said)}."]
