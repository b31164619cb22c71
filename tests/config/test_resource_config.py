"""Settings of groups and of subscriptions to client metrics: what is accepted, what is described."""

from __future__ import annotations

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.describe import ConfigSource, describe_broker
from mpbroker.config.dynamic import overlaid
from mpbroker.config.load import load
from mpbroker.config.resource_config import (
    CLIENT_METRICS,
    DECIDING,
    GROUP,
    KEYS,
    RequestError,
    check,
    describe,
    group_settings,
    in_effect,
)

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
INTERVAL = "consumer.assignment.interval.ms"


def test_every_default_is_accepted_and_documented() -> None:
    for kind, keys in KEYS.items():
        entries = describe(kind, {}, BrokerConfig())
        assert [entry.name for entry in entries] == sorted(keys)
        check(kind, {entry.name: entry.value or "" for entry in entries if entry.value}, BrokerConfig())
        for entry in entries:
            has_effect = not entry.name.startswith(("share.", "streams."))
            assert entry.documentation.startswith("No effect here: ") is not has_effect


@pytest.mark.parametrize(
    ("kind", "configs", "says"),
    [
        (GROUP, {"no.such": "1"}, "Unknown group config name: no.such"),
        (GROUP, {SESSION: "44999"}, f"{SESSION} must be greater than or equal to group.consumer.min.session"),
        (GROUP, {SESSION: "60001"}, f"{SESSION} must be less than or equal to group.consumer.max.session"),
        (GROUP, {"share.record.lock.duration.ms": "999"}, "Value must be at least 1000"),
        (GROUP, {"streams.num.standby.replicas": "3"}, "or equal to group.streams.max.standby.replicas"),
        (CLIENT_METRICS, {"match": "client_id=a,nobody=b"}, "Illegal client matching pattern: nobody=b"),
    ],
)
def test_refused_in_kafkas_words(kind: int, configs: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says) as raised:
        check(kind, configs, BrokerConfig())
    assert not isinstance(raised.value, RequestError)


@pytest.mark.parametrize("configs", [{"no.such": "1"}, {"interval.ms": "99"}])
def test_what_kafka_calls_an_invalid_request(configs: dict[str, str]) -> None:
    with pytest.raises(RequestError):
        check(CLIENT_METRICS, configs, BrokerConfig())


def test_bounds_and_defaults_come_from_the_broker() -> None:
    broker = load(None, ["group.consumer.max.session.timeout.ms=90000", f"group.{SESSION}=70000"]).config
    check(GROUP, {SESSION: "90000"}, broker)
    (entry,) = describe(GROUP, {}, broker, [SESSION])
    assert (entry.value, entry.source) == ("70000", ConfigSource.STATIC_BROKER_CONFIG)
    heartbeats = overlaid(broker, {}, {"group.consumer.assignment.interval.ms": "900"})
    (entry,) = describe(GROUP, {}, heartbeats, ["consumer.assignment.interval.ms"])
    assert (entry.value, entry.source) == ("900", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    (entry,) = describe(GROUP, {SESSION: " +80000"}, broker, [SESSION])
    found = [(one.value, int(one.source)) for one in entry.synonyms]
    assert found == [("80000", 8), ("70000", 4), ("45000", 5)]


def test_any_text_of_a_setting_without_effect_changes_nothing() -> None:
    broker = load(None, ["group.share.session.timeout.ms=long"]).config
    check(GROUP, {"share.session.timeout.ms": "50000"}, broker)
    (entry,) = describe(GROUP, {}, broker, ["share.session.timeout.ms"])
    assert entry.value == "45000"


def test_what_another_version_stored_is_shown_as_it_is() -> None:
    (entry,) = describe(GROUP, {SESSION: "long"}, BrokerConfig(), [SESSION])
    assert (entry.value, entry.synonyms[0].value) == ("long", "long")


BOUNDS = ["group.consumer.min.session.timeout.ms=6000", "group.consumer.max.session.timeout.ms=50000"]


@pytest.mark.parametrize(
    ("configs", "effective", "warnings"),
    [
        ({}, (45000, 5000, 1000), []),
        ({SESSION: "6000", HEARTBEAT: "5500"}, (6000, 5500, 1000), []),
        ({SESSION: "50001"}, (50000, 5000, 1000), [f"{SESSION}=50001 is not between 6000 and 50000"]),
        ({SESSION: "1", HEARTBEAT: "1"}, (6000, 5000, 1000), [f"{SESSION}=1", f"{HEARTBEAT}=1"]),
        ({INTERVAL: "-1"}, (45000, 5000, 1000), ["Value must be at least 0; the broker's value is used"]),
        ({INTERVAL: "20000"}, (45000, 5000, 15000), [f"{INTERVAL}=20000 is not between 0 and 15000"]),
        ({SESSION: "long"}, (45000, 5000, 1000), ["Not a number of type INT"]),
        (
            {SESSION: "6000", HEARTBEAT: "6000"},
            (6000, 6000, 1000),
            [f"{SESSION}=6000 is not above {HEARTBEAT}=6000"],
        ),
    ],
)
def test_settings_that_the_bounds_no_longer_allow(
    configs: dict[str, str], effective: tuple[int, ...], warnings: list[str]
) -> None:
    broker = load(None, BOUNDS).config
    settings, found = group_settings(configs, broker)
    assert settings == effective
    described = {entry.name: entry.value or "" for entry in describe_broker(broker, DECIDING)}
    assert in_effect(configs, described) == dict(zip((SESSION, HEARTBEAT, INTERVAL), effective, strict=True))
    assert len(found) == len(warnings)
    for said, wanted in zip(found, warnings, strict=True):
        assert wanted in said


def test_a_session_outlasts_a_heartbeat() -> None:
    broker = load(None, ["group.consumer.max.heartbeat.interval.ms=60000"]).config
    with pytest.raises(ValueError, match=f"{SESSION} must be greater than {HEARTBEAT}"):
        check(GROUP, {HEARTBEAT: "45000"}, broker)
    check(GROUP, {HEARTBEAT: "45000", SESSION: "45001"}, broker)
