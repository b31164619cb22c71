"""The answers of DescribeConfigs: every setting with value, source, type, documentation and synonyms.

Settings are sorted by name. Synonyms are all settings that a value can come from, in order of precedence, as
in Kafka's `ConfigHelper`. The source of a value is the source of its first synonym.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum
from itertools import dropwhile

import msgspec

from mpbroker.config import known
from mpbroker.config.altered import Altered
from mpbroker.config.broker import BROKER_KEYS, BrokerConfig
from mpbroker.config.dynamic import DYNAMIC, IDLE, key_of
from mpbroker.config.keys import ConfigType, Key, field_name, format_value
from mpbroker.config.limits import names_limit, text_of
from mpbroker.config.topic_config import TOPIC_KEYS, resolve


class ConfigSource(IntEnum):
    """Source of a value, as numbered in the field ConfigSource of DescribeConfigsResponse."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class Synonym(msgspec.Struct, frozen=True):
    """A place that a value can come from: a key in a source, with its value there."""

    name: str
    value: str | None
    source: ConfigSource


class Entry(msgspec.Struct, frozen=True):
    """One setting of a resource, with the fields of DescribeConfigsResponse."""

    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType
    read_only: bool
    is_sensitive: bool
    documentation: str
    synonyms: tuple[Synonym, ...]


def describe_topic(
    broker: BrokerConfig, overrides: Mapping[str, str | None], names: Iterable[str] | None = None
) -> list[Entry]:
    """Return a topic's settings that `names` lists (None: all). Unknown names are ignored, as in Kafka."""
    config = resolve(broker, overrides)
    entries = []
    for name in _wanted(TOPIC_KEYS, names):
        key = TOPIC_KEYS[name]
        value = format_value(getattr(config, field_name(name)))
        synonyms = broker_synonyms(broker, key.synonyms)
        if name in overrides:
            synonyms.insert(0, Synonym(name, value, ConfigSource.DYNAMIC_TOPIC_CONFIG))
        entries.append(entry_of(key, value, synonyms, read_only=False))
    return entries


def describe_broker(broker: BrokerConfig, names: Iterable[str] | None = None) -> list[Entry]:
    """Return the broker's settings that `names` lists, or all. Unknown settings are shown if they are set.

    A setting is read-only unless clients may alter it both in Kafka and here. As in Kafka, settings of single
    listeners and unknown settings are marked read-only too.
    """
    shown = {*BROKER_KEYS, *known.kafka_keys(), *broker.idle, *filter(names_limit, broker.origins)}
    shown |= {*broker.altered.broker, *broker.altered.default}
    entries = []
    for name in _wanted(shown, names):
        key = _key_of(name)
        has_effect = name in BROKER_KEYS and name not in IDLE
        base = name.split(".", 3)[-1] if name.startswith("listener.name.") else name
        synonyms = broker_synonyms(broker, dict.fromkeys((name, base, *key.synonyms)))
        value = synonyms[0].value if synonyms else None
        if has_effect:
            value = format_value(getattr(broker, field_name(name)))
        entries.append(entry_of(key, value, synonyms, read_only=name not in DYNAMIC and name not in IDLE))
    return entries


def _key_of(name: str) -> Key:
    return BROKER_KEYS.get(name) or key_of(name)


def describe_all_brokers(altered: Altered, names: Iterable[str] | None = None) -> list[Entry]:
    """Return the settings altered for all brokers (the resource ""), limited to `names` if it is given."""
    entries = []
    for name in _wanted(altered.default, names):
        key = key_of(name)
        (synonym,) = _altered(Altered(default=altered.default), key)
        entries.append(entry_of(key, synonym.value, [synonym], read_only=False))
    return entries


def _altered(altered: Altered, key: Key) -> list[Synonym]:
    sources = (
        (altered.broker, ConfigSource.DYNAMIC_BROKER_CONFIG),
        (altered.default, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
    )
    return [
        Synonym(key.name, format_value(key.parse(texts[key.name])), source)
        for texts, source in sources
        if key.name in texts
    ]


def _wanted(table: Collection[str], names: Iterable[str] | None) -> list[str]:
    wanted = set(table) if names is None else set(names)
    return sorted(wanted & set(table))


def broker_synonyms(broker: BrokerConfig, names: Iterable[str]) -> list[Synonym]:
    """Return the synonyms for these broker keys: altered values, then those of file and flags, then defaults.

    As in Kafka, synonyms before the first one with the key `names[0]` are left out. If none has that key,
    the list is empty, for example for a topic's retention.ms if the broker sets only log.retention.hours.
    """
    keys = [_key_of(name) for name in names]
    found = sorted((one for key in keys for one in _altered(broker.altered, key)), key=lambda one: one.source)
    for key in keys:
        beneath = broker.altered.beneath.get(key.name)
        if beneath is not None:
            if beneath.origin:
                found.append(Synonym(key.name, beneath.text, ConfigSource.STATIC_BROKER_CONFIG))
        elif (text := static_text(broker, key.name)) is not None:
            found.append(Synonym(key.name, text, ConfigSource.STATIC_BROKER_CONFIG))
    for key in keys:
        if (default := format_value(key.default)) is not None:
            found.append(Synonym(key.name, default, ConfigSource.DEFAULT_CONFIG))
    return list(dropwhile(lambda synonym: synonym.name != keys[0].name, found))


def static_text(broker: BrokerConfig, name: str) -> str | None:
    """Return the text of a setting in file and flags, None if it is in neither."""
    if name == "broker.id":
        return str(broker.node_id)  # Kafka sets each of broker.id and node.id from the other.
    if name not in broker.origins:
        return broker.idle.get(name)
    if names_limit(name):
        return text_of(broker.listener_limits, name)
    return format_value(getattr(broker, field_name(name)))


def entry_of(key: Key, value: str | None, synonyms: list[Synonym], *, read_only: bool) -> Entry:
    sensitive = key.type in (ConfigType.PASSWORD, ConfigType.UNKNOWN)
    if sensitive:
        synonyms = [Synonym(one.name, None, one.source) for one in synonyms]
    return Entry(
        name=key.name,
        value=None if sensitive else value,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        type=key.type,
        read_only=read_only,
        is_sensitive=sensitive,
        documentation=key.doc,
        synonyms=tuple(synonyms),
    )
