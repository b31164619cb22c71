"""The broker's settings with where each comes from: default, file and line, flag, or an alteration."""

from __future__ import annotations

from typing import Any

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.describe import ConfigSource, Entry, describe_broker
from mpbroker.config.keys import ConfigType

_DYNAMIC = (ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)


def rows(config: BrokerConfig) -> list[dict[str, Any]]:
    """Return a row for each setting, by name. Secrets have no value."""
    return [_row(config, entry) for entry in describe_broker(config)]


def _row(config: BrokerConfig, entry: Entry) -> dict[str, Any]:
    default = next((one.value for one in entry.synonyms if one.source is ConfigSource.DEFAULT_CONFIG), None)
    source, origin = _source(config, entry)
    return {
        "name": entry.name,
        "value": entry.value,
        "is_sensitive": entry.is_sensitive,
        "type": ConfigType(entry.type).name.lower(),
        "source": source,
        "origin": origin,
        "default": default,
        "is_dynamic": not entry.read_only,
        "documentation": entry.documentation,
    }


def _source(config: BrokerConfig, entry: Entry) -> tuple[str, str]:
    """Return the kind of the source, and where exactly it is."""
    if entry.source in _DYNAMIC:
        of_one = entry.source is ConfigSource.DYNAMIC_BROKER_CONFIG
        return "dynamic", "altered for this broker" if of_one else "altered for all brokers"
    origin = config.origins.get(entry.name, "")
    if not origin:
        # A synonym may have set it, such as log.retention.hours.
        others = [config.origins.get(one.name, "") for one in entry.synonyms]
        origin = next(filter(None, others), "")
    if not origin:
        return "default", ""
    return ("flag" if origin.startswith(("-", "settings[")) else "file"), origin
