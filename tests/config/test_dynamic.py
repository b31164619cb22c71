"""What clients may alter of the broker's settings, and the configuration that comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from mpbroker.config import known
from mpbroker.config.altered import Altered
from mpbroker.config.broker import BROKER_KEYS, BrokerConfig
from mpbroker.config.describe import ConfigSource, Synonym, describe_all_brokers, describe_broker
from mpbroker.config.dynamic import (
    DYNAMIC,
    IDLE,
    overlaid,
    parse,
    refusal,
    static_of,
    step_problem,
    usable,
    within_bounds,
)
from mpbroker.config.keys import ConfigType, format_value
from mpbroker.config.load import load
from mpbroker.ipc import settings
from mpbroker.supervisor import config_diff

RATE = "leader.replication.throttled.rate"
VALUES = {
    "group.consumer.assignment.interval.ms": "2000",
    "max.connections": "5",
    "log.cleanup.policy": "compact,delete",
    "log.retention.ms": "-1",
    "log.cleaner.io.buffer.load.factor": "0.5",
    "log.message.timestamp.type": "LogAppendTime",
    "max.connections.per.ip.overrides": "10.0.0.1:3,[::1]:4",
    "log.preallocate": "true",
    "listener.name.plaintext.max.connections": "3",
    "listener.name.other.max.connection.creation.rate": "4",
    "sasl.kerberos.min.time.before.relogin": "58000",
    "my.own.key": "any text",
}


def test_no_client_alters_who_administers_and_what_is_told_of_it() -> None:
    """Nor a path: the broker's user could be made to write anywhere."""
    for name in ("admin.listener.names", "audit.log.level", "audit.log.file", "audit.log.format", "log.dirs"):
        for of_all in (True, False):
            assert refusal([name], of_all_brokers=of_all) is not None


def test_what_is_dynamic_can_change_in_a_running_broker() -> None:
    changing = config_diff.FOLLOWED | config_diff.IN_TABLES | config_diff.WORKERS
    assert {key.replace(".", "_") for key in DYNAMIC} <= changing
    # Nothing that is secret, and nothing that belongs to one listener.
    assert all(BROKER_KEYS[key].type is not ConfigType.PASSWORD for key in DYNAMIC)
    assert not DYNAMIC & IDLE.keys()


@given(st.dictionaries(st.sampled_from(sorted(VALUES)), st.booleans()))
def test_what_lies_beneath_comes_back(chosen: dict[str, bool]) -> None:
    """Over the wire to other processes, too."""
    own = "listener.name.plaintext.max.connections"
    static = load(None, ["max.connections=7", "log.retention.hours=3", f"{own}=9"]).config
    broker = {key: VALUES[key] for key, of_broker in chosen.items() if of_broker}
    default = {key: VALUES[key] for key, of_broker in chosen.items() if not of_broker}
    config = overlaid(static, broker, default)
    for key in chosen.keys() & DYNAMIC:
        assert getattr(config, key.replace(".", "_")) == parse(key, VALUES[key])
    assert config.listener_limits["PLAINTEXT"].max_connections == (3 if own in chosen else 9)
    sent = settings._decoder.decode(settings.encode(config))
    assert sent == config
    assert static_of(sent) == static


def test_an_interval_is_brought_within_the_bounds_of_the_file() -> None:
    interval, most = "group.consumer.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"
    static = load(None, [f"{most}=5000"]).config
    for text, used, count in (("5000", 5000, 0), ("5001", 5000, 1)):
        altered = overlaid(static, {}, {interval: text})
        config, warnings = within_bounds(altered)
        assert config.group_consumer_assignment_interval_ms == used
        assert len(warnings) == count
        assert static_of(config) == static
        (entry,) = describe_broker(config, [interval])
        assert (entry.value, entry.synonyms[0].value, entry.read_only) == (str(used), text, False)


def test_the_brokers_own_counts_first() -> None:
    config = overlaid(BrokerConfig(), {"max.connections": "1"}, {"max.connections": "2", RATE: "9"})
    assert (config.max_connections, config.altered.text("max.connections")) == (1, "1")
    assert overlaid(config, {}, {"max.connections": "2"}).max_connections == 2
    assert set(config.altered.differing(Altered())) == {"max.connections", RATE}
    assert not set(config.altered.differing(config.altered))


@pytest.mark.parametrize("bad", ["no.such.password", "num.partitions", "max.connections"])
def test_what_another_version_let_pass_is_left_out(bad: str) -> None:
    good, problems = usable({bad: "many", "message.max.bytes": "9", RATE: "1"})
    assert good == {"message.max.bytes": "9", RATE: "1"}
    assert [problem.key for problem in problems] == [bad]


def test_numbers_of_workers_go_step_by_step() -> None:
    def problem(before: dict[str, str], after: dict[str, str], static: int = 2) -> str | None:
        beneath = BrokerConfig(num_io_threads=static)
        was, becomes = overlaid(beneath, before, {}), overlaid(beneath, after, {})
        now = structs.replace(was, num_io_threads=3)  # resized since
        return step_problem(now, was, becomes)

    key = "num.io.threads"
    assert problem({}, {}) is None
    assert problem({}, {key: "6"}) is None
    assert problem({}, {key: "16"}) is None, "Kafka begins with 8"
    assert "one step may go from half of that (1) to 16" in (problem({}, {key: "17"}) or "")
    assert problem({key: "30"}, {key: "30"}) is None
    assert problem({key: "30"}, {}) is None
    assert "cannot resize handlers from 3 to 20" in (problem({key: "3"}, {}, static=20) or "")


def test_a_step_goes_from_the_number_that_was_accepted_last() -> None:
    """Not from those that are there: the first step may not have been taken yet, or not ended."""
    key = "num.io.threads"
    static = BrokerConfig(num_io_threads=2)
    was, good, bad = (overlaid(static, {key: number}, {}) for number in ("10", "20", "21"))
    followed = structs.replace(was, num_io_threads=2, resizing_to={key: 10})
    for now in (static, followed):
        assert step_problem(now, was, good) is None
        assert "cannot resize handlers from 10 to 21" in (step_problem(now, was, bad) or "")
    failed = structs.replace(followed, resizing_to={})
    assert "cannot resize handlers from 2 to 20" in (step_problem(failed, was, good) or "")


@pytest.mark.parametrize(
    ("key", "of_all_brokers", "says"),
    [
        ("max.connections", True, None),
        (RATE, True, None),
        ("listener.name.a.max.connections", True, None),
        ("listener.name.a.max.connection.creation.rate", False, None),
        ("listener.name.a.num.network.threads", True, None),
        ("listener.name.a.my.own.key", False, None),
        ("listener.name.a.my.own.key", True, "broker id must be specified: [listener.name.a.my.own.key]"),
        ("listener.name.a.ssl.keystore.location", True, "broker id must be specified: [listener.name.a.ssl"),
        ("listener.name.a.ssl.keystore.location", False, "Cannot update these configs dynamically"),
        ("listener.name.a.plain.sasl.jaas.config", False, "keeps no passwords"),
        ("listeners", True, "broker id must be specified: [listeners]"),
        ("ssl.truststore.type", False, "only per-listener using the listener prefix: [ssl.truststore.type]"),
        ("num.partitions", False, "[num.partitions]. Change them in the broker's properties file, then"),
        ("broker.id", False, "[broker.id]. Change them in the broker's properties file"),
        ("listener.name.a.ssl.keystore.location", False, "Change them in the broker's properties file"),
        ("listener.name.a.oauthbearer.sasl.server.callback.handler.class", False, "properties file, then"),
        ("listener.name.a.principal.builder.class", False, "cannot be given for a single listener"),
        ("principal.builder.class", False, "Java plug-ins cannot be loaded"),
        ("cordoned.log.dirs", False, "log directories cannot be cordoned yet"),
        ("auto.leader.rebalance.enable", False, "[auto.leader.rebalance.enable]"),
        ("sasl.kerberos.min.time.before.relogin", False, None),
        ("sasl.kerberos.min.time.before.relogin", True, "broker id must be specified: [sasl.kerberos.min"),
        ("log.cleaner.threads", True, None),
        ("background.threads", True, None),
        ("num.recovery.threads.per.data.dir", True, None),
        ("num.replica.fetchers", True, None),
        ("metric.reporters", True, None),
        ("remote.log.reader.threads", True, None),
        ("remote.log.manager.copy.max.bytes.per.second", True, None),
        ("log.local.retention.bytes", True, None),
        ("remote.log.storage.system.enable", True, "Change them in the broker's properties file"),
        ("mpbroker.remote.url", True, "Change them in the broker's properties file"),
        ("remote.log.storage.manager.class.name", True, "Java plug-ins cannot be loaded"),
        ("group.share.assignment.interval.ms", True, None),
        ("authorizer.class.name", False, "Change them in the broker's properties file"),
        ("my.own.password", False, "keeps no passwords"),
        ("my.own.key", False, None),
        ("zookeeper.connect", False, None),
    ],
)
def test_refused_in_kafkas_words(key: str, of_all_brokers: bool, says: str | None) -> None:
    text = refusal([key, "max.connections"], of_all_brokers=of_all_brokers)
    assert text is None if says is None else says in (text or "")


def test_what_helps_and_what_does_not_is_told_apart() -> None:
    text = refusal(["replica.fetch.max.bytes", "num.partitions"], of_all_brokers=False)
    assert text == (
        "Cannot update these configs dynamically: [num.partitions]. Change them in the broker's properties "
        "file, then mpbroker ctl reload, which lists those that need a restart. "
        "Cannot update these configs dynamically: [replica.fetch.max.bytes]. They have no effect here, in "
        "the file neither: replica.fetch.max.bytes: this broker is a single node without replicas"
    )


def test_described_with_every_place_a_value_could_come_from() -> None:
    static = load(None, ["max.connections=7"]).config
    config = overlaid(static, {"max.connections": "1", RATE: "5"}, {"max.connections": "2", RATE: "6"})
    entries: dict[str, Any] = {entry.name: entry for entry in describe_broker(config)}
    entry = entries["max.connections"]
    assert (entry.value, entry.source, entry.read_only) == ("1", ConfigSource.DYNAMIC_BROKER_CONFIG, False)
    assert entry.synonyms == (
        Synonym("max.connections", "1", ConfigSource.DYNAMIC_BROKER_CONFIG),
        Synonym("max.connections", "2", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        Synonym("max.connections", "7", ConfigSource.STATIC_BROKER_CONFIG),
        Synonym("max.connections", "2147483647", ConfigSource.DEFAULT_CONFIG),
    )
    assert (entries[RATE].value, len(entries[RATE].synonyms)) == ("5", 3)
    assert entries["num.io.threads"].value == format_value(config.num_io_threads)
    of_all = {
        entry.name: (entry.value, entry.synonyms[0].source) for entry in describe_all_brokers(config.altered)
    }
    assert of_all == {
        "max.connections": ("2", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        RATE: ("6", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
    }
    assert [entry.name for entry in describe_broker(config, [RATE, "no.such"])] == [RATE]


def test_all_of_kafkas_settings_are_described(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "background.threads=11\nmy.plugin.token=hush\nsasl.login.class=\nbroker.id=3\nprocess.roles=broker\n"
        "listener.name.plaintext.max.connections=7\n"
    )
    static = load(file).config
    config = overlaid(
        static,
        {
            "background.threads": "12",
            "listener.name.plaintext.max.connections": "8",
            "sasl.kerberos.min.time.before.relogin": "58000",
            "my.own.key": "any text",
        },
        {"num.recovery.threads.per.data.dir": "5"},
    )
    entries = {entry.name: entry for entry in describe_broker(config)}
    assert entries.keys() >= known.kafka_keys().keys() | BROKER_KEYS.keys()
    seen = {
        name: (entry.value, entry.type, [(one.name, one.value, int(one.source)) for one in entry.synonyms])
        for name, entry in entries.items()
    }
    own = "listener.name.plaintext.max.connections"
    bound = "2147483647"
    assert seen["background.threads"] == (
        "12",
        ConfigType.INT,
        [("background.threads", "12", 2), ("background.threads", "11", 4), ("background.threads", "10", 5)],
    )
    assert seen[own] == ("8", ConfigType.INT, [(own, "8", 2), (own, "7", 4), ("max.connections", bound, 5)])
    relogin = "sasl.kerberos.min.time.before.relogin"
    assert seen[relogin] == ("58000", ConfigType.LONG, [(relogin, "58000", 2), (relogin, "60000", 5)])
    threads = "num.recovery.threads.per.data.dir"
    assert seen[threads] == ("5", ConfigType.INT, [(threads, "5", 3), (threads, "2", 5)])
    # Nobody knows whether they are secrets.
    assert seen["my.own.key"] == (None, ConfigType.UNKNOWN, [("my.own.key", None, 2)])
    assert seen["my.plugin.token"] == (None, ConfigType.UNKNOWN, [("my.plugin.token", None, 4)])
    assert (seen["broker.id"][0], seen["process.roles"][0]) == ("3", "broker")
    assert (seen["auto.leader.rebalance.enable"][0], seen["remote.log.storage.system.enable"][0]) == (
        "true",
        "false",
    )
    assert entries["auto.leader.rebalance.enable"].read_only
    assert not entries[relogin].read_only
    assert "No effect here: SASL GSSAPI is not built" in entries[relogin].documentation
    assert entries["my.own.key"].is_sensitive
    assert "hush" not in repr(settings.encode(config))
