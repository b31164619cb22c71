"""Where the committed offsets of a group are set to, without I/O.

(Kafka: ConsumerGroupCommand.resetOffsets)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mpbroker.client.errors import BadText
from mpbroker.client.positions import Ends
from mpbroker.client.times import check_time, parse_duration, parse_time
from mpbroker.config.integers import parse_decimal


class Reset(NamedTuple):
    """Where to. `number`: of to-offset and shift-by, and for a time its milliseconds."""

    kind: str
    number: int = 0

    @property
    def time_ms(self) -> int | None:
        """Return the time whose offset must be asked for."""
        return self.number if self.kind == "to-datetime" else None


def to_datetime(text: str, now_ms: int) -> Reset:
    """Return the reset to a time. Raises BadText."""
    return Reset("to-datetime", parse_time(text, now_ms))


def by_duration(text: str, now_ms: int) -> Reset:
    """Return the reset to a time so long ago. Raises BadText."""
    return Reset("to-datetime", check_time(now_ms - parse_duration(text)))


def target(reset: Reset, ends: Ends, committed: int | None) -> tuple[int | None, str]:
    """Return the new offset of a partition, and what is to be said of it: "" if nothing.

    The offset is None if there is none to shift; it is never outside of what the partition has.
    """
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
    """Return topic and partitions from TOPIC or TOPIC:0,1; None stands for all. Raises BadText."""
    topic, colon, numbers = text.partition(":")
    wanted = [number.strip() for number in numbers.split(",")] if colon else []
    if not topic or not all(parse_decimal(number) is not None for number in wanted):
        raise BadText("this is not TOPIC or TOPIC:0,1,2")
    return topic, [int(number) for number in wanted] if colon else None


def within(scope: Mapping[str, list[int] | None], places: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return those places that a scope has."""
    return [
        (topic, partition)
        for topic, partition in places
        if topic in scope and (scope[topic] is None or partition in (scope[topic] or []))
    ]
