"""Times and durations as flags have them, in milliseconds. Without I/O; the clock is given."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from mpbroker.cli.errors import USAGE_ERROR, CliError

MS = 1000
_UNITS_MS = {"ms": 1, "s": MS, "m": 60 * MS, "h": 3600 * MS, "d": 86_400 * MS}
_SHORT = re.compile(r"(\d+)(ms|s|m|h|d)")
# java.time.Duration has no months and years, whose length is not fixed.
_ISO = re.compile(
    r"P(?:(?P<d>\d+)D)?(?:T(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:\.\d{1,9})?)S)?)?", re.IGNORECASE
)


def parse_duration(flag: str, text: str) -> int:
    """Return a duration: ISO 8601 as Kafka's tools take it (PT1H30M, P7D), or 90s, 15m, 2h, 7d.

    Raises CliError.
    """
    if short := _SHORT.fullmatch(text):
        return int(short[1]) * _UNITS_MS[short[2]]
    iso = _ISO.fullmatch(text)
    if iso is not None and any(iso.groups()):
        return round(sum(float(number or 0) * _UNITS_MS[unit] for unit, number in iso.groupdict().items()))
    raise CliError(f"{flag} {text}: this is no duration; write 90s, 15m, 2h, 7d or PT1H30M", USAGE_ERROR)


def parse_time(flag: str, text: str, now_ms: int) -> int:
    """Return a time since the epoch: a date, a date and a time, ms since the epoch, or -2h for 2 hours ago.

    Without a zone it is UTC, as in Kafka's tools (Utils.getDateTime). Raises CliError.
    """
    if text.isdecimal():
        return int(text)
    if text.startswith("-"):
        return now_ms - parse_duration(flag, text[1:])
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise CliError(
            f"{flag} {text}: this is no time; write 2026-01-31T12:00:00 (UTC; or with +01:00 behind it), "
            "a date, ms since 1970, or -2h for 2 hours ago",
            USAGE_ERROR,
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return round(found.timestamp() * MS)


def format_time(time_ms: int) -> str:
    """Return a time in UTC as `parse_time` reads it; - for none."""
    if time_ms < 0:
        return "-"
    return datetime.fromtimestamp(time_ms / MS, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
