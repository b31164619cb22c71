"""Values as short text for people, with units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from mpbroker.cli.text.sizes import decimal_size, scaled
from mpbroker.cli.top.columns import Kind
from mpbroker.client.group_descriptions import Member, places_text, subscription_text
from mpbroker.protocol.printable import printable

NOTHING: Final = "-"
BAR_CELLS: Final = 10
TREND_CELLS: Final = 12
_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
_LEFT_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_RIGHT: Final = frozenset(Kind) - {Kind.TEXT, Kind.STATE, Kind.BAR, Kind.TREND}


def is_right(kind: Kind) -> bool:
    """Return whether values of this kind are aligned to the right."""
    return kind in _RIGHT


def text_of(value: Any, kind: Kind) -> str:
    """Return a value as text. None is a dash, or empty for a bar or trend."""
    if kind is Kind.TREND:
        return trend(value or ())
    if kind is Kind.BAR:
        return "" if value is None else bar(value)
    if value is None or value == "":
        return NOTHING
    if kind in (Kind.TEXT, Kind.STATE):
        return printable(str(value))
    return _of_number(value, kind)


def member_text(member: Member) -> str:
    """Return what is known of a member of a group, as lines for people."""
    who = filter(None, (member.instance, member.client, member.host))
    about = [f"member {member.id} ({', '.join(who)})"]
    if member.epoch is not None:
        protocol = {True: "consumer", False: "classic", None: NOTHING}[member.is_upgraded]
        about += [f"epoch {member.epoch}, {member.state}; protocol {protocol}"]
        about += [f"subscribes to {subscription_text(member.topics, member.pattern) or NOTHING}"]
    about += [f"has {places_text(member.partitions) or NOTHING}"]
    if member.target is not None:
        about += [f"target {places_text(member.target) or NOTHING}"]
    return "\n  ".join(map(printable, about))


def _of_number(value: float, kind: Kind) -> str:
    if kind is Kind.BYTES:
        return decimal_size(value)
    if kind is Kind.BYTE_RATE:
        return f"{decimal_size(value)}/s"
    if kind is Kind.NUMBER:
        return str(int(value))
    if kind is Kind.PERCENT:
        return f"{value:.1f}"
    return short(value)


def short(value: float) -> str:
    """Return a number as text with at most three digits: 0.12, 4.5, 870, 12.3k."""
    if value == 0:
        return "0"
    if abs(value) < 10:
        return f"{value:.2f}" if abs(value) < 1 else f"{value:.1f}"
    number, unit = scaled(value)
    return f"{number:.0f}{unit}" if not unit or number >= 99.95 else f"{number:.1f}{unit}"


def duration(seconds: float) -> str:
    """Return a duration as text: 8 s, 3:04:05, 12 d 03:04."""
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours:02d}:{minutes:02d}"
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if whole >= 60 else f"{whole} s"


def bar(percent: float, cells: int = BAR_CELLS) -> str:
    """Return a percentage as a bar of `cells` characters."""
    eighths = round(min(max(percent, 0.0), 100.0) / 100 * cells * 8)
    # A small value is visible.
    eighths = max(eighths, int(percent > 0))
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_LEFT_EIGHTHS[rest] if rest else "")).ljust(cells)


def trend(values: Sequence[float], cells: int = TREND_CELLS) -> str:
    """Return a plot of the last values, newest at the right. The top eighth of each cell stays free."""
    last = values[-cells:]
    largest = max(last, default=0.0)
    return "".join(_EIGHTHS[_height(value, largest, 7)] for value in last).rjust(cells)


def _height(value: float, largest: float, full: int) -> int:
    if value <= 0 or largest <= 0:
        return 0
    return max(round(value / largest * full), 1)
