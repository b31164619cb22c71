"""Texts for the log, made from names that clients choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

NAMES_SHOWN_MAX: Final = 10
NAME_SHOWN_MAX: Final = 255


def shown(names: Sequence[str]) -> str:
    """Return names as a text for a log, shortened, because clients choose their number and length."""
    text = ", ".join(f"{name:.{NAME_SHOWN_MAX}}" for name in names[:NAMES_SHOWN_MAX])
    more = len(names) - NAMES_SHOWN_MAX
    return f"{text} and {more} more" if more > 0 else text
