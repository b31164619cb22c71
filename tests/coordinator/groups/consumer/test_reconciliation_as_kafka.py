"""A step towards the target against Apache Kafka's CurrentAssignmentBuilder, in random situations."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, NamedTuple

import pytest

from mpbroker.coordinator.groups.consumer.group import ConsumerGroup, Member
from mpbroker.coordinator.groups.consumer.reconciliation import CurrentAssignmentBuilder
from mpbroker.coordinator.groups.consumer.records import (
    CurrentAssignment,
    EpochAssignment,
    MemberState,
)
from mpbroker.coordinator.groups.member_memory import MemberMemory
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.uuids import uuid_bytes, uuid_text
from tests.support.group_oracle import kafka_answers, partitions_json

pytestmark = pytest.mark.clients
CASES = 5_000
TOPICS = [bytes([*[1] * 15, number]) for number in range(3)]
PARTITIONS = [(topic, number) for topic in TOPICS for number in range(3)]
MEMBER_ID = "member"


class Situation(NamedTuple):
    builder: CurrentAssignmentBuilder
    subscription_changed: bool


def some(random: Random, partitions: list[tuple[bytes, int]]) -> list[tuple[bytes, int]]:
    share = random.choice((0, 0.5, 0.9, 1))
    return [one for one in partitions if random.random() < share]


def by_topic(partitions: list[tuple[bytes, int]]) -> dict[bytes, frozenset[int]]:
    topics = {topic for topic, _ in partitions}
    return {topic: frozenset(number for one, number in partitions if one == topic) for topic in topics}


def with_epochs(random: Random, partitions: list[tuple[bytes, int]], epoch: int) -> EpochAssignment:
    return {
        topic: {number: random.randint(1, epoch) for number in numbers}
        for topic, numbers in by_topic(partitions).items()
    }


def situation(random: Random) -> Situation:
    """Make a member and a target. Its partitions, those of others and free ones are mixed at random."""
    state, epoch = random.choice(list(MemberState)), random.randint(1, 9)
    weights = [random.randint(0, 3) for _ in range(3)] + [1]
    holders = {
        one: random.choices(("assigned", "revoking", "other", "free"), weights)[0] for one in PARTITIONS
    }
    if state not in (MemberState.UNREVOKED_PARTITIONS, MemberState.UNKNOWN):
        holders = {one: "free" if holder == "revoking" else holder for one, holder in holders.items()}
    held = {
        holder: [one for one in PARTITIONS if holders[one] == holder] for holder in ("assigned", "revoking")
    }
    group = ConsumerGroup("group", MemberMemory())
    for (topic, number), holder in holders.items():
        if holder != "free":
            group.owners.setdefault(topic, {})[number] = "other" if holder == "other" else MEMBER_ID
    current = CurrentAssignment(
        epoch,
        random.randint(0, epoch),
        state,
        with_epochs(random, held["assigned"], epoch),
        with_epochs(random, held["revoking"], epoch),
    )
    known = held["assigned"] + held["revoking"]
    owned = random.choice((None, by_topic(some(random, known)), by_topic(held["assigned"]), {}))
    builder = CurrentAssignmentBuilder(
        group,
        Member(MEMBER_ID, current=current),
        epoch + random.choice((0, 1, 5)),
        by_topic(some(random, random.choice((PARTITIONS, known)))),
        frozenset(random.sample(TOPICS, random.randint(0, len(TOPICS)))),
        owned,
    )
    return Situation(builder, random.random() < 0.5)


def epochs_json(assignment: EpochAssignment) -> dict[str, dict[int, int]]:
    return {uuid_text(topic): dict(epochs) for topic, epochs in assignment.items()}


def epochs_from(found: Mapping[str, Mapping[str, int]]) -> dict[bytes, dict[int, int]]:
    return {
        uuid_bytes(topic): {int(number): epoch for number, epoch in epochs.items()}
        for topic, epochs in found.items()
    }


def case(asked: Situation) -> dict[str, Any]:
    builder = asked.builder
    current = builder.member.current
    return {
        "state": current.state.name,
        "epoch": current.epoch,
        "previous": current.previous_epoch,
        "assigned": epochs_json(current.assigned),
        "revoking": epochs_json(current.revoking),
        "target_epoch": builder.target_epoch,
        "target": partitions_json(builder.target),
        "topics": [uuid_text(topic) for topic in builder.topics],
        "changed": asked.subscription_changed,
        "owned": None if builder.owned is None else partitions_json(builder.owned),
        "owners": epochs_json(
            {topic: dict.fromkeys(numbers, current.epoch) for topic, numbers in builder.group.owners.items()}
        ),
    }


def ours(asked: Situation) -> CurrentAssignment | ErrorCode:
    try:
        return asked.builder.build(subscription_changed=asked.subscription_changed)
    except ApiError as error:
        return error.code


def theirs(answer: dict[str, Any]) -> CurrentAssignment | ErrorCode:
    if "error" in answer:
        assert answer == {"error": "FencedMemberEpochException"}
        return ErrorCode.FENCED_MEMBER_EPOCH
    return CurrentAssignment(
        answer["epoch"],
        answer["previous"],
        MemberState[answer["state"]],
        epochs_from(answer["assigned"]),
        epochs_from(answer["revoking"]),
    )


def test_steps_are_those_of_kafka() -> None:
    random = Random(848)
    asked = [situation(random) for _ in range(CASES)]
    for one, answer in zip(asked, kafka_answers("reconcile", map(case, asked)), strict=True):
        assert ours(one) == theirs(answer), case(one)
