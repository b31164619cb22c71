"""Both assignors against Apache Kafka's: the same members get the same partitions."""

from __future__ import annotations

from random import Random

import pytest

from mpbroker.coordinator.groups.consumer.assignors.assignors import ASSIGNORS
from mpbroker.coordinator.groups.consumer.assignors.group_spec import Assignment, GroupSpec
from mpbroker.protocol.uuids import uuid_text
from tests.support.assigned_groups import is_homogeneous, next_group, random_group, run, with_assigned
from tests.support.group_oracle import kafka_answers, partitions_from, partitions_json

pytestmark = pytest.mark.clients
HISTORIES = 250
CHANGES = 6


def case(assignor: str, spec: GroupSpec) -> dict[str, object]:
    return {
        "assignor": assignor,
        "homogeneous": is_homogeneous(spec),
        "topics": {uuid_text(topic): count for topic, count in spec.partitions.items()},
        "members": {
            member: {
                "instance": one.instance_id,
                "topics": [uuid_text(topic) for topic in sorted(one.topics)],
                "assigned": partitions_json(one.assigned),
            }
            for member, one in spec.subscribers.items()
        },
    }


def test_assignments_are_those_of_kafka() -> None:
    random = Random(848)
    asked: list[tuple[str, GroupSpec]] = []
    ours: list[dict[str, Assignment]] = []
    for _ in range(HISTORIES):
        for assignor in ASSIGNORS:
            spec = random_group(random)
            for _ in range(CHANGES):
                asked.append((assignor, spec))
                ours.append(run(assignor, spec))
                spec = next_group(random, with_assigned(spec, ours[-1]))
    answers = kafka_answers("assign", [case(*one) for one in asked])
    for (assignor, spec), found, answer in zip(asked, ours, answers, strict=True):
        theirs = {member: partitions_from(answer.get(member, {})) for member in spec.subscribers}
        assert found == theirs, (assignor, spec)
