"""Topics as metadata describes them: partitions and their leaders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from mpbroker.client.errors import ClientError, InvalidArgument, without_leader
from mpbroker.protocol import messages as m
from mpbroker.protocol.topic_names import INTERNAL_TOPICS
from mpbroker.records.encode import murmur2

_Value = TypeVar("_Value")


class Partition(msgspec.Struct, frozen=True):
    """A partition in a Metadata response."""

    index: int
    leader: int
    replicas: list[int]
    isr: list[int]
    error_code: int


class Topic(msgspec.Struct, frozen=True):
    """A topic in a Metadata response, with its partitions in order."""

    name: str
    internal: bool
    partitions: list[Partition]
    error_code: int


def topic_of(topic: m.MetadataResponse.MetadataResponseTopic) -> Topic:
    """Convert a topic of a Metadata response into a Topic."""
    partitions = [
        Partition(part.partition_index, part.leader_id, part.replica_nodes, part.isr_nodes, part.error_code)
        for part in topic.partitions
    ]
    partitions.sort(key=lambda partition: partition.index)
    return Topic(topic.name or "", topic.is_internal, partitions, topic.error_code)


def no_partition(topic: Topic, number: int) -> str:
    """Return a text about a missing partition of a topic."""
    return f"topic {topic.name} has no partition {number}, only 0 to {len(topic.partitions) - 1}"


def partitions_of(topic: Topic, wanted: Sequence[int] | None = None) -> list[int]:
    """Return the wanted partitions, by default all. Raises InvalidArgument if a wanted one does not exist."""
    there = [partition.index for partition in topic.partitions]
    if missing := [number for number in wanted or () if number not in there]:
        raise InvalidArgument(no_partition(topic, missing[0]))
    return there if wanted is None else list(wanted)


def partition_for(key: bytes, partitions: int) -> int:
    """Return the partition of all records with this key (Kafka: BuiltInPartitioner.partitionForKey)."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def refuse_internal(names: Iterable[str]) -> None:
    """Raise InvalidArgument if an internal topic is to be deleted. A broker would not refuse that."""
    if own := sorted(INTERNAL_TOPICS.intersection(names)):
        raise InvalidArgument(
            f"{own[0]} is the broker's own topic: without it all groups' offsets or all transactions "
            "are lost. Nothing was deleted"
        )


def led(topic: Topic, partitions: Iterable[int], failed: list[ClientError]) -> list[int]:
    """Return the partitions except leaderless ones. Append an error to `failed` for each leaderless one."""
    leaders = {partition.index: partition.leader for partition in topic.partitions}
    offline = [number for number in partitions if leaders.get(number, 0) < 0]
    failed += [without_leader(topic.name, number) for number in offline]
    return [number for number in partitions if number not in offline]


def by_leader(topic: Topic, values: Mapping[int, _Value]) -> dict[int, dict[int, _Value]]:
    """Group the partitions' values by their leaders' ids. Raises InvalidArgument, ApiFailed."""
    leaders = {partition.index: partition.leader for partition in topic.partitions}
    split: dict[int, dict[int, _Value]] = {}
    for index, value in values.items():
        leader = leaders.get(index)
        if leader is None:
            raise InvalidArgument(no_partition(topic, index))
        if leader < 0:
            raise without_leader(topic.name, index)
        split.setdefault(leader, {})[index] = value
    return split
