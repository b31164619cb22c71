"""`mpbroker config` against a broker of its own."""

from __future__ import annotations

import pytest

from mpbroker.config.resource_config import GROUP_KEYS, TELEMETRY_IS_OFF
from mpbroker.testing import Broker
from tests.support.own_cli import OwnCli


@pytest.fixture(name="cli")
def _cli(mpbroker_own_broker: Broker) -> OwnCli:
    return OwnCli(mpbroker_own_broker.bootstrap_servers)


@pytest.mark.mpbroker({"log.retention.ms": "9000"})
def test_settings_are_got_set_and_unset(cli: OwnCli) -> None:
    cli("topic", "create", "t")
    of = ("--topic", "t")
    assert (
        cli("config", "get", *of).out
        == "topic t has no settings of its own; --all shows those that it has got\n"
    )
    said = cli("config", "set", *of, "retention.ms=7000", "cleanup.policy=compact,delete")
    assert said.out == "topic t: retention.ms set to 7000\ntopic t: cleanup.policy set to compact,delete\n"
    assert cli("config", "get", *of).table == [
        ["KEY", "VALUE", "SOURCE"],
        ["cleanup.policy", "compact,delete", "DYNAMIC_TOPIC_CONFIG"],
        ["retention.ms", "7000", "DYNAMIC_TOPIC_CONFIG"],
    ]
    assert cli("config", "get", *of, "retention.ms").out == "7000\n"
    assert cli("config", "unset", *of, "retention.ms").out == "topic t: retention.ms unset\n"
    (entry,) = cli("config", "get", *of, "retention.ms", "--json").json
    assert entry.pop("documentation")
    assert entry == {
        "name": "retention.ms",
        "value": "9000",
        "source": "STATIC_BROKER_CONFIG",
        "read_only": False,
        "sensitive": False,
        "type": "LONG",
        "synonyms": [
            {"name": "log.retention.ms", "value": "9000", "source": "STATIC_BROKER_CONFIG"},
            {"name": "log.retention.hours", "value": "168", "source": "DEFAULT_CONFIG"},
        ],
    }
    wrong = cli("config", "unset", *of, "retention.mss", code=2)
    assert wrong.err == "mpbroker: topic t has no setting retention.mss; did you mean retention.ms?\n"
    everything = {entry["name"] for entry in cli("config", "get", *of, "--all", "--json").json}
    assert {"retention.ms", "segment.bytes", "cleanup.policy"} < everything


@pytest.mark.mpbroker(
    {"group.consumer.max.session.timeout.ms": "90000", "group.consumer.heartbeat.interval.ms": "6000"}
)
def test_settings_of_a_group(cli: OwnCli, mpbroker_own_broker: Broker) -> None:
    session, of = "consumer.session.timeout.ms", ("--group", "g")
    has_none = "group g has no settings of its own; --all shows those that it has got\n"
    assert cli("config", "get", *of).out == has_none
    assert cli("config", "set", *of, f"{session}=90000").out == f"group g: {session} set to 90000\n"
    assert cli("config", "get", *of).table == [
        ["KEY", "VALUE", "IN-EFFECT", "SOURCE"],
        [session, "90000", "90000", "DYNAMIC_GROUP_CONFIG"],
    ]
    everything = {entry["name"]: entry for entry in cli("config", "get", *of, "--all", "--json").json}
    assert everything.keys() == GROUP_KEYS.keys()
    assert everything["consumer.heartbeat.interval.ms"]["in_effect"] == "6000"
    assert everything["share.isolation.level"]["in_effect"] is None
    # The group keeps a value that the broker does not allow any more.
    mpbroker_own_broker.settings["group.consumer.max.session.timeout.ms"] = "60000"
    mpbroker_own_broker.restart()
    assert cli("config", "get", *of).table[1:] == [[session, "90000", "60000", "DYNAMIC_GROUP_CONFIG"]]
    said = cli("config", "get", *of, session)
    assert said.out == "90000\n"
    assert said.err == f"mpbroker: group g: {session}=90000 is not in effect: the broker uses 60000\n"
    assert cli("config", "unset", *of, session).out == f"group g: {session} unset\n"
    assert cli("config", "get", *of, session).out == "45000\n"


def test_settings_of_client_metrics(cli: OwnCli, mpbroker_own_broker: Broker) -> None:
    of = ("--client-metrics", "s")
    has_none = "client metrics s has no settings of its own; --all shows those that it has got\n"
    assert cli("config", "get", *of).out == has_none
    warned = f"client metrics s: {TELEMETRY_IS_OFF}\n"
    said = cli("config", "set", *of, "metrics=*", "match=client_id=a.*,client_software_name=java")
    assert said.err == f"mpbroker: {warned}"
    assert warned in mpbroker_own_broker.logs()
    assert cli("config", "get", *of).table[1:] == [
        ["match", "client_id=a.*,client_software_name=java", "DYNAMIC_CLIENT_METRICS_CONFIG"],
        ["metrics", "*", "DYNAMIC_CLIENT_METRICS_CONFIG"],
    ]
    assert cli("config", "get", *of, "interval.ms").out == "300000\n"
    said = cli("config", "unset", *of, "match", "metrics")
    assert said.out.endswith("client metrics s: metrics unset\n")
    assert said.err == ""
    assert cli("config", "get", *of).out == has_none
    assert mpbroker_own_broker.logs().count(warned) == 1


def test_resources_with_settings_of_their_own_are_listed(cli: OwnCli) -> None:
    nothing = "no group or subscription has settings of its own\n"
    assert cli("config", "list").out == nothing
    cli("config", "set", "--group", "g", "consumer.session.timeout.ms=50000")
    cli("config", "set", "--client-metrics", "s", "metrics=*")
    assert cli("config", "list").table == [["TYPE", "NAME"], ["client-metrics", "s"], ["group", "g"]]
    cli("config", "unset", "--group", "g", "consumer.session.timeout.ms")
    assert cli("config", "list", "--json").json == [{"type": "client-metrics", "name": "s"}]


def test_settings_of_one_broker_and_of_all(cli: OwnCli) -> None:
    assert cli("config", "set", "message.max.bytes=50000").out == "broker 1: message.max.bytes set to 50000\n"
    cli("config", "set", "--broker-defaults", "message.max.bytes=60000", "log.segment.bytes=2000000")
    rows = {row["name"]: row for row in cli("config", "get", "--json").json}
    assert (rows["message.max.bytes"]["value"], rows["message.max.bytes"]["source"]) == (
        "50000",
        "DYNAMIC_BROKER_CONFIG",
    )
    assert rows["log.segment.bytes"]["source"] == "DYNAMIC_DEFAULT_BROKER_CONFIG"
    assert rows["log.dirs"]["source"] == "STATIC_BROKER_CONFIG"
    defaults = cli("config", "get", "--broker-defaults").table[1:]
    assert [row[:2] for row in defaults] == [["log.segment.bytes", "2000000"], ["message.max.bytes", "60000"]]
    cli("config", "unset", "--broker", "1", "message.max.bytes")
    assert cli("config", "get", "message.max.bytes").out == "60000\n"


def test_a_setting_without_effect_is_stored_and_named(cli: OwnCli) -> None:
    """Kafka's brokers store any setting, too: a plug-in may have it."""
    for key, advice in (
        ("foo.bar", ""),
        ("mesage.max.bytes", "; did you mean message.max.bytes?"),
        ("retention.bytes", "; --topic NAME sets it of a topic"),
    ):
        said = cli("config", "set", f"{key}=5")
        assert said.out == f"broker 1: {key} set to 5\n"
        has_none = f"{key} is stored and has no effect: broker 1 has no such setting"
        assert said.err == f"mpbroker: {has_none}{advice}\n"
    assert cli("config", "set", "message.max.bytes=50000").err == ""


def test_levels_of_loggers(cli: OwnCli) -> None:
    cli("config", "set", "--loggers", "root=ERROR")
    assert cli("config", "get", "--loggers", "root").out == "ERROR\n"


def test_a_dry_run_changes_nothing(cli: OwnCli) -> None:
    cli("topic", "create", "t")
    said = cli("config", "set", "--topic", "t", "retention.ms=7000", "--dry-run")
    assert said.out == "topic t: retention.ms would be set to 7000\n"
    assert cli("config", "get", "--topic", "t", "--json").json == []
    refused = cli("config", "set", "--topic", "t", "retention.ms=-7", "--dry-run", code=2)
    assert "(INVALID_CONFIG)" in refused.err


def test_secrets_are_hidden(cli: OwnCli) -> None:
    rows = [row for row in cli("config", "get", "--all").table if row[1] == "(hidden)"]
    assert any("password" in row[0] for row in rows)
    assert all(
        row["value"] is None for row in cli("config", "get", "--all", "--json").json if row["sensitive"]
    )


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["get", "--topic", "nope"], 1, "topic nope: does not exist"),
        (["get", "--topic", "t", "retenton.ms"], 2, "no setting retenton.ms; did you mean retention.ms?"),
        (["get", "--broker", "7"], 2, "--broker 7: there is no such broker; there is 1"),
        (["get", "--topic", "t", "--broker", "1"], 2, "these exclude each other"),
        (["set", "--topic", "t", "retenton.ms=1"], 2, "(INVALID_CONFIG); did you mean retention.ms?"),
        (["set", "--topic", "t", "retention.ms"], 2, "retention.ms: this is not KEY=VALUE"),
        (["set", "--topic", "t", "a=1", "a=2"], 2, "a is set twice"),
        (["get", "--group", "g", "--loggers"], 2, "these exclude each other"),
        (["get", "--group", "g", "--topic", "t"], 2, "these exclude each other"),
        (
            ["set", "--group", "g", "consumer.session.timout.ms=1"],
            2,
            "did you mean consumer.session.timeout.ms?",
        ),
        (["set", "--group", "g", "consumer.session.timeout.ms=1"], 2, "(INVALID_CONFIG)"),
        (["set", "--group", "", "consumer.session.timeout.ms=1"], 2, "(INVALID_REQUEST)"),
        (["set", "--client-metrics", "s", "interval.ms=99"], 2, "(INVALID_REQUEST)"),
        (["set", "--client-metrics", "s", "match=a"], 2, "(INVALID_CONFIG)"),
        (["get", "--client-metrics", "s", "--group", "g"], 2, "these exclude each other"),
        (["set", "listeners=x"], 2, "(INVALID_REQUEST)"),
    ],
)
def test_wrong_calls(mpbroker_broker: Broker, words: list[str], code: int, message: str) -> None:
    cli = OwnCli(mpbroker_broker.bootstrap_servers)
    cli("topic", "create", "t", "--if-not-exists")
    cli.refused("config", *words, says=message, code=code)
