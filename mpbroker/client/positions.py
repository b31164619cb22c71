"""The offsets at which a consumer begins and ends in each partition, without I/O.

A place is written as in rpk and kcat: beginning, end, an offset, -N (the last N records), +N (after the first
N records), @TIME (the first record at or after a time).
"""

from __future__ import annotations

from typing import NamedTuple

from mpbroker.client.errors import BadText
from mpbroker.client.times import parse_time
from mpbroker.config.integers import parse_decimal
from mpbroker.protocol.numbers import HIGH_WATERMARK


class Ends(NamedTuple):
    """A partition's start and end offset, and the first offset at or after a time (None: no such record)."""

    start: int
    end: int
    at_time: int | None = None


class Start(NamedTuple):
    """A place to begin. `number` is an offset, a number of records, or a time in ms."""

    kind: str
    number: int = 0

    @property
    def time_ms(self) -> int | None:
        """Return the time (ms) whose offset must be requested; None if no time was given."""
        return self.number if self.kind == "time" else None

    def within(self, ends: Ends) -> int:
        """Return the place's offset in a partition. An explicit offset may be out of the log's range."""
        match self.kind:
            case "beginning":
                return ends.start
            case "end":
                return ends.end
            case "last":
                return max(ends.start, ends.end - self.number)
            case "after first":
                return min(ends.end, ends.start + self.number)
            case "time":
                return ends.end if ends.at_time is None else ends.at_time
            case _:
                return self.number


def parse_before(text: str) -> int:
    """Parse the offset of a DeleteRecords request: a number, or latest (returned as -1). Raises BadText."""
    offset = HIGH_WATERMARK if text == "latest" else parse_decimal(text)
    if offset is None:
        raise BadText("write an offset, or latest")
    return offset


BEGINNING, END = Start("beginning"), Start("end")


def parse_start(text: str, now_ms: int) -> Start:
    """Return the place that a text names. Raises BadText."""
    if text in ("beginning", "earliest", "start"):
        return BEGINNING
    if text in ("end", "latest"):
        return END
    if text.startswith("@"):
        return Start("time", parse_time(text[1:], now_ms))
    if (offset := parse_decimal(text)) is not None:
        return Start("offset", offset)
    if text[:1] in ("-", "+") and (distance := parse_decimal(text[1:])) is not None:
        return Start("last" if text[0] == "-" else "after first", distance)
    raise BadText("write beginning, end, an offset, -N for the last N records, +N or @TIME")
