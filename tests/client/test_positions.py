"""Places where a consumer begins."""

import pytest

from mpbroker.client.positions import Ends, parse_start


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", 10),
        ("end", 50),
        ("30", 30),
        ("-5", 45),
        ("-500", 10),
        ("+3", 13),
        ("+99", 50),
        ("@7", 20),
    ],
)
def test_places(text: str, position: int) -> None:
    assert parse_start(text, 0).within(Ends(10, 50, 20)) == position
