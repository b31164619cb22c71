"""The assignor `range`: gives each member, in a fixed order, a contiguous range of each topic's partitions.

Topics with equal numbers of partitions and the same subscribers are assigned alike. So a member that joins
the records of two topics by key has the matching partitions of both. (Kafka: RangeAssignor.)
"""

from __future__ import annotations

from mpbroker.coordinator.groups.consumer.assignors.group_spec import (
    Assignment,
    GroupSpec,
    Pace,
    Sliced,
    members_by_topics,
    subscribers_by_topic,
)


def assign_ranges(spec: GroupSpec) -> Sliced[dict[str, Assignment]]:
    """Assign ranges to static members by instance id, then to the others by member id.

    If equal ranges are impossible, the first ones are larger by one. Raises PartitionAssignorError.
    """
    pace = Pace()
    order = sorted(
        (one.instance_id is None, one.instance_id or id_, id_) for id_, one in spec.subscribers.items()
    )
    members = [spec.subscribers[member_id] for _, _, member_id in order]
    groups = yield from members_by_topics(members, pace)
    topics = yield from subscribers_by_topic(groups, spec.partitions, pace)
    found: list[dict[bytes, frozenset[int]]] = [{} for _ in members]
    for topic, subscribers in topics.items():
        least, extras = divmod(spec.partitions[topic], len(subscribers))
        start = 0
        for place, index in enumerate(subscribers if least else subscribers[:extras]):
            end = start + least + (place < extras)
            found[index][topic] = frozenset(range(start, end))
            start = end
            if pace.is_over(3 + least // 8):
                yield
    assignments: dict[str, Assignment] = {}
    for (_, _, member_id), member, ranges in zip(order, members, found, strict=True):
        assignments[member_id] = member.assigned if ranges == member.assigned else ranges
        if pace.is_over(2 + len(ranges)):
            yield
    return assignments
