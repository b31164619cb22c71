"""The settings of the broker and of topics, as rows with their sources.

A row about the broker also has the exact place of the value (file and line, flag, alteration), and the place
to change it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.describe import ConfigSource, Entry, describe_broker
from mpbroker.config.keys import ConfigType

_DYNAMIC = (ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)


def rows(config: BrokerConfig) -> list[dict[str, Any]]:
    """Return a row for each setting, by name. Secrets have no value."""
    return [_row(config, entry) for entry in describe_broker(config)]


def topic_rows(entries: Iterable[Any]) -> list[dict[str, Any]]:
    """Return a row for each entry of a DescribeConfigs response for a topic, sorted by name."""
    return [
        {
            "name": one.name,
            "value": one.value,
            "source": _source_of_topic(one.config_source),
            "is_own": one.config_source == ConfigSource.DYNAMIC_TOPIC_CONFIG,
            "documentation": one.documentation,
        }
        for one in sorted(entries, key=lambda one: one.name)
    ]


def _source_of_topic(number: int) -> str:
    if number == ConfigSource.DYNAMIC_TOPIC_CONFIG:
        return "topic"
    return "default" if number == ConfigSource.DEFAULT_CONFIG else "broker"


def _row(config: BrokerConfig, entry: Entry) -> dict[str, Any]:
    default = next((one.value for one in entry.synonyms if one.source is ConfigSource.DEFAULT_CONFIG), None)
    source, origin = _source(config, entry)
    return {
        "name": entry.name,
        "value": entry.value,
        "is_sensitive": entry.is_sensitive,
        "type": ConfigType(entry.type).name.lower(),
        "source": source,
        # The name of the source in mpbroker config get.
        "config_source": entry.source.name,
        "origin": origin,
        "default": default,
        "change": _place_of_change(entry, source, origin),
        "documentation": entry.documentation,
    }


def _place_of_change(entry: Entry, source: str, origin: str) -> str:
    """Return where to change the setting: with `mpbroker config set`, or else in the file or a flag."""
    if not entry.read_only:
        return "mpbroker config set"
    if source == "file":
        return origin
    return f"the flag {origin}" if source == "flag" else "properties file, or -o"


def _source(config: BrokerConfig, entry: Entry) -> tuple[str, str]:
    """Return the kind of the value's source, and the exact place of the value."""
    if entry.source in _DYNAMIC:
        of_one = entry.source is ConfigSource.DYNAMIC_BROKER_CONFIG
        return "dynamic", "altered for this broker" if of_one else "altered for all brokers"
    origin = config.origins.get(entry.name, "")
    if not origin:
        return "default", ""
    return ("flag" if origin.startswith(("-", "settings[")) else "file"), origin
