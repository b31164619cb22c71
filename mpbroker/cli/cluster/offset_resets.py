"""Where the committed offsets of a group are set to, without I/O.

(Kafka: ConsumerGroupCommand.resetOffsets)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mpbroker.cli.cluster.positions import Ends
from mpbroker.cli.errors import USAGE_ERROR, BadText, CliError, of_flag
from mpbroker.cli.text.numbers import parse_decimal
from mpbroker.cli.text.times import check_time, parse_duration, parse_time

# A group in one of these states has no members; offsets of others are theirs to commit.
INACTIVE = ("Empty", "Dead")


class Flags(NamedTuple):
    """The flags that say where to; exactly one of them is given."""

    to_earliest: bool = False
    to_latest: bool = False
    to_current: bool = False
    to_offset: int | None = None
    to_datetime: str | None = None
    by_duration: str | None = None
    shift_by: int | None = None
    from_file: Path | None = None


class Reset(NamedTuple):
    """Where to. `number`: of to-offset and shift-by, and for a time its milliseconds."""

    kind: str
    number: int = 0

    @property
    def time_ms(self) -> int | None:
        """Return the time whose offset must be asked for."""
        return self.number if self.kind == "to-datetime" else None


def parse(flags: Flags, now_ms: int) -> Reset:
    """Return what the flags ask for. Raises CliError unless it is one thing."""
    given = [name for name, value in flags._asdict().items() if value is not None and value is not False]
    names = [f"--{name.replace('_', '-')}" for name in (given or Flags._fields)]
    if len(given) != 1:
        why = "say where to, with one of" if not given else "these exclude each other:"
        raise CliError(f"{why} {', '.join(names)}", USAGE_ERROR)
    if flags.to_datetime is not None:
        return of_flag("--to-datetime", flags.to_datetime, to_datetime, now_ms)
    if flags.by_duration is not None:
        return of_flag("--by-duration", flags.by_duration, by_duration, now_ms)
    return Reset(names[0][2:], flags.to_offset or flags.shift_by or 0)


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


def parse_scope(texts: Sequence[str]) -> dict[str, list[int] | None]:
    """Return partitions by topic from what --topic was given. Raises CliError."""
    scope: dict[str, list[int] | None] = {}
    for text in texts:
        topic, numbers = of_flag("--topic", text, parse_topic)
        before = scope.get(topic, [])
        scope[topic] = None if numbers is None or before is None else sorted({*before, *numbers})
    return scope


def within(scope: Mapping[str, list[int] | None], places: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return those places that a scope has."""
    return [
        (topic, partition)
        for topic, partition in places
        if topic in scope and (scope[topic] is None or partition in (scope[topic] or []))
    ]
