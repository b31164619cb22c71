"""The settings of groups and of subscriptions to client metrics: names, types, bounds, and descriptions.

The settings of groups are stored and shown without effect: the group protocols that would use them are not
implemented. (Kafka: GroupConfig, ClientMetricsConfigs; KIP-848,
KIP-932, KIP-1071, KIP-714.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from mpbroker.config import known
from mpbroker.config.broker import BrokerConfig
from mpbroker.config.describe import ConfigSource, Entry, Synonym, entry_of, static_text
from mpbroker.config.keys import ConfigType, Key, format_value

CLIENT_METRICS: Final = 16
GROUP: Final = 32
_NO_EFFECT: Final = "No effect here: groups are of the classic protocol."


def _group_key(name: str) -> Key:
    """Return the Key of a group's setting, with type and default of the broker's setting `group.<name>`."""
    key = known.kafka_keys()[f"group.{name}"]
    return Key(key.type, _NO_EFFECT, name, key.default, key.at_least, synonyms=(key.name,))


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
    "share.auto.offset.reset": Key(ConfigType.STRING, _NO_EFFECT, "share.auto.offset.reset", "latest"),
    "share.isolation.level": Key(
        ConfigType.STRING,
        _NO_EFFECT,
        "share.isolation.level",
        "read_uncommitted",
        choices=("read_committed", "read_uncommitted"),
    ),
    "share.renew.acknowledge.enable": Key(
        ConfigType.BOOLEAN, _NO_EFFECT, "share.renew.acknowledge.enable", default=True
    ),
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
            reset, "must be latest, earliest or by_duration:<PnDTnHnMn.nS>"
        )
    values = {name: configs.get(name) or _inherited(broker, key) for name, key in GROUP_KEYS.items()}
    for name in configs:
        protocol, _, rest = name.partition(".")
        rest = rest.removeprefix("num.")
        for limit, wrong, words in (("min", int.__lt__, "greater"), ("max", int.__gt__, "less")):
            key = known.kafka_keys().get(f"group.{protocol}.{limit}.{rest}")
            if key is not None and wrong(int(values[name]), int(_inherited(broker, key))):
                raise ValueError(f"{name} must be {words} than or equal to {key.name}")
    for protocol in ("consumer", "share", "streams"):
        session, heartbeat = f"{protocol}.{_SESSION}", f"{protocol}.{_HEARTBEAT}"
        if int(values[session]) <= int(values[heartbeat]):
            raise ValueError(f"{session} must be greater than {heartbeat}")


def _inherited(broker: BrokerConfig, key: Key) -> str:
    """Return the broker's value of `key`, which groups inherit; its default if the broker has no value."""
    for name in (*key.synonyms, key.name):
        if (text := broker.altered.text(name) or static_text(broker, name)) is not None:
            return text
    return format_value(key.default) or ""


def _check_client_metrics(configs: Mapping[str, str]) -> None:
    low, high = _INTERVAL_MS
    interval_ms = int(configs.get("interval.ms", low))
    if not low <= interval_ms <= high:
        raise RequestError(
            f"Invalid value {interval_ms} for interval.ms, interval must be between {low} and {high} (1 hour)"
        )
    client_patterns(configs.get("match", ""))


def client_patterns(match: str) -> dict[str, re.Pattern[str]]:
    """Return the patterns of the setting `match`, by the name of what they match. Raises ValueError."""
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


def describe(
    kind: int, configs: Mapping[str, str], broker: BrokerConfig, names: Iterable[str] | None = None
) -> list[Entry]:
    """Return a resource's settings in `names` (None: all). `configs`: values that clients have set."""
    keys = KEYS[kind]
    own = ConfigSource.GROUP_CONFIG if kind == GROUP else ConfigSource.CLIENT_METRICS_CONFIG
    entries = []
    for name in sorted(keys if names is None else keys.keys() & set(names)):
        key = keys[name]
        synonyms = _synonyms(broker, key) if kind == GROUP else []
        if name in configs:
            synonyms.insert(0, Synonym(name, configs[name], own))
        value = configs.get(name) if name in configs else _inherited(broker, key)
        entries.append(entry_of(key, value, synonyms, read_only=False))
    return entries


def _synonyms(broker: BrokerConfig, key: Key) -> list[Synonym]:
    if not key.synonyms:
        return [Synonym(key.name, format_value(key.default), ConfigSource.DEFAULT_CONFIG)]
    (name,) = key.synonyms
    sources = (
        (broker.altered.broker.get(name), ConfigSource.DYNAMIC_BROKER_CONFIG),
        (broker.altered.default.get(name), ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        (static_text(broker, name), ConfigSource.STATIC_BROKER_CONFIG),
        (format_value(key.default), ConfigSource.DEFAULT_CONFIG),
    )
    return [Synonym(name, text, source) for text, source in sources if text is not None]
