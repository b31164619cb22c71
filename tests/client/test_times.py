"""Times and durations as users write them."""

import pytest

from mpbroker.client.errors import BadText
from mpbroker.client.times import format_time, parse_duration, parse_time

NOON_MS = 1_769_860_800_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-31T12:00:00", NOON_MS),
        ("2026-01-31T12:00:00.250Z", NOON_MS + 250),
        ("2026-01-31T13:00:00+01:00", NOON_MS),
        ("2026-01-31", NOON_MS - 12 * 3_600_000),
        (str(NOON_MS), NOON_MS),
        ("-2h", 7_200_000 * 4),
    ],
)
def test_times(text: str, expected: int) -> None:
    assert parse_time(text, 7_200_000 * 5) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("250ms", 250), ("90s", 90_000), ("7d", 604_800_000), ("PT1H30M", 5_400_000), ("P1DT0.5S", 86_400_500)],
)
def test_durations(text: str, expected: int) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "P", "PT", "1", "-1h", "P1M", "1w", "PT1.5H"])
def test_no_durations(text: str) -> None:
    with pytest.raises(BadText, match="not a duration; write"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "noon", "-", "2026-13-01", "12:00"])
def test_no_times(text: str) -> None:
    with pytest.raises(BadText, match=r"^not a "):
        parse_time(text, 0)


def test_times_are_read_as_they_are_written() -> None:
    assert format_time(NOON_MS + 7) == "2026-01-31T12:00:00.007Z"
    assert parse_time(format_time(NOON_MS + 7), 0) == NOON_MS + 7
    assert format_time(-1) == "-"


def test_a_time_behind_all_dates_stays_a_number() -> None:
    last = format_time(253_402_300_799_999)
    assert last == "9999-12-31T23:59:59.999Z"
    assert format_time(parse_time(last, 0)) == last
    assert format_time(253_402_300_800_000) == "253402300800000"
    assert format_time((1 << 63) - 1) == str((1 << 63) - 1)


@pytest.mark.parametrize(
    "text", ["1969-12-31T23:59:59.998Z", "0001-01-01", "-1d", str(1 << 63), "-9999999999999999d"]
)
def test_times_that_no_request_has(text: str) -> None:
    """To a broker -1 and -2 ms are the latest and the earliest offset."""
    with pytest.raises(BadText, match=r"a time is from 1970 on|this is too long"):
        parse_time(text, 5)
