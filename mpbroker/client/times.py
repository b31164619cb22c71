"""Parses times and durations into ms, and formats times. No I/O; the current time is a parameter."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from mpbroker.client.errors import BadText, BadTime
from mpbroker.config.integers import LONG_MAX, parse_decimal

MS = 1000
_UNITS_MS = {"ms": 1, "s": MS, "m": 60 * MS, "h": 3600 * MS, "d": 86_400 * MS}
_EPOCH, _ONE_MS = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
# The last time that a date can have.
LAST_MS = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _ONE_MS
_SHORT = re.compile(r"(\d+)(ms|s|m|h|d)")
# java.time.Duration has no months and years, whose length is not fixed.
_ISO = re.compile(
    r"P(?:(?P<d>\d+)D)?(?:T(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:\.\d{1,9})?)S)?)?", re.IGNORECASE
)


def parse_duration(text: str) -> int:
    """Parse a duration: ISO 8601 as Kafka's tools take it (PT1H30M), or 90s, 15m, 2h, 7d. Raises BadText."""
    found: float | None = None
    if short := _SHORT.fullmatch(text):
        number = parse_decimal(short[1])
        found = math.inf if number is None else number * _UNITS_MS[short[2]]
    elif (iso := _ISO.fullmatch(text)) is not None and any(iso.groups()):
        found = sum(float(number or 0) * _UNITS_MS[unit] for unit, number in iso.groupdict().items())
    if found is not None and found > LONG_MAX:
        raise BadText(f"this is too long, it is at most {LONG_MAX} ms")
    if found is not None:
        return round(found)
    raise BadText("not a duration; write 90s, 15m, 2h, 7d or PT1H30M")


def in_ms(key: str, value: str) -> str:
    """Return a setting's value. If the setting is in ms, convert 15m, 1h or 7d to milliseconds."""
    if not key.endswith(".ms"):
        return value
    try:
        return str(parse_duration(value))
    except BadText:
        return value  # a number, or what the broker refuses


def parse_time(text: str, now_ms: int) -> int:
    """Parse a time: a date, date and time (UTC without a zone), ms since 1970, or -2h. Raises BadText."""
    if text.isdecimal():
        return check_time(parse_decimal(text))
    if text.startswith("-"):
        return check_time(now_ms - parse_duration(text[1:]))
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadTime(
            "not a time; write 2026-01-31T12:00:00 (or with +01:00 after it), a date, ms since 1970, "
            "or -2h for 2 hours ago"
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return check_time(round((found - _EPOCH) / _ONE_MS))


def check_time(time_ms: int | None) -> int:
    """Return the time. Raises BadText if it is None, too large, or negative (a special value in requests)."""
    if time_ms is None or not 0 <= time_ms <= LONG_MAX:
        raise BadText(f"a time is from 1970 on, and at most {LONG_MAX} ms after that")
    return time_ms


def format_time(time_ms: int) -> str:
    """Format a time in UTC for `parse_time`. Times after the year 9999 stay in ms; "-" if negative."""
    if time_ms < 0:
        return "-"
    if time_ms > LAST_MS:
        return str(time_ms)
    return (_EPOCH + time_ms * _ONE_MS).isoformat(timespec="milliseconds").replace("+00:00", "Z")
