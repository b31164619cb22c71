"""What clients may alter of the broker's settings, and the configuration that comes of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from mpbroker.config.altered import Altered
from mpbroker.config.broker import BROKER_KEYS, BrokerConfig
from mpbroker.config.describe import ConfigSource, Synonym, describe_all_brokers, describe_broker
from mpbroker.config.dynamic import (
    DYNAMIC,
    REPLICATION_RATES,
    overlaid,
    parse,
    refusal,
    static_of,
    step_problem,
    usable,
)
from mpbroker.config.keys import ConfigType, format_value
from mpbroker.config.load import load
from mpbroker.ipc import settings
from mpbroker.supervisor import reload

RATE = "leader.replication.throttled.rate"
VALUES = {
    "max.connections": "5",
    "log.cleanup.policy": "compact,delete",
    "log.retention.ms": "-1",
    "log.cleaner.io.buffer.load.factor": "0.5",
    "log.message.timestamp.type": "LogAppendTime",
    "max.connections.per.ip.overrides": "10.0.0.1:3,[::1]:4",
    "log.preallocate": "true",
}


def test_no_client_alters_who_administers_and_what_is_told_of_it() -> None:
    """Nor a path: the broker's user could be made to write anywhere."""
    for name in ("admin.listener.names", "audit.log.level", "audit.log.file", "audit.log.format", "log.dirs"):
        for of_all in (True, False):
            assert refusal([name], of_all_brokers=of_all) is not None


def test_what_is_dynamic_can_change_in_a_running_broker() -> None:
    changing = reload.FOLLOWED | reload.IN_TABLES | reload.WORKERS
    assert {key.replace(".", "_") for key in DYNAMIC} <= changing
    # Nothing that is secret, and nothing that belongs to one listener.
    assert all(BROKER_KEYS[key].type is not ConfigType.PASSWORD for key in DYNAMIC)
    assert not DYNAMIC & REPLICATION_RATES.keys()


@given(st.dictionaries(st.sampled_from(sorted(VALUES)), st.booleans()))
def test_what_lies_beneath_comes_back(chosen: dict[str, bool]) -> None:
    """Over the wire to other processes, too."""
    static = load(None, ["max.connections=7", "log.retention.hours=3"]).config
    broker = {key: VALUES[key] for key, of_broker in chosen.items() if of_broker}
    default = {key: VALUES[key] for key, of_broker in chosen.items() if not of_broker}
    config = overlaid(static, broker, default)
    for key in chosen:
        assert getattr(config, key.replace(".", "_")) == parse(key, VALUES[key])
    sent = settings._decoder.decode(settings.encode(config))
    assert sent == config
    assert static_of(sent) == static


def test_the_brokers_own_counts_first() -> None:
    config = overlaid(BrokerConfig(), {"max.connections": "1"}, {"max.connections": "2", RATE: "9"})
    assert (config.max_connections, config.altered.text("max.connections")) == (1, "1")
    assert overlaid(config, {}, {"max.connections": "2"}).max_connections == 2
    assert set(config.altered.differing(Altered())) == {"max.connections", RATE}
    assert not set(config.altered.differing(config.altered))


@pytest.mark.parametrize("bad", ["no.such.key", "num.partitions", "max.connections"])
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
    assert "one step may go from half of that (1) to double (6)" in (problem({}, {key: "7"}) or "")
    assert problem({key: "30"}, {key: "30"}) is None
    assert problem({key: "30"}, {}) is None
    assert "cannot resize handlers from 3 to 20" in (problem({key: "3"}, {}, static=20) or "")


def test_a_step_goes_from_the_number_that_was_accepted_last() -> None:
    """Not from those that are there: the first step may not have been taken yet, or not ended."""
    key = "num.io.threads"
    static = BrokerConfig(num_io_threads=2)
    was, eight, nine = (overlaid(static, {key: number}, {}) for number in ("4", "8", "9"))
    followed = structs.replace(was, num_io_threads=2, resizing_to={key: 4})
    for now in (static, followed):
        assert step_problem(now, was, eight) is None
        assert "cannot resize handlers from 4 to 9" in (step_problem(now, was, nine) or "")
    failed = structs.replace(followed, resizing_to={})
    assert "cannot resize handlers from 2 to 8" in (step_problem(failed, was, eight) or "")


@pytest.mark.parametrize(
    ("key", "of_all_brokers", "says"),
    [
        ("max.connections", True, None),
        (RATE, True, None),
        ("listener.name.a.max.connections", True, "Cannot update these configs dynamically"),
        ("listener.name.a.ssl.keystore.location", True, "broker id must be specified: [listener.name.a.ssl"),
        ("listener.name.a.ssl.keystore.location", False, "Cannot update these configs dynamically"),
        ("listener.name.a.plain.sasl.jaas.config", False, "keeps no passwords"),
        ("listeners", True, "broker id must be specified: [listeners]"),
        ("ssl.truststore.type", False, "only per-listener using the listener prefix: [ssl.truststore.type]"),
        ("num.partitions", False, "[num.partitions]. Change them in the broker's properties file, then"),
        ("broker.id", False, "[broker.id]. Change them in the broker's properties file"),
        ("listener.name.a.max.connections", True, "Change them in the broker's properties file"),
        ("listener.name.a.ssl.keystore.location", False, "Change them in the broker's properties file"),
        ("listener.name.a.oauthbearer.sasl.server.callback.handler.class", False, "properties file, then"),
        ("listener.name.a.num.io.threads", False, "cannot be given for a single listener"),
        ("log.cleaner.threads", False, "in the file neither: log.cleaner.threads: one process compacts all"),
        ("background.threads", False, "[background.threads]. They have no effect here, in the file neither"),
        (
            "authorizer.class.name",
            False,
            "Change them in the broker's properties file",
        ),
        ("my.own.password", False, "keeps no passwords"),
        ("my.own.key", False, "Unknown broker config name: my.own.key"),
    ],
)
def test_refused_in_kafkas_words(key: str, of_all_brokers: bool, says: str | None) -> None:
    text = refusal([key, "max.connections"], of_all_brokers=of_all_brokers)
    assert text is None if says is None else says in (text or "")


def test_what_helps_and_what_does_not_is_told_apart() -> None:
    text = refusal(["log.cleaner.threads", "num.partitions"], of_all_brokers=False)
    assert text == (
        "Cannot update these configs dynamically: [num.partitions]. Change them in the broker's properties "
        "file, then mpbroker ctl reload: it says what needs a restart. "
        "Cannot update these configs dynamically: [log.cleaner.threads]. They have no effect here, in the "
        "file neither: log.cleaner.threads: one process compacts all topics"
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
    assert (entries[RATE].value, len(entries[RATE].synonyms)) == ("5", 2)
    assert entries["num.io.threads"].value == format_value(config.num_io_threads)
    of_all = {
        entry.name: (entry.value, entry.synonyms[0].source) for entry in describe_all_brokers(config.altered)
    }
    assert of_all == {
        "max.connections": ("2", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        RATE: ("6", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
    }
    assert [entry.name for entry in describe_broker(config, [RATE, "no.such"])] == [RATE]
