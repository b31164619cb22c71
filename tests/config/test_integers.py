"""Numbers that users write."""

import pytest

from mpbroker.config.integers import LONG_MAX, parse_decimal


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("007", 7),
        ("0" * 5000 + "7", 7),
        (str(LONG_MAX), LONG_MAX),
        (str(LONG_MAX + 1), None),
        ("9" * 5000, None),
        ("", None),
        ("-1", None),
        ("1.5", None),
    ],
)
def test_decimals(text: str, number: int | None) -> None:
    assert parse_decimal(text) == number
