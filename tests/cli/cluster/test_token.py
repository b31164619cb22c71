"""Times of delegation tokens as they are printed."""

import pytest

from mpbroker.cli.cluster import token


@pytest.mark.parametrize(
    ("at_ms", "text"),
    [
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "never"),
        (1_769_860_800_250, "2026-01-31T12:00:00.250Z"),
    ],
)
def test_a_time_is_one_of_the_house_or_never(at_ms: int, text: str) -> None:
    assert token._time(at_ms) == text
