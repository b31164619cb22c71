"""The answers of DescribeConfigs: every setting with value, source, type, documentation and synonyms.

The order is that of Kafka's `ConfigHelper`: synonyms are all places a value could have come from, the one
that counts first, and the source of the value is that of its first synonym.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from itertools import dropwhile

import msgspec

from mpbroker.config.altered import Altered
from mpbroker.config.broker import BROKER_KEYS, BrokerConfig
from mpbroker.config.dynamic import DYNAMIC, REPLICATION_RATES
from mpbroker.config.keys import ConfigType, Key, field_name, format_value
from mpbroker.config.topic_config import TOPIC_KEYS, resolve


class ConfigSource(IntEnum):
    """Source of a value, numbered as in DescribeConfigsResponse, field ConfigSource."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6


class Synonym(msgspec.Struct, frozen=True):
    """One place a value could come from."""

    name: str
    value: str | None
    source: ConfigSource


class Entry(msgspec.Struct, frozen=True):
    """One setting of a resource, ready to be put on the wire."""

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
    """Return entries of a topic by name. Names that no topic setting has are left out, as in Kafka."""
    config = resolve(broker, overrides)
    entries = []
    for name in _wanted(TOPIC_KEYS, names):
        key = TOPIC_KEYS[name]
        value = format_value(getattr(config, field_name(name)))
        synonyms = _broker_synonyms(broker, key.synonyms)
        if name in overrides:
            synonyms.insert(0, Synonym(name, value, ConfigSource.DYNAMIC_TOPIC_CONFIG))
        entries.append(_entry(key, value, synonyms, read_only=False))
    return entries


def describe_broker(broker: BrokerConfig, names: Iterable[str] | None = None) -> list[Entry]:
    """Return entries of the broker. A setting that clients may alter is not read-only."""
    entries = []
    for name in _wanted(BROKER_KEYS, names):
        key = BROKER_KEYS[name]
        value = format_value(getattr(broker, field_name(name)))
        synonyms = _broker_synonyms(broker, dict.fromkeys((name, *key.synonyms)))
        entries.append(_entry(key, value, synonyms, read_only=name not in DYNAMIC))
    return entries + _rates(broker.altered, names)


def describe_all_brokers(altered: Altered, names: Iterable[str] | None = None) -> list[Entry]:
    """Return what was altered of all brokers, and nothing else: the broker named ""."""
    entries = []
    for name in _wanted(altered.default, names):
        key = BROKER_KEYS.get(name) or REPLICATION_RATES[name]
        (synonym,) = _altered(Altered(default=altered.default), key)
        entries.append(_entry(key, synonym.value, [synonym], read_only=False))
    return entries


def _rates(altered: Altered, names: Iterable[str] | None) -> list[Entry]:
    """Return entries of the replication rates that were set; no file has these settings."""
    found = []
    for name in _wanted({**altered.default, **altered.broker}, names):
        if (key := REPLICATION_RATES.get(name)) is not None:
            synonyms = _altered(altered, key)
            found.append(_entry(key, synonyms[0].value, synonyms, read_only=False))
    return found


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


def _wanted(table: Mapping[str, object], names: Iterable[str] | None) -> list[str]:
    wanted = set(table) if names is None else set(names)
    return sorted(wanted & set(table))


def _broker_synonyms(broker: BrokerConfig, names: Iterable[str]) -> list[Synonym]:
    """Return broker keys of the same meaning, first those that were altered or set, then the defaults.

    What stands before the first name itself is left out, as in Kafka: a topic whose broker sets only
    log.retention.hours shows no synonym for retention.ms, whose own is log.retention.ms.
    """
    keys = [BROKER_KEYS[name] for name in names if name in BROKER_KEYS]
    found = sorted((one for key in keys for one in _altered(broker.altered, key)), key=lambda one: one.source)
    for key in keys:
        beneath = broker.altered.beneath.get(key.name)
        if beneath is not None:
            if beneath.origin:
                found.append(Synonym(key.name, beneath.text, ConfigSource.STATIC_BROKER_CONFIG))
        elif key.name in broker.origins:
            value = format_value(getattr(broker, field_name(key.name)))
            found.append(Synonym(key.name, value, ConfigSource.STATIC_BROKER_CONFIG))
    for key in keys:
        if (default := format_value(key.default)) is not None:
            found.append(Synonym(key.name, default, ConfigSource.DEFAULT_CONFIG))
    return list(dropwhile(lambda synonym: synonym.name != keys[0].name, found))


def _entry(key: Key, value: str | None, synonyms: list[Synonym], *, read_only: bool) -> Entry:
    sensitive = key.type is ConfigType.PASSWORD
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
