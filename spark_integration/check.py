"""The result of a check of a host, by `mpbroker doctor` or `mpbroker doctor spark`."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class State(StrEnum):
    """The grade of a check. PROBLEM: something fails, now or soon. NOTE: it works, but not at its best."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


OK: Final = State.OK
NOTE: Final = State.NOTE
PROBLEM: Final = State.PROBLEM


class Check(NamedTuple):
    """The result of a check. `advice` is the remedy; it is empty if all is well."""

    name: str
    state: State
    found: str
    advice: str = ""


def failed(name: str, error: Exception, state: State = PROBLEM) -> Check:
    """Make a check's result from an error whose first sentence names the problem, and the rest the remedy."""
    found, _, advice = str(error).partition(". ")
    return Check(name, state, found, advice)
