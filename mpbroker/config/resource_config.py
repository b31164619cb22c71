"""The settings of groups and of subscriptions to client metrics: names, types, bounds, and descriptions.

Settings of share groups and of streams groups are stored and shown without effect: these groups are not
implemented. (Kafka: GroupConfig, ClientMetricsConfigs, as of 4.3; KIP-848, KIP-932, KIP-1071, KIP-714.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from msgspec import structs

from mpbroker.config import known
from mpbroker.config.broker import BROKER_KEYS, BrokerConfig
from mpbroker.config.describe import ConfigSource, Entry, Synonym, broker_synonyms, entry_of, static_text
from mpbroker.config.keys import ConfigType, Key, Value, field_name, format_value

CLIENT_METRICS: Final = 16
GROUP: Final = 32
_OWN_SOURCES: Final = {
    CLIENT_METRICS: ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG,
    GROUP: ConfigSource.DYNAMIC_GROUP_CONFIG,
}


def _group_key(name: str) -> Key:
    """Return the Key of a group's setting, with type and default of the broker's setting `group.<name>`."""
    of_broker = f"group.{name}"
    key = BROKER_KEYS.get(of_broker) or known.kafka_keys()[of_broker]
    return structs.replace(key, name=name, at_most=None, synonyms=(of_broker,))


def _share_key(kind: ConfigType, name: str, default: Value, choices: tuple[str, ...] = ()) -> Key:
    """Return the Key of a share group's setting, with a fixed default: no setting of the broker sets it."""
    return Key(kind, f"No effect here: {known.no_effect(name)}.", name, default, choices=choices)


GROUP_KEYS: Final[Mapping[str, Key]] = {
    name: _group_key(name)
    for name in (
        "consumer.assignment.interval.ms",
        "consumer.heartbeat.interval.ms",
        "consumer.session.timeout.ms",
        "share.assignment.interval.ms",
        "share.delivery.count.limit",
        "share.heartbeat.interval.ms",
        "share.partition.max.record.locks",
        "share.record.lock.duration.ms",
        "share.session.timeout.ms",
        "streams.assignment.interval.ms",
        "streams.heartbeat.interval.ms",
        "streams.initial.rebalance.delay.ms",
        "streams.num.standby.replicas",
        "streams.session.timeout.ms",
    )
} | {
    key.name: key
    for key in (
        _share_key(ConfigType.STRING, "share.auto.offset.reset", "latest"),
        _share_key(
            ConfigType.STRING,
            "share.isolation.level",
            "read_uncommitted",
            ("read_committed", "read_uncommitted"),
        ),
        _share_key(ConfigType.BOOLEAN, "share.renew.acknowledge.enable", default=True),
    )
}
CLIENT_METRICS_KEYS: Final[Mapping[str, Key]] = {
    "interval.ms": Key(ConfigType.INT, "Metrics push interval in milliseconds.", "interval.ms", 300_000),
    "match": Key(
        ConfigType.LIST,
        "Which clients push: NAME=REGEX, of which all must match the whole value; empty: every client does.",
        "match",
        (),
    ),
    "metrics": Key(
        ConfigType.LIST,
        "Prefixes of the names of the metrics that are pushed; *: all metrics.",
        "metrics",
        (),
    ),
}
ALL_METRICS: Final = "*"
TELEMETRY_IS_OFF: Final = (
    "clients push nothing: set client.telemetry.enable=true, and http.listener or otlp.endpoint, in the "
    "broker's server.properties, and start it again"
)
"""The warning about a subscription to client metrics while client.telemetry.enable is off."""
KEYS: Final[Mapping[int, Mapping[str, Key]]] = {CLIENT_METRICS: CLIENT_METRICS_KEYS, GROUP: GROUP_KEYS}

_RESET = re.compile(r"latest|earliest|by_duration:P(?=.)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?")
_INTERVAL_MS: Final = (100, 3_600_000)
MATCHED: Final = frozenset(
    f"client_{name}"
    for name in ("id", "instance_id", "software_name", "software_version", "source_address", "source_port")
)
_SESSION, _HEARTBEAT = "session.timeout.ms", "heartbeat.interval.ms"


class RequestError(ValueError):
    """A wrong setting that Kafka answers with INVALID_REQUEST. Other ValueErrors mean INVALID_CONFIG."""


def check(kind: int, configs: Mapping[str, str], broker: BrokerConfig) -> None:
    """Check the settings of a resource of type `kind`, GROUP or CLIENT_METRICS. Raises ValueError."""
    keys = KEYS[kind]
    for name in configs.keys() - keys.keys():
        if kind == GROUP:
            raise ValueError(f"Unknown group config name: {name}")
        raise RequestError(f"Unknown client metrics configuration: {name}")
    for name, text in configs.items():
        keys[name].parse(text)
    if kind == GROUP:
        _check_group(configs, broker)
    else:
        _check_client_metrics(configs)


def _check_group(configs: Mapping[str, str], broker: BrokerConfig) -> None:
    reset = configs.get("share.auto.offset.reset", "latest").strip()
    if not _RESET.fullmatch(reset):
        raise GROUP_KEYS["share.auto.offset.reset"].invalid(
            reset,
            f"Invalid value `{reset}` for configuration share.auto.offset.reset. The value must be either "
            "'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'.",
        )
    values = {name: _value(configs, broker, key) for name, key in GROUP_KEYS.items()}
    for name in configs:
        protocol, _, rest = name.partition(".")
        least, most = (f"group.{protocol}.{limit}.{rest.removeprefix('num.')}" for limit in ("min", "max"))
        if least in known.kafka_keys() and values[name] < _of_broker(broker, least):
            raise ValueError(f"{name} must be greater than or equal to {least}")
        if most in known.kafka_keys() and values[name] > _of_broker(broker, most):
            raise ValueError(f"{name} must be less than or equal to {most}")
    for protocol in ("consumer", "share", "streams"):
        session, heartbeat = f"{protocol}.{_SESSION}", f"{protocol}.{_HEARTBEAT}"
        if values[session] <= values[heartbeat]:
            raise ValueError(f"{session} must be greater than {heartbeat}")


def _value(configs: Mapping[str, str], broker: BrokerConfig, key: Key) -> Any:
    """Return a setting's value for a group: the group's own, else the broker's, else the default."""
    if key.name in configs:
        return key.parse(configs[key.name])
    return _of_broker(broker, key.synonyms[0]) if key.synonyms else key.default


def _of_broker(broker: BrokerConfig, name: str) -> Any:
    """Return the broker's value of a setting of Kafka, even if the setting has no effect here."""
    if name in BROKER_KEYS:
        return getattr(broker, field_name(name))
    key = known.kafka_keys()[name]
    default = format_value(key.default) or ""
    try:
        # A file may have any text in a setting without effect.
        return key.parse(broker.altered.text(name) or static_text(broker, name) or default)
    except ValueError:
        return key.parse(default)


def _check_client_metrics(configs: Mapping[str, str]) -> None:
    low, high = _INTERVAL_MS
    interval_ms = int(configs.get("interval.ms", low))
    if not low <= interval_ms <= high:
        raise RequestError(
            f"Invalid value {interval_ms} for interval.ms, interval must be between {low} and {high} (1 hour)"
        )
    parse_matching_patterns(configs.get("match", ""))


def parse_matching_patterns(match: str) -> dict[str, re.Pattern[str]]:
    """Parse the setting `match`, NAME=PATTERN,… Return the patterns by name. Raises ValueError."""
    found = {}
    for pattern in filter(None, match.split(",")):
        name, equals, wanted = pattern.partition("=")
        try:
            found[name.strip()] = re.compile(wanted.strip())
        except re.error:
            equals = ""
        if not equals or not wanted or "=" in wanted or name.strip() not in MATCHED:
            raise ValueError(f"Illegal client matching pattern: {pattern.strip()}")
    return found


class GroupSettings(NamedTuple):
    """The settings of a group of the consumer protocol that have an effect."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


# Each of these settings, and the broker's settings with its default and its bounds.
_EFFECTIVE: Final = [
    (
        GROUP_KEYS[f"consumer.{name}"],
        (f"group.consumer.{name}", f"group.consumer.min.{name}", f"group.consumer.max.{name}"),
    )
    for name in (_SESSION, _HEARTBEAT, "assignment.interval.ms")
]
DECIDING: Final = tuple(name for _, names in _EFFECTIVE for name in names)
"""The broker's settings that, with a group's own, decide which settings are in effect."""


def group_settings(configs: Mapping[str, str], broker: BrokerConfig) -> tuple[GroupSettings, list[str]]:
    """Return the effective settings of a group that sets `configs`, and warnings.

    A value outside the broker's bounds is replaced with the nearest bound. A text that this version cannot
    parse is replaced with the broker's value. (Kafka: GroupConfig.evaluate.)
    """
    values: list[int] = []
    warnings = []
    for key, names in _EFFECTIVE:
        value, low, high = (getattr(broker, field_name(name)) for name in names)
        if (text := configs.get(key.name)) is not None:
            try:
                wanted: Any = key.parse(text)
            except ValueError as error:
                warnings.append(f"{error}; the broker's value is used")
            else:
                value = min(max(wanted, low), high)
                if value != wanted:
                    warnings.append(f"{key.name}={wanted} is not between {low} and {high}: {value} is used")
        values.append(value)
    settings = GroupSettings(*values)
    if settings.session_timeout_ms <= settings.heartbeat_interval_ms:
        warnings.append(
            f"consumer.{_SESSION}={settings.session_timeout_ms} is not above "
            f"consumer.{_HEARTBEAT}={settings.heartbeat_interval_ms}: its members are removed between two "
            "heartbeats; change the broker's minima and maxima so that they do not overlap"
        )
    return settings, warnings


def in_effect(configs: Mapping[str, str], broker: Mapping[str, str]) -> dict[str, int]:
    """Return the values in effect of a group's settings, without those that have no effect here.

    `configs`: what the group sets. `broker`: the texts of the broker's settings in DECIDING.
    """
    fields: Any = {
        field_name(name): BROKER_KEYS[name].parse(broker[name]) for name in DECIDING if name in broker
    }
    settings, _ = group_settings(configs, BrokerConfig(**fields))
    return {key.name: value for (key, _), value in zip(_EFFECTIVE, settings, strict=True)}


def describe(
    kind: int, configs: Mapping[str, str], broker: BrokerConfig, names: Iterable[str] | None = None
) -> list[Entry]:
    """Return a resource's settings in `names` (None: all). `configs`: values that clients have set."""
    keys = KEYS[kind]
    entries = []
    for name in sorted(keys if names is None else keys.keys() & set(names)):
        key = keys[name]
        try:
            value = format_value(_value(configs, broker, key))
        except ValueError:
            value = configs[name]  # stored by another version
        synonyms = _synonyms(broker, key) if kind == GROUP else []
        if name in configs:
            synonyms.insert(0, Synonym(name, value, _OWN_SOURCES[kind]))
        entries.append(entry_of(key, value, synonyms, read_only=False))
    return entries


def _synonyms(broker: BrokerConfig, key: Key) -> list[Synonym]:
    if not key.synonyms:
        return [Synonym(key.name, format_value(key.default), ConfigSource.DEFAULT_CONFIG)]
    (name,) = key.synonyms
    return broker_synonyms(broker, (name,))
