"""Encodes and decodes the subscriptions and assignments of consumer group members. Sans-I/O.

The encoding is version 0, which every client reads. Decoding accepts any version, since later versions only
append fields.
(Kafka: ConsumerProtocolSubscription, ConsumerProtocolAssignment, RangeAssignor.)
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping

from mpbroker.protocol.topic_names import TopicPartition

PROTOCOL_TYPE = "consumer"
RANGE = "range"

_VERSION_0 = b"\0\0"
_NO_USER_DATA = struct.pack(">i", -1)


def encode_subscription(topics: Collection[str]) -> bytes:
    """Encode: version i16 | topics: count i32, each: name (i16, bytes) | user data (i32, bytes)"""
    names = b"".join(map(_text, topics))
    return _VERSION_0 + struct.pack(">i", len(topics)) + names + _NO_USER_DATA


def decode_subscription(data: bytes) -> list[str]:
    """Return the topics that a member has subscribed to, an empty list if `data` is malformed."""
    topics = []
    try:
        (count,) = struct.unpack_from(">i", data, 2)
        at = 6
        for _ in range(count):
            name, at = _text_at(data, at)
            topics.append(name)
    except (struct.error, UnicodeDecodeError):
        return []
    return topics


def encode_assignment(places: Iterable[TopicPartition]) -> bytes:
    """Encode: version i16 | topics: count i32, each: name, partitions: count i32, i32 … | user data"""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        by_topic.setdefault(topic, []).append(partition)
    topics = b"".join(
        _text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
        for topic, numbers in by_topic.items()
    )
    return _VERSION_0 + struct.pack(">i", len(by_topic)) + topics + _NO_USER_DATA


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Return the partitions that are assigned to a member, an empty list if `data` is malformed."""
    found: list[TopicPartition] = []
    try:
        (topics,) = struct.unpack_from(">i", data, 2)
        at = 6
        for _ in range(topics):
            name, at = _text_at(data, at)
            (count,) = struct.unpack_from(">i", data, at)
            found += [(name, number) for number in struct.unpack_from(f">{count}i", data, at + 4)]
            at += 4 + 4 * count
    except (struct.error, UnicodeDecodeError):
        return []
    return found


def assign_ranges(
    wanted: Mapping[str, Collection[str]], partitions: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Divide each topic into a range per subscribed member. `partitions` has each topic's partition count."""
    assigned: dict[str, list[TopicPartition]] = {member: [] for member in wanted}
    for topic, count in sorted(partitions.items()):
        members = sorted(member for member, topics in wanted.items() if topic in topics)
        first = 0
        for index, member in enumerate(members):
            share = count // len(members) + (index < count % len(members))
            assigned[member] += [(topic, number) for number in range(first, first + share)]
            first += share
    return assigned


def _text(name: str) -> bytes:
    data = name.encode()
    return struct.pack(">h", len(data)) + data


def _text_at(data: bytes, at: int) -> tuple[str, int]:
    """Return the text at a position, and the position after it."""
    (length,) = struct.unpack_from(">h", data, at)
    (name,) = struct.unpack_from(f">{length}s", data, at + 2)
    return name.decode(), at + 2 + length
