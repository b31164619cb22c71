"""The settings of the broker that clients may alter, and the resulting configuration (KIP-226).

A key's value comes from the first of these sources that has the key: the alteration of this broker, the
alteration of all brokers, file and flags, the default. Dynamic settings are those that are dynamic in Kafka
and that this broker can adopt while it runs, and the connection limits of single listeners. Kafka's other
dynamic settings, and unknown settings, are stored and shown without effect. Security settings of single
listeners are read from the file alone, because passwords are never kept in the metadata log.
(Kafka: DynamicBrokerConfig, DynamicConfig.Broker, as of 4.3.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import structs

from mpbroker.config import known
from mpbroker.config.altered import Altered, Beneath
from mpbroker.config.broker import BROKER_KEYS, BrokerConfig
from mpbroker.config.integers import LONG_MAX
from mpbroker.config.keys import ConfigType, Key, Problem, Value, field_name, format_value
from mpbroker.config.limits import LIMIT_KEYS, laid_over, limits_by_address, names_limit, text_of
from mpbroker.config.security import SECURITY_KEYS
from mpbroker.config.topic_config import TOPIC_KEYS
from mpbroker.config.workers import RESIZABLE, resize_problem

OVERRIDES: Final = "max.connections.per.ip.overrides"
_INTERVAL: Final = "group.consumer.assignment.interval.ms"
# A topic's default is altered by its finest key alone, as in Kafka: log.retention.hours cannot be altered.
_OF_TOPICS = {key.synonyms[0] for key in TOPIC_KEYS.values() if key.synonyms}
DYNAMIC: Final = frozenset(_OF_TOPICS & BROKER_KEYS.keys()) | {
    _INTERVAL,
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.buffer.size",
    "log.cleaner.io.max.bytes.per.second",
    "max.connection.creation.rate",
    "max.connections",
    "max.connections.per.ip",
    OVERRIDES,
    "num.io.threads",
    "num.network.threads",
    "producer.id.expiration.ms",
    "remote.fetch.max.wait.ms",
    "remote.list.offsets.request.timeout.ms",
    "remote.log.manager.copy.max.bytes.per.second",
    "remote.log.manager.fetch.max.bytes.per.second",
    "replica.alter.log.dirs.io.max.bytes.per.second",
    "transaction.partition.verification.enable",
}
# Kafka's dynamic settings that have no effect here, or at a start alone: taken, kept and shown.
IDLE: Final[Mapping[str, Key]] = {
    name: key
    for name, key in known.kafka_keys().items()
    if known.is_dynamic(name) and name not in BROKER_KEYS and known.refusal(name, "?") is None
} | {
    **{
        name: BROKER_KEYS[name] for name in ("num.recovery.threads.per.data.dir", "remote.log.reader.threads")
    },
    # kafka-reassign-partitions --throttle sets them on every broker; a single node does not replicate.
    **{
        name: Key(
            ConfigType.LONG, f"Bytes a second of replication by a {role}: no effect.", name, LONG_MAX, 0
        )
        for role in ("leader", "follower")
        for name in [f"{role}.replication.throttled.rate"]
    },
}
_LISTENER = re.compile(r"listener\.name\.[^.]+\.(?P<rest>.+)")
_OF_ALL_LISTENERS = {*LIMIT_KEYS, "num.network.threads"}
_IN_THE_FILE = "Change them in the broker's properties file, then mpbroker ctl reload"


def refusal(names: Iterable[str], *, of_all_brokers: bool) -> str | None:
    """Return why clients may not alter these settings, in Kafka's words, or None if they may.

    Unknown settings may be altered: in Kafka they may belong to a plug-in. Values are checked later.
    """
    wanted = sorted(set(names))
    if secrets := [name for name in wanted if _is_secret(name)]:
        return (
            f"Cannot update these configs dynamically: {_listed(secrets)}. The metadata log keeps no "
            f"passwords. {_IN_THE_FILE}"
        )
    if unprefixed := [name for name in wanted if name in SECURITY_KEYS]:
        return (
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            f"{_listed(unprefixed)}. {_IN_THE_FILE}"
        )
    of_one = [name for name in wanted if _is_of_one_broker(name)]
    if of_all_brokers and of_one:
        return (
            "Cannot update these configs at default cluster level, broker id must be specified: "
            f"{_listed(of_one)}"
        )
    fixed = [name for name in wanted if not _is_taken(name)]
    return _fixed(fixed) if fixed else None


def _is_taken(name: str) -> bool:
    """Return whether clients may alter the setting, with or without effect."""
    if name in DYNAMIC or name in IDLE:
        return True
    if (match := _LISTENER.fullmatch(name)) is not None:
        rest = match["rest"]
        is_limit = rest in LIMIT_KEYS
        return is_limit or not (_may_be_of_listener(rest) or known.refusal(rest, "?"))
    return name not in BROKER_KEYS and name not in known.kafka_keys() and name not in known.ALIASES


def key_of(name: str) -> Key:
    """Return the Key of a setting that clients may alter."""
    if name in DYNAMIC:
        return BROKER_KEYS[name]
    match = _LISTENER.fullmatch(name)
    base = name if match is None else match["rest"]
    key = IDLE.get(base) or BROKER_KEYS.get(base) or known.kafka_keys().get(base)
    if key is None:
        return Key(ConfigType.UNKNOWN, "No effect: neither Kafka nor this broker has such a setting.", name)
    return key if match is None else structs.replace(key, name=name, default=None)


def _fixed(names: list[str]) -> str:
    """Return why clients cannot alter these settings of Kafka, and what the operator can do instead."""
    idle = {name: reason for name in names if (reason := _no_effect(name)) is not None}
    of_the_file = [name for name in names if name not in idle]
    parts = []
    if of_the_file:
        parts.append(
            f"Cannot update these configs dynamically: {_listed(of_the_file)}. {_IN_THE_FILE}, which lists "
            "those that need a restart"
        )
    if idle:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in idle.items())
        parts.append(
            f"Cannot update these configs dynamically: {_listed(list(idle))}. They have no effect here, in "
            f"the file neither: {reasons}"
        )
    return ". ".join(parts)


def _no_effect(name: str) -> str | None:
    """Return why the setting has no effect even in the file, or None if it has an effect there."""
    if name in BROKER_KEYS:
        return BROKER_KEYS[name].pending or None
    of_listener = _LISTENER.fullmatch(name)
    of_the_file = (
        name in known.ALIASES
        or name in known.HANDLED
        or (of_listener is not None and _may_be_of_listener(of_listener["rest"]))
    )
    return None if of_the_file else known.no_effect(name)


def _may_be_of_listener(rest: str) -> bool:
    """Return whether `rest`, a key without `listener.name.<name>.`, is a setting of TLS or SASL."""
    return any(rest == key or rest.endswith(f".{key}") for key in SECURITY_KEYS)


def _listed(names: list[str]) -> str:
    return f"[{', '.join(names)}]"


def _is_secret(name: str) -> bool:
    """Return whether the setting is a secret, whatever prefix it has (Kafka: DynamicPasswordConfigs)."""
    secrets = (key for key, one in SECURITY_KEYS.items() if one.type is ConfigType.PASSWORD)
    return any(name == key or name.endswith(f".{key}") for key in secrets) or name.endswith(".password")


def _is_of_one_broker(name: str) -> bool:
    match = _LISTENER.fullmatch(name)
    if match is not None:
        return match["rest"] not in _OF_ALL_LISTENERS
    return name == "advertised.listeners" or known.is_of_one_broker(name)


def parse(name: str, text: str) -> Value:
    """Parse the text of a setting that clients may alter. Raises ValueError with Kafka's words."""
    value = key_of(name).parse(text)
    if name == OVERRIDES:
        assert isinstance(value, tuple)
        try:
            limits_by_address(value)
        except ValueError as error:
            raise BROKER_KEYS[name].invalid(
                text, f"{error}; hosts are looked up at a start only, give addresses"
            ) from error
    return value


def usable(texts: Mapping[str, str]) -> tuple[dict[str, str], list[Problem]]:
    """Return the valid settings in `texts`, and a problem for each one that this version does not accept."""
    good, problems = {}, []
    for name, text in texts.items():
        try:
            if refusal([name], of_all_brokers=False):
                raise ValueError(f"{name} cannot be altered")
            parse(name, text)
        except ValueError as error:
            problems.append(Problem(name, "AlterConfigs", str(error)))
        else:
            good[name] = text
    return good, problems


def overlaid(static: BrokerConfig, broker: Mapping[str, str], default: Mapping[str, str]) -> BrokerConfig:
    """Return `static` altered by the texts in `default`, then by those in `broker`. Raises ValueError."""
    texts = {**default, **broker}
    counting = {name: text for name, text in texts.items() if name in DYNAMIC or names_limit(name)}
    values = {field_name(name): parse(name, text) for name, text in counting.items() if name in DYNAMIC}
    limits = {name: format_value(parse(name, text)) for name, text in texts.items() if names_limit(name)}
    own = static.listener_limits
    beneath = {
        name: Beneath(
            text_of(own, name) if name in limits else format_value(getattr(static, field_name(name))),
            static.origins.get(name, ""),
        )
        for name in counting
    }
    whose = {name: "AlterConfigs of this broker" if name in broker else "AlterConfigs" for name in counting}
    return structs.replace(
        static,
        **values,
        listener_limits=laid_over(own, limits),
        origins={**static.origins, **whose},
        altered=Altered(dict(broker), dict(default), beneath),
    )


def within_bounds(config: BrokerConfig) -> tuple[BrokerConfig, list[str]]:
    """Replace an altered value that is out of bounds with the nearest bound; return warnings, too.

    The file may have had wider bounds when a client altered the value.
    (Kafka: GroupCoordinatorConfig.clampDynamicConfigs.)
    """
    value_ms = config.group_consumer_assignment_interval_ms
    least_ms = config.group_consumer_min_assignment_interval_ms
    most_ms = config.group_consumer_max_assignment_interval_ms
    used_ms = min(max(value_ms, least_ms), most_ms)
    if config.altered.text(_INTERVAL) is None or used_ms == value_ms:
        return config, []
    warning = f"{_INTERVAL}={value_ms} is not between {least_ms} and {most_ms}: {used_ms} is used"
    return structs.replace(config, group_consumer_assignment_interval_ms=used_ms), [warning]


def static_of(config: BrokerConfig) -> BrokerConfig:
    """Return the configuration of file and flags, without the alterations by clients."""
    beneath = config.altered.beneath
    values: dict[str, Any] = {
        field_name(name): None if one.text is None else BROKER_KEYS[name].parse(one.text)
        for name, one in beneath.items()
        if name in DYNAMIC
    }
    limits = {name: one.text for name, one in beneath.items() if names_limit(name)}
    values["listener_limits"] = laid_over(config.listener_limits, limits)
    origins = {name: origin for name, origin in config.origins.items() if name not in beneath}
    origins |= {name: one.origin for name, one in beneath.items() if one.origin}
    return structs.replace(config, **values, origins=origins, altered=Altered())


def step_problem(now: BrokerConfig, was: BrokerConfig, becomes: BrokerConfig) -> str | None:
    """Return why a number of workers in `becomes` is too far from the number in `was`, or None.

    `resize_problem` has the rule. `was` and `becomes` have the settings before and after an alteration;
    `now` is the configuration of the running broker. If the broker has adopted the setting in `was`, the step
    begins at the number of workers that the broker has or is resizing to, else at the number in `was`.
    """
    for name, (kind, most) in RESIZABLE.items():
        text = was.altered.text(name)
        if text == becomes.altered.text(name):
            continue
        if text == now.altered.text(name):
            old = now.resizing_to.get(name, getattr(now, field_name(name)))
        else:
            old = getattr(was, field_name(name))
        if problem := resize_problem(kind, old, getattr(becomes, field_name(name)), most):
            return problem
    return None
