"""The table of assignors, by the names that `group.consumer.assignors` and members use.

(Kafka: UniformAssignor, RangeAssignor.)
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from mpbroker.coordinator.groups.consumer.assignors.group_spec import (
    Assignment,
    Assignor,
    GroupSpec,
    Pace,
    Sliced,
    members_by_topics,
    subscribers_by_topic,
)
from mpbroker.coordinator.groups.consumer.assignors.range_assignor import assign_ranges
from mpbroker.coordinator.groups.consumer.assignors.uniform_heterogeneous import assign_heterogeneous
from mpbroker.coordinator.groups.consumer.assignors.uniform_homogeneous import assign_homogeneous


def assign_uniformly(spec: GroupSpec) -> Sliced[dict[str, Assignment]]:
    """Give members nearly equal numbers of partitions; move few of these. Raises PartitionAssignorError."""
    pace = Pace()
    groups = yield from members_by_topics(list(spec.subscribers.values()), pace)
    subscribers = yield from subscribers_by_topic(groups, spec.partitions, pace)
    if len(groups) == 1:
        return (yield from assign_homogeneous(spec, subscribers, pace))
    return (yield from assign_heterogeneous(spec, subscribers, pace))


ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType(
    {"uniform": assign_uniformly, "range": assign_ranges}
)
