"""What becomes of the broker's settings when a client alters them, checked whole before it is recorded.

A resource is one broker, by its node id, or all of them: "". Each is kept in the metadata log as Kafka keeps
it. What comes of it must be a configuration that the running broker can take over whole (config.dynamic), as
if it had stood in the file. (Kafka: ConfigAdminManager, DynamicBrokerConfig.validate, as of 4.3.)
"""

from __future__ import annotations

from collections.abc import Mapping

from mpbroker.config import dynamic
from mpbroker.config.broker import BROKER_KEYS, BrokerConfig
from mpbroker.config.keys import Key, field_name, format_value
from mpbroker.config.load import contradictions
from mpbroker.coordinator import config_rules
from mpbroker.coordinator.config_rules import Configs
from mpbroker.coordinator.topic_rules import CONFIG_VALUE_LENGTH_MAX, Refused
from mpbroker.ipc.calls import ConfigAlteration
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ConfigRecord
from mpbroker.protocol.numbers import ConfigOperation, ResourceType

ALL_BROKERS = ""
Brokers = Mapping[str, Configs]
_KEYS = BROKER_KEYS | dynamic.REPLICATION_RATES


def altered(brokers: Brokers, alteration: ConfigAlteration, now: BrokerConfig) -> list[ConfigRecord]:
    """What is to be recorded. `now`: as the broker runs. Raises Refused."""
    name = alteration.name
    before = brokers.get(name, {})
    wanted = [one.name for one in alteration.changes if one.operation != ConfigOperation.DELETE]
    if problem := dynamic.refusal(wanted, of_all_brokers=name == ALL_BROKERS):
        raise Refused(ErrorCode.INVALID_REQUEST, problem)

    def beneath(key: Key) -> str:
        others = {} if name == ALL_BROKERS else brokers.get(ALL_BROKERS, {})
        static = getattr(dynamic.static_of(now), field_name(key.name), key.default)
        return others.get(key.name) or format_value(static) or ""

    after = {key: text or "" for key, text in config_rules.after(before, alteration, _KEYS, beneath).items()}
    if any(len(text.encode()) > CONFIG_VALUE_LENGTH_MAX for text in after.values()):
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            "The configuration value cannot be added because it exceeds the maximum value size of "
            f"{CONFIG_VALUE_LENGTH_MAX} bytes.",
        )
    try:
        for key in wanted:
            dynamic.parse(key, after[key])
    except ValueError as error:
        raise Refused(ErrorCode.INVALID_REQUEST, str(error)) from error
    _check(brokers, {**brokers, name: after}, now)
    return config_rules.records(ResourceType.BROKER, name, before, after)


def _check(before: Brokers, after: Brokers, now: BrokerConfig) -> None:
    """Raises Refused."""
    static = dynamic.static_of(now)
    was, becomes = _overlaid(static, before), _overlaid(static, after)
    known = {problem.message for problem in contradictions(was)}
    if problems := [str(one) for one in contradictions(becomes) if one.message not in known]:
        raise Refused(ErrorCode.INVALID_REQUEST, "; ".join(problems))
    if problem := dynamic.step_problem(now, was, becomes):
        raise Refused(ErrorCode.INVALID_REQUEST, problem)


def _overlaid(static: BrokerConfig, brokers: Brokers) -> BrokerConfig:
    mine, others = (dynamic.usable(brokers.get(name, {}))[0] for name in (str(static.node_id), ALL_BROKERS))
    return dynamic.overlaid(static, mine, others)
