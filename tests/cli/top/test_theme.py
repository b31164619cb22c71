"""Dark or light, by what the terminal says of itself."""

from __future__ import annotations

import pytest

from mpbroker.cli.top.theme import DARK, LIGHT, fitting


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, DARK),
        ({"COLORFGBG": "15;0"}, DARK),
        ({"COLORFGBG": "0;15"}, LIGHT),
        ({"COLORFGBG": "0;default;15"}, LIGHT),
        ({"COLORFGBG": "12;8"}, DARK),
        ({"COLORFGBG": "0;7"}, LIGHT),
        ({"COLORFGBG": "default;default"}, DARK),
    ],
)
def test_the_theme_fits_the_background(environ: dict[str, str], expected: object) -> None:
    assert fitting(environ) == expected.name
