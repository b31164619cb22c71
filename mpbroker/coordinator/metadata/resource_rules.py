"""Alterations of the settings of groups and of subscriptions to client metrics.

A resource need not exist to have settings. (Kafka: ConfigurationControlManager and
ControllerConfigurationValidator, as of 4.3.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from mpbroker.config import resource_config
from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.metadata import config_rules
from mpbroker.coordinator.metadata.config_rules import Configs
from mpbroker.coordinator.metadata.image_sizes import config_bytes
from mpbroker.coordinator.metadata.topic_rules import Refused, check_lengths
from mpbroker.ipc.calls import ConfigAlteration, ReadSettings, SettingsRead
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ConfigRecord
from mpbroker.protocol.numbers import ConfigResourceType

Settings: TypeAlias = dict[tuple[int, str], Configs]
KINDS: Final = frozenset(map(ConfigResourceType, resource_config.KEYS))
# This bound is ours; Kafka has none.
SETTINGS_BYTES_MAX: Final = 16 << 20
_UNNAMED: Final = {
    ConfigResourceType.CLIENT_METRICS: "Subscription name can't be empty",
    ConfigResourceType.GROUP: "Default group resources are not allowed.",
}


def altered(settings: Settings, alteration: ConfigAlteration, broker: BrokerConfig) -> list[ConfigRecord]:
    """Return the records of an alteration. Raises Refused if the result is invalid or too large."""
    kind, name = ConfigResourceType(alteration.kind), alteration.name
    if not name:
        raise Refused(ErrorCode.INVALID_REQUEST, _UNNAMED[kind])
    before = settings.get((kind, name), {})
    # As in Kafka, only settings of topics and brokers can be lists: there are no list operations here.
    after = {key: text or "" for key, text in config_rules.after(before, alteration, {}, str).items()}
    check_lengths(after, ErrorCode.INVALID_CONFIG)
    try:
        resource_config.check(kind, after, broker)
    except resource_config.RequestError as error:
        raise Refused(ErrorCode.INVALID_REQUEST, str(error)) from error
    except ValueError as error:
        raise Refused(ErrorCode.INVALID_CONFIG, str(error)) from error
    others = sum(_bytes_of(one) for resource, one in settings.items() if resource != (kind, name))
    if after and others + _bytes_of(after) > SETTINGS_BYTES_MAX:
        raise Refused(ErrorCode.POLICY_VIOLATION, "There are too many settings of groups and client metrics")
    return config_rules.records(kind, name, before, after)


def _bytes_of(configs: Mapping[str, str]) -> int:
    return sum(config_bytes(*one) for one in configs.items())


def apply(settings: Settings, record: ConfigRecord) -> None:
    """Apply a durable record to `settings`. A resource that no longer has settings is removed."""
    resource = record.resource_type, record.resource_name
    configs = {name: value for name, value in settings.get(resource, {}).items() if name != record.name}
    if record.value is not None:
        configs[record.name] = record.value
    settings[resource] = configs
    if not configs:
        del settings[resource]


def read(settings: Settings, call: ReadSettings) -> SettingsRead:
    """Return the settings of the resources that `call` names, by default of all that have settings."""
    resources = settings.keys() if call.resources is None else call.resources
    return SettingsRead([(kind, name, settings.get((kind, name), {})) for kind, name in resources])
