"""Alterations of settings: rules for all resources and rules for topics, with Kafka's errors and texts.

(Kafka: ConfigurationControlManager.incrementalAlterConfigs and legacyAlterConfigs, as of 4.3.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.keys import ConfigType, Key, format_value, listed
from mpbroker.config.topic_config import TOPIC_KEYS, inherited
from mpbroker.coordinator.metadata.image_sizes import config_bytes
from mpbroker.coordinator.metadata.topic_rules import Refused, check_configs
from mpbroker.ipc.calls import ConfigAlteration, ConfigChange
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ConfigRecord
from mpbroker.protocol.numbers import ConfigOperation, ConfigResourceType

Configs = dict[str, str]


def altered(configs: Configs, alteration: ConfigAlteration, broker: BrokerConfig) -> Configs:
    """Return a topic's own settings after the alteration. Raises Refused if the result is not valid."""

    def beneath(key: Key) -> str:
        return format_value(inherited(key, broker)) or ""

    wanted = after(configs, alteration, TOPIC_KEYS, beneath)
    return check_configs(alteration.name, wanted, broker, configs)


def after(
    configs: Configs, alteration: ConfigAlteration, keys: Mapping[str, Key], beneath: Callable[[Key], str]
) -> dict[str, str | None]:
    """Return a resource's own settings after the alteration, without validating them.

    `beneath(key)` returns the value that a setting inherits. Raises Refused if a list operation (APPEND,
    SUBTRACT) is for a setting that is no list.
    """
    result: dict[str, str | None] = {} if alteration.replaces else dict(configs)
    for change in alteration.changes:
        result.pop(change.name, None)
        if change.operation != ConfigOperation.DELETE:
            result[change.name] = _value(configs, change, keys, beneath)
    return result


def records(kind: ConfigResourceType, name: str, before: Configs, after: Configs) -> list[ConfigRecord]:
    """Return the records that turn the settings `before` into `after`, one for each changed setting."""
    removed = {key: None for key in before if key not in after}
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    return [ConfigRecord(kind, name, key, value) for key, value in {**removed, **changed}.items()]


def growth(before: Configs, after: Configs) -> int:
    """Return by how many bytes the alteration enlarges the bulletin; negative if it gets smaller."""
    return sum(config_bytes(*one) for one in after.items()) - sum(
        config_bytes(*one) for one in before.items()
    )


def _value(
    configs: Configs, change: ConfigChange, keys: Mapping[str, Key], beneath: Callable[[Key], str]
) -> str | None:
    """Return a setting's value after one change. Raises Refused for a list operation on a non-list."""
    if change.operation not in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        return change.value
    key = keys.get(change.name)
    if key is None or key.type is not ConfigType.LIST:
        operation = ConfigOperation(change.operation).name
        raise Refused(
            ErrorCode.INVALID_CONFIG, f"Can't {operation} to key {change.name} because its type is not LIST."
        )
    there = listed(configs.get(change.name) or beneath(key))
    named = listed(change.value or "")
    if change.operation == ConfigOperation.APPEND:
        there += [part for part in named if part not in there]
    else:
        there = [part for part in there if part not in named]
    return ",".join(there)
