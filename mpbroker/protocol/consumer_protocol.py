"""The formats that members of consumer groups share with the broker: subscriptions and assignments.

Clients of the classic protocol write subscriptions and assignments into requests, and the broker writes them
into records. (Kafka: ConsumerProtocol, ConsumerProtocolSubscription, ConsumerProtocolAssignment, versions
0-3.) All begin with a version. A later version only appends fields.

    subscription   version i16 | topics | user data | v1+: owned partitions | v2+: generation i32 | v3+: rack
    assignment     version i16 | topics with their partitions | user data
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from mpbroker.protocol.wire import REPLACED, MalformedMessage

CONSUMER_PROTOCOL: Final = "consumer"
"""The protocol type of consumers in groups. Others have subscriptions and assignments of their own."""
# The types of groups in ListGroups.
CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
# The types of members in ConsumerGroupDescribe: which protocol they use.
CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1
# The member id of a client that has none yet.
NO_MEMBER: Final = ""
# The epoch of a static member that has left for a while, and keeps its partitions.
STATIC_LEAVE_EPOCH: Final = -2
VERSION_WITH_OWNED: Final = 1
VERSION_WITH_GENERATION: Final = 2
VERSION_WITH_RACK: Final = 3
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_NO_USER_DATA: Final = _INT.pack(-1)

Parts = Mapping[str, frozenset[int]]
"""Partition numbers by topic."""


class Subscription(NamedTuple):
    """What a member subscribes to, and the partitions that it has: `owned`, which is empty in version 0."""

    topics: frozenset[str]
    owned: Parts
    rack_id: str | None


class _Reader:
    """Reads fields one after the other. Raises struct.error at the end of the data."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def i16(self) -> int:
        (value,) = _SHORT.unpack_from(self._data, self._at)
        self._at += _SHORT.size
        return int(value)

    def i32(self) -> int:
        (value,) = _INT.unpack_from(self._data, self._at)
        self._at += _INT.size
        return int(value)

    def text(self) -> str | None:
        """Read a text; None if it is null."""
        length = self.i16()
        if length < 0:
            return None
        (data,) = struct.unpack_from(f"{length}s", self._data, self._at)
        self._at += length
        return bytes(data).decode("utf-8", REPLACED)

    def skip_bytes(self) -> int:
        """Skip bytes that have their length before them. Return the length, 0 if they are null."""
        length = max(self.i32(), 0)
        self._at += length
        return length

    def name(self) -> str:
        """Read a text that must not be null. Raises MalformedMessage."""
        name = self.text()
        if name is None:
            raise MalformedMessage("a name is null")
        return name

    def topics(self, most: int) -> list[str]:
        """Read an array of topic names. Raises MalformedMessage if they are more than `most`."""
        count = self.i32()
        if count < 0:
            raise MalformedMessage(f"{count} topics are no number of topics")
        if count > most:
            raise MalformedMessage(f"it has {count} topics, more than {most}")
        return [self.name() for _ in range(count)]

    def parts(self) -> Parts:
        found: dict[str, set[int]] = {}
        for _ in range(self.i32()):
            topic, count = self.name(), self.i32()
            numbers = struct.unpack_from(f">{count}i", self._data, self._at)
            self._at += _INT.size * count
            found.setdefault(topic, set()).update(numbers)
        return {topic: frozenset(numbers) for topic, numbers in found.items()}


def version_of(data: bytes) -> int:
    """Return the version of a subscription, 0 if it is malformed."""
    return max(int.from_bytes(data[: _SHORT.size], signed=True), 0)


def decode_subscription(data: bytes) -> Subscription:
    """Return a subscription. Raises MalformedMessage."""
    try:
        reader = _Reader(data)
        version = _checked(reader.i16())
        topics = frozenset(reader.topics(sys.maxsize))
        reader.skip_bytes()
        owned = reader.parts() if version >= VERSION_WITH_OWNED else {}
        if version >= VERSION_WITH_GENERATION:
            reader.i32()
        rack_id = reader.text() if version >= VERSION_WITH_RACK else None
    except struct.error as error:
        raise MalformedMessage(f"a subscription is cut off: {error}") from error
    return Subscription(topics, owned, rack_id)


def decode_topics(data: bytes, most: int = sys.maxsize) -> list[str]:
    """Return the topics of a subscription, and read no more of it.

    Raises MalformedMessage, also if they are more than `most`.
    """
    try:
        reader = _Reader(data)
        _checked(reader.i16())
        return reader.topics(most)
    except struct.error as error:
        raise MalformedMessage(f"a subscription is cut off: {error}") from error


def decode_assignment(data: bytes) -> tuple[Parts, int]:
    """Return the partitions of an assignment and the size of its user data. Raises MalformedMessage."""
    try:
        reader = _Reader(data)
        _checked(reader.i16())
        return reader.parts(), reader.skip_bytes()
    except struct.error as error:
        raise MalformedMessage(f"an assignment is cut off: {error}") from error


def _checked(version: int) -> int:
    if version < 0:
        raise MalformedMessage(f"version {version} does not exist")
    return version


def encode_subscription(topics: Collection[str]) -> bytes:
    """Return a subscription of version 0, which every client reads."""
    return _SHORT.pack(0) + _INT.pack(len(topics)) + b"".join(map(_text, topics)) + _NO_USER_DATA


def encode_assignment(version: int, parts: Mapping[str, Collection[int]]) -> bytes:
    """Return an assignment without user data."""
    data = bytearray(_SHORT.pack(version) + _INT.pack(len(parts)))
    for topic, numbers in parts.items():
        data += _text(topic) + _INT.pack(len(numbers))
        data += struct.pack(f">{len(numbers)}i", *sorted(numbers))
    return bytes(data + _NO_USER_DATA)


def _text(name: str) -> bytes:
    data = name.encode()
    return _SHORT.pack(len(data)) + data
