"""Numbers as people read them, and what is drawn with characters."""

from __future__ import annotations

import pytest

from mpbroker.cli.top.columns import Kind
from mpbroker.cli.top.text import bar, duration, text_of, trend


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (None, Kind.NUMBER, "-"),
        (None, Kind.BAR, ""),
        ("", Kind.STATE, "-"),
        ("a\x1b[31m", Kind.TEXT, "a\\x1b[31m"),
        (1234567, Kind.NUMBER, "1234567"),
        (0.0, Kind.RATE, "0"),
        (0.126, Kind.RATE, "0.13"),
        (4.52, Kind.RATE, "4.5"),
        (87.4, Kind.RATE, "87"),
        (12_345, Kind.RATE, "12.3k"),
        (999.7, Kind.RATE, "1.0k"),
        (123_456, Kind.RATE, "123k"),
        (870, Kind.BYTES, "870 B"),
        (1_234_567, Kind.BYTES, "1.2 MB"),
        (999_999, Kind.BYTES, "1.0 MB"),
        (123_456_789, Kind.BYTE_RATE, "123 MB/s"),
        (12.345, Kind.PERCENT, "12.3"),
    ],
)
def test_values(value: object, kind: Kind, expected: str) -> None:
    assert text_of(value, kind) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"), [(8.9, "8 s"), (60, "0:01:00"), (11_045, "3:04:05"), (90_061, "1 d 01:01")]
)
def test_durations(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


def test_bars_are_as_long_as_they_say_and_never_leave_their_place() -> None:
    assert [bar(percent, 4) for percent in (0, 0.1, 50, 56.25, 100, 250)] == [
        *("    ", "▏   ", "██  ", "██▎ ", "████", "████")
    ]


def test_trends_of_lines_below_each_other_do_not_touch() -> None:
    assert trend([0, 1, 50, 100], 6) == "   ▁▄▇"
    assert trend([3, 2, 2], 2) == "▇▇"
    assert trend([], 2) == "  "
