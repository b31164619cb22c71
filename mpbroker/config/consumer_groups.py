"""Settings of groups of the consumer protocol (KIP-848), and Kafka's rules about them.

(Kafka: GroupCoordinatorConfig, ConsumerGroupMigrationPolicy, as of 4.3.)
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Annotated, Final

from mpbroker.config.integers import INT_MAX
from mpbroker.config.keys import ConfigType, Key, field_name
from mpbroker.config.security import SecuritySettings

INT, LIST, STRING = ConfigType.INT, ConfigType.LIST, ConfigType.STRING

_PACKAGE: Final = "org.apache.kafka.coordinator.group.assignor"
ASSIGNORS: Final = {
    "uniform": "uniform",
    "range": "range",
    f"{_PACKAGE}.UniformAssignor": "uniform",
    f"{_PACKAGE}.RangeAssignor": "range",
}
"""The assignors by every name that Kafka accepts: their own and those of their Java classes."""
MIGRATION_POLICIES: Final = ("bidirectional", "upgrade", "downgrade", "disabled")
REBALANCE_PROTOCOLS: Final = ("consumer", "classic", "share", "streams")
UNBUILT_PROTOCOLS: Final = ("share", "streams")
"""Protocols that rebalance.protocols may name, as in Kafka, and that this broker does not have."""


def _are_assignors(names: tuple[str, ...]) -> str:
    """Return the problem with a list of assignors, or ""."""
    if not names:
        return "Configuration must not be empty."
    if unknown := [name for name in names if name not in ASSIGNORS]:
        return f"Java plug-ins cannot be loaded; {unknown[0]} is none of {', '.join(ASSIGNORS)}"
    short = [ASSIGNORS[name] for name in names]
    return "" if len(set(short)) == len(short) else "An assignor is named twice."


def _is_policy(name: str) -> str:
    """Return the problem with a migration policy, or "". Case does not matter, as in Kafka."""
    if name.lower() in MIGRATION_POLICIES:
        return ""
    return f"String must be one of (case insensitive): {', '.join(MIGRATION_POLICIES)}"


def _have_classic(protocols: tuple[str, ...]) -> str:
    """Return the problem with a list of rebalance protocols that lacks classic, else ""."""
    return "" if "classic" in protocols else "Disabling the 'classic' protocol is not supported."


class ConsumerProtocolSettings(SecuritySettings, frozen=True, kw_only=True):
    """Settings of groups of the consumer protocol. CoordinatorSettings derives from this class."""

    group_coordinator_rebalance_protocols: Annotated[
        tuple[str, ...],
        Key(
            LIST,
            "Protocols of groups; without consumer, members of that protocol are refused. share and streams "
            "have no effect.",
            choices=REBALANCE_PROTOCOLS,
            check=_have_classic,
            begins="Consumer groups of the consumer protocol (group.protocol=consumer)",
        ),
    ] = ("classic", "consumer")
    group_consumer_session_timeout_ms: Annotated[
        int, Key(INT, "Time after which a member that sends no heartbeat leaves its group.", at_least=1)
    ] = 45_000
    group_consumer_min_session_timeout_ms: Annotated[
        int, Key(INT, "Shortest consumer.session.timeout.ms that a group may set.", at_least=1)
    ] = 45_000
    group_consumer_max_session_timeout_ms: Annotated[
        int, Key(INT, "Longest consumer.session.timeout.ms that a group may set.", at_least=1)
    ] = 60_000
    group_consumer_heartbeat_interval_ms: Annotated[
        int, Key(INT, "Time between two heartbeats of a member.", at_least=1)
    ] = 5_000
    group_consumer_min_heartbeat_interval_ms: Annotated[
        int, Key(INT, "Shortest consumer.heartbeat.interval.ms that a group may set.", at_least=1)
    ] = 5_000
    group_consumer_max_heartbeat_interval_ms: Annotated[
        int, Key(INT, "Longest consumer.heartbeat.interval.ms that a group may set.", at_least=1)
    ] = 15_000
    group_consumer_max_size: Annotated[int, Key(INT, "Members that a group may have.", at_least=1)] = INT_MAX
    group_consumer_assignors: Annotated[
        tuple[str, ...],
        Key(
            LIST,
            "Assignors that members may choose, uniform and range; the first is the default.",
            check=_are_assignors,
        ),
    ] = ("uniform", "range")
    group_consumer_migration_policy: Annotated[
        str,
        Key(
            STRING,
            "Whether members may turn a classic group into one of the consumer protocol (upgrade), the last "
            "ones turn it back (downgrade), both (bidirectional), or neither (disabled).",
            check=_is_policy,
        ),
    ] = "bidirectional"
    group_consumer_assignment_interval_ms: Annotated[
        int, Key(INT, "Time between two assignments of a group (KIP-1263).", at_least=0)
    ] = 1_000
    group_consumer_min_assignment_interval_ms: Annotated[
        int, Key(INT, "Shortest consumer.assignment.interval.ms that a group may set.", at_least=0)
    ] = 0
    group_consumer_max_assignment_interval_ms: Annotated[
        int, Key(INT, "Longest consumer.assignment.interval.ms that a group may set.", at_least=0)
    ] = 15_000
    group_consumer_regex_refresh_interval_ms: Annotated[
        int,
        Key(
            INT,
            "Time after which a group's regular expressions are matched with the names of topics again.",
            at_least=10_000,
        ),
    ] = 600_000

    @property
    def consumer_assignors(self) -> tuple[str, ...]:
        """Return the assignors by name, such as uniform, never by Java class. The default comes first."""
        return tuple(ASSIGNORS[name] for name in self.group_consumer_assignors)

    @property
    def is_upgrade_enabled(self) -> bool:
        """Return whether a classic group may become one of the consumer protocol while it has members."""
        return self.group_consumer_migration_policy.lower() in ("bidirectional", "upgrade")

    @property
    def is_downgrade_enabled(self) -> bool:
        """Return whether a group of the consumer protocol may become a classic one while it has members."""
        return self.group_consumer_migration_policy.lower() in ("bidirectional", "downgrade")


_AT_LEAST: Final = ("greater than or equal to", operator.ge)
_AT_MOST: Final = ("less than or equal to", operator.le)
# A setting, the one that bounds it, and how.
_RULES: Final = [
    rule
    for name in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")
    for least, own, most in [tuple(f"group.consumer.{infix}{name}" for infix in ("min.", "", "max."))]
    for rule in ((most, least, *_AT_LEAST), (own, least, *_AT_LEAST), (own, most, *_AT_MOST))
] + [("group.consumer.heartbeat.interval.ms", "group.consumer.session.timeout.ms", "less than", operator.lt)]


def consumer_contradictions(config: ConsumerProtocolSettings) -> Iterator[tuple[str, str, str]]:
    """Yield the pairs of settings that exclude each other: both keys, and a message in Kafka's words."""
    for key, bound, words, is_right in _RULES:
        value, limit = getattr(config, field_name(key)), getattr(config, field_name(bound))
        if not is_right(value, limit):
            yield key, bound, f"{key}={value} must be {words} {bound}={limit}"
