"""Assigns partitions by ranges, and reads subscriptions and assignments of group members. Sans-I/O.

Malformed data of other clients count as empty. (Kafka: RangeAssignor.)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mpbroker.protocol.consumer_protocol import decode_assignment, decode_topics
from mpbroker.protocol.topic_names import TopicPartition
from mpbroker.protocol.wire import MalformedMessage

RANGE = "range"


def subscribed_topics(data: bytes) -> list[str]:
    """Return the topics of a subscription, an empty list if it is malformed."""
    try:
        return decode_topics(data)
    except MalformedMessage:
        return []


def assigned_partitions(data: bytes) -> list[TopicPartition]:
    """Return the partitions of an assignment in order, an empty list if it is malformed."""
    try:
        parts, _ = decode_assignment(data)
    except MalformedMessage:
        return []
    return sorted((topic, number) for topic, numbers in parts.items() for number in numbers)


def assign_ranges(
    wanted: Mapping[str, Collection[str]], partitions: Mapping[str, int]
) -> dict[str, dict[str, range]]:
    """Divide each topic into a range per subscribed member. `partitions` has each topic's partition count.

    Return the ranges by member and topic.
    """
    assigned: dict[str, dict[str, range]] = {member: {} for member in wanted}
    for topic, count in sorted(partitions.items()):
        members = sorted(member for member, topics in wanted.items() if topic in topics)
        first = 0
        for index, member in enumerate(members):
            share = count // len(members) + (index < count % len(members))
            if share:
                assigned[member][topic] = range(first, first + share)
            first += share
    return assigned
