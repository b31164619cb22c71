"""Checks of `mpbroker doctor`: the result of one, and how it is written."""

from __future__ import annotations

from typing import Final, NamedTuple

OK: Final = "ok"
NOTE: Final = "note"
PROBLEM: Final = "problem"


class Check(NamedTuple):
    """The result of a check.

    `state` is ok, note (a broker runs, but …) or problem (it does not start, or fails soon). `advice` says
    what to do; it is empty if all is well.
    """

    name: str
    state: str
    found: str
    advice: str = ""


def failed(name: str, error: Exception, state: str = PROBLEM) -> Check:
    """Make a finding of an error. Its first sentence says what is wrong, the rest what to do."""
    found, _, advice = str(error).partition(". ")
    return Check(name, state, found, advice)
