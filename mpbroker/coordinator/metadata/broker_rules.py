"""Alterations of the broker's settings, checked as a whole before they are recorded.

A resource is one broker, named by its node id, or all brokers, named "". The metadata log has both kinds, as
in Kafka. The running broker must be able to adopt the whole resulting configuration (config.dynamic). (Kafka:
ConfigAdminManager, DynamicBrokerConfig.validate, as of 4.3.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mpbroker.config import dynamic
from mpbroker.config.broker import BrokerConfig
from mpbroker.config.keys import Key, field_name, format_value
from mpbroker.config.load import new_contradictions
from mpbroker.coordinator.metadata import config_rules
from mpbroker.coordinator.metadata.config_rules import Configs
from mpbroker.coordinator.metadata.image_sizes import brokers_bytes, config_bytes
from mpbroker.coordinator.metadata.topic_rules import CONFIG_VALUE_LENGTH_MAX, Refused, check_lengths
from mpbroker.ipc.calls import ConfigAlteration
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ConfigRecord
from mpbroker.protocol.numbers import ConfigOperation, ConfigResourceType

ALL_BROKERS = ""
Brokers = Mapping[str, Configs]
# The longest form of all settings that alterations affect, of this broker and of all. Settings without effect
# share the room. The log may hold more than this, written by another version.
BROKERS_BYTES_MAX: Final = 2 * sum(
    config_bytes(key, "x" * CONFIG_VALUE_LENGTH_MAX) for key in dynamic.DYNAMIC
)


def altered(brokers: Brokers, alteration: ConfigAlteration, now: BrokerConfig) -> list[ConfigRecord]:
    """Return the metadata records of `alteration`. `now`: the configuration before it. Raises Refused."""
    name = alteration.name
    before = brokers.get(name, {})
    wanted = [one.name for one in alteration.changes if one.operation != ConfigOperation.DELETE]
    if problem := dynamic.refusal(wanted, of_all_brokers=name == ALL_BROKERS):
        raise Refused(ErrorCode.INVALID_REQUEST, problem)

    def beneath(key: Key) -> str:
        others = {} if name == ALL_BROKERS else brokers.get(ALL_BROKERS, {})
        static = getattr(dynamic.static_of(now), field_name(key.name), key.default)
        return others.get(key.name) or format_value(static) or ""

    keys = {one.name: dynamic.key_of(one.name) for one in alteration.changes}
    after = {key: text or "" for key, text in config_rules.after(before, alteration, keys, beneath).items()}
    check_lengths(after, ErrorCode.INVALID_REQUEST)
    try:
        for key in wanted:
            dynamic.parse(key, after[key])
    except ValueError as error:
        raise Refused(ErrorCode.INVALID_REQUEST, str(error)) from error
    _check_room(brokers, {**brokers, name: after})
    _check(brokers, {**brokers, name: after}, now)
    return config_rules.records(ConfigResourceType.BROKER, name, before, after)


def _check_room(before: Brokers, after: Brokers) -> None:
    """Raise Refused if the settings exceed BROKERS_BYTES_MAX and take more bytes than before."""
    taken = brokers_bytes(after)
    if taken > max(BROKERS_BYTES_MAX, brokers_bytes(before)):
        raise Refused(
            ErrorCode.POLICY_VIOLATION,
            f"The altered settings of brokers would take {taken} bytes; at most {BROKERS_BYTES_MAX} fit. "
            "Delete settings without effect: the broker's log names them at each start",
        )


def _check(before: Brokers, after: Brokers, now: BrokerConfig) -> None:
    """Raise Refused if the broker, now with configuration `now`, cannot adopt the settings in `after`."""
    static = dynamic.static_of(now)
    was, becomes = _overlaid(static, before), _overlaid(static, after)
    if problems := new_contradictions(was, becomes):
        raise Refused(ErrorCode.INVALID_REQUEST, "; ".join(map(str, problems)))
    if problem := dynamic.step_problem(now, was, becomes):
        raise Refused(ErrorCode.INVALID_REQUEST, problem)


def _overlaid(static: BrokerConfig, brokers: Brokers) -> BrokerConfig:
    mine, others = (dynamic.usable(brokers.get(name, {}))[0] for name in (str(static.node_id), ALL_BROKERS))
    return dynamic.overlaid(static, mine, others)
