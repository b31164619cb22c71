"""Rules for new topics, with Kafka's error codes and texts.

(Kafka: ReplicationControlManager for partitions, replicas and assignments, ConfigurationControlManager for
settings, as of 4.3.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import NOTHING, TopicConfigError, is_tiered, validate
from mpbroker.ipc.calls import CreateTopic, MorePartitions
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.topic_names import INTERNAL_TOPICS, problem_with

CONFIG_VALUE_LENGTH_MAX: Final = 32767
PARTITIONS_PER_REQUEST_MAX: Final = 10_000


class Refused(Exception):
    """A request that is refused with `error`; the client gets the text."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


def check_name(name: str) -> None:
    """Check a topic's name. Raises Refused if it is not valid."""
    problem = problem_with(name)
    if problem is not None:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)


def check_configs(
    name: str, configs: dict[str, str | None], broker: BrokerConfig, before: Mapping[str, str] = NOTHING
) -> dict[str, str]:
    """Return the settings of a topic, checked. Raises Refused if a setting is not valid.

    `before`: the settings that the topic had.
    """
    if nulls := [name for name, value in configs.items() if value is None]:
        raise Refused(
            ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}"
        )
    own = {name: value for name, value in configs.items() if value is not None}
    check_lengths(own, ErrorCode.INVALID_CONFIG)
    try:
        validate(broker, own, before)
    except TopicConfigError as error:
        raise Refused(ErrorCode.INVALID_CONFIG, str(error)) from error
    if is_tiered(own) and name in INTERNAL_TOPICS:
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"Remote log storage is not for internal topics such as {name}: set remote.storage.enable=false.",
        )
    return own


def check_lengths(configs: Mapping[str, str], error: ErrorCode) -> None:
    """Raise Refused with `error` if a value has more than CONFIG_VALUE_LENGTH_MAX bytes."""
    if any(len(value.encode()) > CONFIG_VALUE_LENGTH_MAX for value in configs.values()):
        raise Refused(
            error,
            "The configuration value cannot be added because it exceeds the maximum value size of "
            f"{CONFIG_VALUE_LENGTH_MAX} bytes.",
        )


def too_many_text(asked: int) -> str:
    """Return the error text for a request with too many partitions. The text begins like Kafka's."""
    most = PARTITIONS_PER_REQUEST_MAX
    return f"Excessively large number of partitions per request: {asked}, and {most} at most."


def check_more(topic: MorePartitions, current: int, broker: BrokerConfig) -> int:
    """Return how many partitions a request adds to a topic with `current` partitions. Raises Refused."""
    if topic.count == current:
        raise Refused(ErrorCode.INVALID_PARTITIONS, f"Topic already has {current} partition(s).")
    if topic.count < current:
        raise Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {current} partition(s); {topic.count} would not be an "
            "increase.",
        )
    more = topic.count - current
    if topic.assignments is not None:
        if len(topic.assignments) != more:
            raise Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {more} additional partition(s), but only {len(topic.assignments)} "
                "assignment(s) were specified.",
            )
        for replicas in topic.assignments:
            _check_replicas(replicas, broker.node_id)
    return more


def check_placement(topic: CreateTopic, broker: BrokerConfig) -> int:
    """Return the number of partitions of a new topic. Raises Refused if other brokers would be needed."""
    if topic.assignments:
        return _check_assignments(topic, broker.node_id)
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if topic.partitions < -1 or topic.partitions == 0:
        raise Refused(
            ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
        )
    replicas = (
        broker.default_replication_factor if topic.replication_factor == -1 else topic.replication_factor
    )
    if replicas > 1 and not broker.mpbroker_replication_factor_clamp:
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replicas} time(s): The target replication factor of "
            f"{replicas} cannot be reached because only 1 broker(s) are registered.",
        )
    return topic.partitions_asked(broker.num_partitions)


def _check_assignments(topic: CreateTopic, node_id: int) -> int:
    """Check a manual assignment, as Kafka does with one broker. Return how many partitions it has."""
    if topic.replication_factor != -1 or topic.partitions != -1:
        what = "replication factor" if topic.replication_factor != -1 else "numPartitions"
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"A manual partition assignment was specified, but {what} was not set to -1.",
        )
    for replicas in topic.assignments.values():
        _check_replicas(replicas, node_id)
    if set(topic.assignments) != set(range(len(topic.assignments))):
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    return len(topic.assignments)


def _check_replicas(replicas: list[int], node_id: int) -> None:
    """Raise Refused unless the only replica of a partition is this broker."""
    prefix = "The manual partition assignment includes"
    if not replicas:
        wrong = f"{prefix} an empty replica list."
    elif strangers := sorted(set(replicas) - {node_id}):
        wrong = f"{prefix} broker {strangers[0]}, but no such broker is registered."
    elif len(replicas) > 1:
        wrong = f"{prefix} the broker {node_id} more than once."
    else:
        return
    raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, wrong)
