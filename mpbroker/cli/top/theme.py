"""The colours of `mpbroker top`, dark and light."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from textual.theme import Theme

DARK: Final = Theme(
    name="mpbroker-dark",
    primary="#4fd1c5",
    secondary="#7aa2f7",
    accent="#f0b866",
    warning="#f0b866",
    error="#ff7a85",
    success="#7fd88f",
    foreground="#d5dce8",
    background="#10141b",
    surface="#151b24",
    panel="#1d2530",
    dark=True,
    variables={"quiet": "#75839a"},
)
LIGHT: Final = Theme(
    name="mpbroker-light",
    primary="#0b7a75",
    secondary="#3456c5",
    accent="#9a5b00",
    warning="#9a5b00",
    error="#c4202c",
    success="#1a7f37",
    foreground="#20262e",
    background="#fbfbf8",
    surface="#f2f3ef",
    panel="#e4e7e1",
    dark=False,
    variables={"quiet": "#66707c"},
)
_DARK_BACKGROUNDS: Final = frozenset("0123468")


def fitting(environ: Mapping[str, str]) -> str:
    """Return the theme for the terminal's background, which some terminals put into COLORFGBG."""
    background = environ.get("COLORFGBG", "").rpartition(";")[2]
    is_light = background.isdecimal() and background not in _DARK_BACKGROUNDS
    return LIGHT.name if is_light else DARK.name
