"""Computes new committed offsets of groups (Kafka: ConsumerGroupCommand.resetOffsets)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from mpbroker.client import groups
from mpbroker.client.admin import Admin
from mpbroker.client.committed_offsets import has_members
from mpbroker.client.errors import ApiFailed, BadText, ClientError, FailedPrecondition
from mpbroker.client.positions import Ends
from mpbroker.client.times import check_time, parse_duration, parse_time
from mpbroker.client.topics import partitions_of
from mpbroker.config.integers import parse_decimal
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.topic_names import TopicPartition

# The members of a planned row.
FIELDS: Final = ("group", "topic", "partition", "committed", "new_offset")


class Reset(NamedTuple):
    """The offset to reset to. `number` is the value of to-offset or shift-by, or a time in ms."""

    kind: str
    number: int = 0

    @property
    def time_ms(self) -> int | None:
        """Return the time (ms) whose offset must be requested; None if no time was given."""
        return self.number if self.kind == "to-datetime" else None


def to_datetime(text: str, now_ms: int) -> Reset:
    """Return the reset to the first record at or after a time. Raises BadText."""
    return Reset("to-datetime", parse_time(text, now_ms))


def by_duration(text: str, now_ms: int) -> Reset:
    """Return the reset to the time `now_ms` minus the duration `text`. Raises BadText."""
    return Reset("to-datetime", check_time(now_ms - parse_duration(text)))


def target(reset: Reset, ends: Ends, committed: int | None) -> tuple[int | None, str]:
    """Return a partition's new offset (None: no committed offset to shift) and a remark or ""."""
    match reset.kind:
        case "to-earliest":
            return ends.start, ""
        case "to-latest":
            return ends.end, ""
        case "to-current" if committed is None:
            return ends.end, "nothing is committed: set to the end"
        case "to-current":
            return committed, ""
        case "to-datetime" if ends.at_time is None:
            return ends.end, "no record is that late: set to the end"
        case "to-datetime":
            return ends.at_time, ""
        case "shift-by" if committed is None:
            return None, "nothing is committed that could be shifted"
        case "shift-by":
            assert committed is not None
            return _within(ends, committed + reset.number)
        case _:
            return _within(ends, reset.number)


def _within(ends: Ends, wanted: int) -> tuple[int, str]:
    if wanted < ends.start:
        return ends.start, f"{wanted:,} is before the log start offset: set to {ends.start:,}"
    if wanted > ends.end:
        return ends.end, f"{wanted:,} is beyond the log end offset: set to {ends.end:,}"
    return wanted, ""


def parse_topic(text: str) -> tuple[str, list[int] | None]:
    """Parse TOPIC or TOPIC:0,1; return topic and partitions (None: all partitions). Raises BadText."""
    topic, colon, numbers = text.partition(":")
    wanted = [number.strip() for number in numbers.split(",")] if colon else []
    if not topic or not all(parse_decimal(number) is not None for number in wanted):
        raise BadText("this is not TOPIC or TOPIC:0,1,2")
    return topic, [int(number) for number in wanted] if colon else None


class TopicScope(NamedTuple):
    """The partitions to reset. `named[topic]` None: the whole topic. `named` None: all topics."""

    named: Mapping[str, list[int] | None] | None

    def of_offsets(self, committed: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Return the partitions in scope that have a committed offset."""
        return sorted(place for place in committed if self._has(*place))

    def _has(self, topic: str, number: int) -> bool:
        numbers = None if self.named is None else self.named.get(topic, [])
        return numbers is None or number in numbers

    def of_topics(self, admin: Admin, committed: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Return the named partitions, or if `named` is None, those that have a committed offset."""
        return sorted(committed) if self.named is None else _there(admin, self.named)


def _there(admin: Admin, named: Mapping[str, list[int] | None]) -> list[TopicPartition]:
    """Return partitions (`named[topic]` None: the whole topic). Raises InvalidArgument, ApiFailed."""
    places = []
    for name, numbers in named.items():
        places += [(name, number) for number in partitions_of(admin.topic(name), numbers)]
    return places


class ResetPlan(NamedTuple):
    """A plan: apply `reset` to all partitions of `scope`, or set `offsets` (by group), read from `file`."""

    reset: Reset
    scope: TopicScope | None = None
    offsets: Mapping[str, Mapping[TopicPartition, int]] | None = None
    file: str = ""

    def resets(
        self, admin: Admin, group: str, committed: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Reset]:
        """Return the reset of each partition of a group. Raises InvalidArgument, ApiFailed."""
        if self.scope is not None:
            return dict.fromkeys(self.scope.of_topics(admin, committed), self.reset)
        offsets = (self.offsets or {}).get(group, {})
        named: dict[str, list[int] | None] = {
            topic: sorted(number for one, number in offsets if one == topic) for topic, _ in sorted(offsets)
        }
        return {place: Reset("to-offset", offsets[place]) for place in _there(admin, named)}


def plan_resets(
    admin: Admin, name: str, plan: ResetPlan, rows: list[dict[str, Any]], say: Callable[[str], None]
) -> dict[TopicPartition, int] | None:
    """Return a group's new offsets (None: nothing to reset); append a row for each. Raises ClientError."""
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
            offset, remark = target(resets[place], ends, committed.get(place))
            if remark:
                say(f"group {name}, {topic_name}-{number}: {remark}")
            if offset is not None:
                offsets[place] = offset
                cells = (name, *place, committed.get(place), offset)
                rows.append(dict(zip(FIELDS, cells, strict=True)))
    return offsets


def _check_inactive(admin: Admin, name: str) -> None:
    """Raise FailedPrecondition if the group exists and has members: they would commit other offsets."""
    try:
        group = groups.describe(admin, name)
    except ApiFailed as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return
    if group.state not in groups.INACTIVE:
        raise FailedPrecondition(
            f"group {name} is active ({group.state}, {len(group.members)} member(s)): "
            "stop its consumers first, and wait until its state is Empty"
        )


def explained(name: str, error: ApiFailed) -> ClientError:
    """Return the error of a failed commit: FailedPrecondition if members have joined the group meanwhile."""
    if has_members(error):
        return FailedPrecondition(
            f"group {name} has got members meanwhile, nothing was set: stop its consumers first"
        )
    return error
