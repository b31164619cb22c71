"""What becomes of settings when a client alters them, and of a topic's, with Kafka's error codes and texts.

(Kafka: ConfigurationControlManager.incrementalAlterConfigs and legacyAlterConfigs, as of 4.3.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.keys import ConfigType, Key, format_value
from mpbroker.config.topic_config import TOPIC_KEYS, inherited
from mpbroker.coordinator.image_sizes import config_bytes
from mpbroker.coordinator.topic_rules import Refused, check_configs
from mpbroker.ipc.calls import ConfigAlteration, ConfigChange
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ConfigRecord
from mpbroker.protocol.numbers import ConfigOperation, ResourceType

Configs = dict[str, str]


def altered(configs: Configs, alteration: ConfigAlteration, broker: BrokerConfig) -> Configs:
    """The topic's own settings afterwards. Raises Refused."""

    def beneath(key: Key) -> str:
        return format_value(inherited(key, broker)) or ""

    return check_configs(after(configs, alteration, TOPIC_KEYS, beneath), broker)


def after(
    configs: Configs, alteration: ConfigAlteration, keys: Mapping[str, Key], beneath: Callable[[Key], str]
) -> dict[str, str | None]:
    """What a resource has of its own then, not checked. `beneath`: the text of what it has not itself.

    Raises Refused.
    """
    result: dict[str, str | None] = {} if alteration.replaces else dict(configs)
    for change in alteration.changes:
        result.pop(change.name, None)
        if change.operation != ConfigOperation.DELETE:
            result[change.name] = _value(configs, change, keys, beneath)
    return result


def records(kind: ResourceType, name: str, before: Configs, after: Configs) -> list[ConfigRecord]:
    """What makes the one the other; nothing for what stays."""
    gone = {key: None for key in before if key not in after}
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    return [ConfigRecord(kind, name, key, value) for key, value in {**gone, **changed}.items()]


def growth(before: Configs, after: Configs) -> int:
    """Bytes that handlers are told more than before."""
    return sum(config_bytes(*one) for one in after.items()) - sum(
        config_bytes(*one) for one in before.items()
    )


def _value(
    configs: Configs, change: ConfigChange, keys: Mapping[str, Key], beneath: Callable[[Key], str]
) -> str | None:
    """Raises Refused."""
    if change.operation not in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        return change.value
    key = keys.get(change.name)
    if key is None or key.type is not ConfigType.LIST:
        operation = ConfigOperation(change.operation).name
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"Can't {operation} to key {change.name} because its type is not LIST.",
        )
    there = _parts(configs.get(change.name) or beneath(key))
    named = _parts(change.value or "")
    if change.operation == ConfigOperation.APPEND:
        there += [part for part in named if part not in there]
    else:
        there = [part for part in there if part not in named]
    return ",".join(there)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
