"""Limits of the numbers in flags: they must fit the fields of a request. Without I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from mpbroker.config.integers import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN

SHORT_MIN, SHORT_MAX = -(2**15), 2**15 - 1
# Times in requests are 32 bits of milliseconds.
SECONDS_MAX = INT_MAX // 1000


def limited_to(low: float, high: float) -> Callable[[Any], Any]:
    """Return a callback that refuses numbers outside [low, high], and nan, which Typer's limits accept."""

    def check(given: Any) -> Any:
        for number in given if isinstance(given, (list, tuple)) else [given]:
            if number is not None and not low <= number <= high:
                raise typer.BadParameter(f"{number} is not from {low} to {high}.")
        return given

    return check


PARTITION = limited_to(0, INT_MAX)
PARTITION_OR_ALL = limited_to(-1, INT_MAX)
INT = limited_to(INT_MIN, INT_MAX)
LONG = limited_to(LONG_MIN, LONG_MAX)
SHORT = limited_to(SHORT_MIN, SHORT_MAX)
SECONDS = limited_to(0, SECONDS_MAX)
