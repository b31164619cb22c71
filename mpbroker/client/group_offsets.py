"""Plans new committed offsets of groups without members (Kafka: ConsumerGroupCommand.resetOffsets)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from mpbroker.client import groups
from mpbroker.client.admin import Admin
from mpbroker.client.consumer_protocol import TopicPartition
from mpbroker.client.errors import ApiFailed, ClientError, FailedPrecondition
from mpbroker.client.offset_resets import Reset, target, within
from mpbroker.client.topics import partitions_of
from mpbroker.protocol.errors import ErrorCode

# The names of what is planned for a partition.
FIELDS: Final = ("group", "topic", "partition", "committed", "new_offset")


class TopicScope(NamedTuple):
    """Partitions by topic, where None stands for all of them; None for all topics."""

    named: Mapping[str, list[int] | None] | None

    def of_offsets(self, committed: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Return those that have a committed offset."""
        return sorted(committed if self.named is None else within(self.named, committed))

    def of_topics(self, admin: Admin, committed: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Return all that are named, whether an offset is committed or not."""
        return sorted(committed) if self.named is None else _there(admin, self.named)


def _there(admin: Admin, named: Mapping[str, list[int] | None]) -> list[TopicPartition]:
    """Return partitions that are named; None stands for all of a topic. Raises InvalidArgument, ApiFailed."""
    places = []
    for name, numbers in named.items():
        places += [(name, number) for number in partitions_of(admin.topic(name), numbers)]
    return places


class ResetPlan(NamedTuple):
    """Where offsets are to be set: everywhere in `scope` in one way, or by `offsets`, which `file` has."""

    reset: Reset
    scope: TopicScope | None = None
    offsets: Mapping[str, Mapping[TopicPartition, int]] | None = None
    file: str = ""

    def resets(
        self, admin: Admin, group: str, committed: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Reset]:
        """Return where each partition of a group is to be set. Raises InvalidArgument, ApiFailed."""
        if self.scope is not None:
            return dict.fromkeys(self.scope.of_topics(admin, committed), self.reset)
        offsets = (self.offsets or {}).get(group, {})
        named: dict[str, list[int] | None] = {
            topic: sorted(number for one, number in offsets if one == topic) for topic, _ in sorted(offsets)
        }
        return {place: Reset("to-offset", offsets[place]) for place in _there(admin, named)}


def planned(
    admin: Admin, name: str, plan: ResetPlan, rows: list[dict[str, Any]], say: Callable[[str], None]
) -> dict[TopicPartition, int] | None:
    """Return the new offsets of a group, and add a row for each; None if nothing is known of it.

    `say` is told where an offset is not the one that was wanted. Raises FailedPrecondition for a group with
    members.
    """
    _check_inactive(admin, name)
    committed = groups.committed(admin, name)
    resets = plan.resets(admin, name, committed)
    if not resets:
        return None
    offsets = {}
    for topic_name in dict.fromkeys(topic for topic, _ in resets):
        numbers = [number for topic, number in resets if topic == topic_name]
        found = admin.ends(admin.topic(topic_name), numbers, plan.reset.time_ms)
        for number, ends in found.items():
            place = topic_name, number
            offset, said = target(resets[place], ends, committed.get(place))
            if said:
                say(f"group {name}, {topic_name}-{number}: {said}")
            if offset is not None:
                offsets[place] = offset
                cells = (name, *place, committed.get(place), offset)
                rows.append(dict(zip(FIELDS, cells, strict=True)))
    return offsets


def _check_inactive(admin: Admin, name: str) -> None:
    """Refuse a group whose members would commit over what is set. One that does not exist yet is fine."""
    try:
        group = groups.describe(admin, name)
    except ApiFailed as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return
    if group.state not in groups.INACTIVE:
        raise FailedPrecondition(
            f"group {name} is active ({group.state}, {len(group.members)} member(s)): "
            f"stop its consumers first, and wait until mpbroker group describe {name} shows it Empty"
        )


def explained(name: str, error: ApiFailed) -> ClientError:
    """Return what an error of a commit means if it is about members that a group has got meanwhile."""
    if error.code in (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
    ):
        return FailedPrecondition(
            f"group {name} has got members meanwhile, nothing was set: stop its consumers first"
        )
    return error
