"""Topic settings: Kafka's table, inheritance, messages, and what DescribeConfigs says about them."""

import re

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.describe import ConfigSource, Synonym, describe_broker, describe_topic
from mpbroker.config.dynamic import DYNAMIC, IDLE
from mpbroker.config.keys import ConfigType
from mpbroker.config.load import load
from mpbroker.config.topic_config import TOPIC_KEYS, TopicConfigError, resolve, validate

BROKER = load().config


def test_the_table_is_kafkas() -> None:
    assert len(TOPIC_KEYS) == 33
    assert all(key.doc.endswith(".") for key in TOPIC_KEYS.values())


def test_defaults_of_topics_are_those_of_a_default_broker() -> None:
    config = resolve(BROKER, {})
    for name, key in TOPIC_KEYS.items():
        assert getattr(config, name.replace(".", "_")) == key.default, name


def test_topics_inherit_from_the_broker_and_override_it() -> None:
    broker = load(
        None, ["log.retention.hours=1", "log.segment.bytes=2097152", "message.max.bytes=100"]
    ).config
    config = resolve(broker, {"max.message.bytes": " 200 "})
    assert (config.retention_ms, config.segment_bytes, config.max_message_bytes) == (
        3_600_000,
        2_097_152,
        200,
    )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("retention.mss", "1", "Unknown topic config name: retention.mss"),
        ("retention.ms", None, "Null value not supported for topic configs: retention.ms"),
        ("retention.ms", "x", "Invalid value x for configuration retention.ms: Not a number of type LONG"),
        ("retention.ms", "-2", "Value must be at least -1"),
        ("segment.bytes", "1048575", "Value must be at least 1048576"),
        ("cleanup.policy", "shred", "Values must be among: compact, delete"),
        ("message.timestamp.type", "createtime", "String must be one of: CreateTime, LogAppendTime"),
        ("min.compaction.lag.ms", "9223372036854775808", "Not a number of type LONG"),
        ("remote.storage.enable", "true", "Tiered Storage functionality is disabled"),
        ("leader.replication.throttled.replicas", "1-2", "must be the literal"),
        ("min.insync.replicas", "2", "single node with one replica"),
    ],
)
def test_refused(name: str, text: str | None, message: str) -> None:
    with pytest.raises(TopicConfigError, match=message):
        validate(BROKER, {name: text})


def tiering(*settings: str) -> BrokerConfig:
    return load(
        None, ["remote.log.storage.system.enable=true", "mpbroker.remote.url=file:///b", *settings]
    ).config


TIERED = {"remote.storage.enable": "true"}


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"cleanup.policy": ""},
        {"retention.ms": "10", "local.retention.ms": "10"},
        {"retention.ms": "-1", "local.retention.ms": "-1"},
        {"retention.bytes": "-1", "local.retention.bytes": "1"},
        {"remote.log.copy.disable": "true"},
        {"remote.log.copy.disable": "true", "retention.bytes": "9", "local.retention.bytes": "9"},
    ],
)
def test_tiered_topics(own: dict[str, str]) -> None:
    assert validate(tiering(), TIERED | own).remote_storage_enable


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"cleanup.policy": "compact"}, "Remote log storage only supports topics with cleanup.policy=delete"),
        ({"cleanup.policy": "compact,delete"}, "or cleanup.policy being an empty list."),
        (
            {"retention.bytes": "5", "local.retention.bytes": "-1", "local.retention.ms": "-1"},
            "Invalid value -1 for configuration local.retention.bytes: Value must not be -1 as "
            "retention.bytes value is set as 5.",
        ),
        (
            {"retention.ms": "5", "local.retention.ms": "6", "remote.log.copy.disable": "true"},
            "Invalid value 6 for configuration local.retention.ms: Value must not be more than retention.ms "
            "property value: 5",
        ),
        (
            {"local.retention.ms": "5", "local.retention.bytes": "5", "remote.log.copy.disable": "true"},
            "When `remote.log.copy.disable` is set to true, the `local.retention.bytes` and "
            "`retention.bytes` must be set to the identical value because there will be no more logs copied "
            "to the remote storage.",
        ),
        (
            {"local.retention.ms": "5", "remote.log.copy.disable": "true"},
            "the `local.retention.ms` and `retention.ms` must be set to the identical value",
        ),
        (
            {"cleanup.policy": "compact", "min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"},
            "conflict topic config setting min.compaction.lag.ms",
        ),
    ],
)
def test_tiered_topics_are_refused_in_kafkas_words(own: dict[str, str], message: str) -> None:
    with pytest.raises(TopicConfigError, match=re.escape(message)):
        validate(tiering(), TIERED | own)


def test_without_an_object_store_topics_cannot_be_tiered() -> None:
    with pytest.raises(TopicConfigError, match=r"^Tiered Storage functionality is disabled in the broker\."):
        validate(BROKER, TIERED | {"cleanup.policy": "compact"})


@pytest.mark.parametrize("off", [{}, {"remote.storage.enable": "false"}])
def test_who_switches_tiering_off_says_that_remote_data_go(off: dict[str, str]) -> None:
    with pytest.raises(TopicConfigError, match="It is invalid to disable remote storage without deleting"):
        validate(tiering(), off, {"remote.storage.enable": " TRUE"})
    goes = off | {"remote.log.delete.on.disable": "true"}
    assert not validate(tiering(), goes, TIERED).remote_storage_enable
    assert not validate(tiering(), off, {"remote.storage.enable": "false"}).remote_storage_enable


def test_local_retention_is_inherited() -> None:
    broker = tiering("log.retention.ms=9", "log.local.retention.ms=7")
    assert resolve(broker, {}).local_retention_ms == 7
    (entry,) = describe_topic(broker, {}, ["local.retention.ms"])
    assert entry.synonyms[0] == Synonym("log.local.retention.ms", "7", ConfigSource.STATIC_BROKER_CONFIG)
    with pytest.raises(TopicConfigError, match=r"local.retention.ms: Value must not be more than"):
        validate(broker, TIERED | {"retention.ms": "6"})


def test_lags_that_contradict_each_other() -> None:
    with pytest.raises(TopicConfigError, match=r"min.compaction.lag.ms \(2\) > max.compaction.lag.ms \(1\)"):
        validate(BROKER, {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"})


def test_the_clamp_takes_topics_of_clusters() -> None:
    broker = load(None, ["mpbroker.replication.factor.clamp=true"]).config
    assert validate(broker, {"min.insync.replicas": "2"}).min_insync_replicas == 2


@pytest.mark.parametrize("text", ["*", "0:1,1:2", ""])
def test_throttled_replicas(text: str) -> None:
    assert validate(BROKER, {"leader.replication.throttled.replicas": text})


def test_describe_topic_names_every_place_a_value_could_come_from() -> None:
    broker = load(None, ["log.retention.hours=1", "log.retention.ms=5"]).config
    (entry,) = describe_topic(broker, {"retention.ms": "7"}, ["retention.ms", "no.such.name"])
    assert (entry.value, entry.source, entry.type) == (
        "7",
        ConfigSource.DYNAMIC_TOPIC_CONFIG,
        ConfigType.LONG,
    )
    assert entry.synonyms == (
        Synonym("retention.ms", "7", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        Synonym("log.retention.ms", "5", ConfigSource.STATIC_BROKER_CONFIG),
        Synonym("log.retention.hours", "1", ConfigSource.STATIC_BROKER_CONFIG),
        Synonym("log.retention.hours", "168", ConfigSource.DEFAULT_CONFIG),
    )


def test_describe_shows_synonyms_from_the_wanted_name_on() -> None:
    """Kafka 4.3 answers so: the hours are known to it, and dropped because the milliseconds are not set."""
    broker = load(None, ["log.retention.hours=1"]).config
    (entry,) = describe_topic(broker, {}, ["retention.ms"])
    assert (entry.value, entry.source, entry.synonyms) == ("3600000", ConfigSource.DEFAULT_CONFIG, ())
    hours, milliseconds = describe_broker(broker, ["log.retention.hours", "log.retention.ms"])
    assert [synonym.value for synonym in hours.synonyms] == ["1", "168"]
    assert (milliseconds.value, milliseconds.synonyms) == (None, ())


def test_describe_topic_has_all_settings_as_kafka_prints_them() -> None:
    entries = {entry.name: entry for entry in describe_topic(BROKER, {})}
    assert list(entries) == sorted(TOPIC_KEYS)
    assert all(
        entry.source is ConfigSource.DEFAULT_CONFIG and not entry.read_only for entry in entries.values()
    )
    values = {
        name: entries[name].value for name in ("cleanup.policy", "preallocate", "min.cleanable.dirty.ratio")
    }
    assert values == {"cleanup.policy": "delete", "preallocate": "false", "min.cleanable.dirty.ratio": "0.5"}


def test_describe_broker() -> None:
    broker = load(None, ["num.partitions=4"]).config
    entries = {entry.name: entry for entry in describe_broker(broker)}
    assert (entries["num.partitions"].value, entries["num.partitions"].source) == (
        "4",
        ConfigSource.STATIC_BROKER_CONFIG,
    )
    assert [synonym.value for synonym in entries["num.partitions"].synonyms] == ["4", "1"]
    assert entries["listeners"].value == "PLAINTEXT://127.0.0.1:9092"
    assert entries["listener.security.protocol.map"].value == (
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"
    )
    assert entries["advertised.listeners"].value is None
    alterable = {name for name, entry in entries.items() if not entry.read_only}
    assert alterable == (DYNAMIC | IDLE.keys()) & entries.keys()
    assert "origins" not in entries
