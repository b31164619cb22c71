"""How long tests wait, and for what."""

from __future__ import annotations

import os
import random
import select
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from mpbroker.ipc.hangs import Patience

# After so long a test hangs. Nothing else may depend on it: a loaded machine is slow, not wrong.
PATIENCE_S = 120
TRIES = 30
# A wait that is over so soon never sleeps; a long one leaves nearly all of a processor to those it waits for.
SHORT_S = 0.002
PAUSE_MAX_S = 0.05

T = TypeVar("T")
Step = Callable[[], object]


class Late(AssertionError):
    """What a test waited for did not come."""


def until(holds: Callable[[], T], what: str | Callable[[], str], step: Step | None = None) -> T:
    """Go on until it holds, a step at a time; return what `holds` returned. Raises Late, which says `what`.

    Without a step of its own it leaves the processor to others, for longer the longer it has waited.
    `what` may be a function, which is called only if the wait fails. What counts is the time in which it
    looks: it may be stopped for a while, with all that it waits for.
    """
    patience = Patience(PATIENCE_S)
    begun = time.monotonic()
    while not (found := holds()):
        if patience.is_over():
            raise Late(f"not within {PATIENCE_S} s: {what if isinstance(what, str) else what()}")
        if step is None:
            _pause(time.monotonic() - begun)
        else:
            step()
    return found


def comes(holds: Callable[[], object]) -> bool:
    """Wait as `until` does; return False where that raises Late."""
    try:
        until(holds, "")
    except Late:
        return False
    return True


def _pause(waited_s: float) -> None:
    """Let others run, so that a short wait ends on time; then sleep for a 16th of what it took so far."""
    if waited_s < SHORT_S:
        os.sched_yield()
    else:
        time.sleep(min(waited_s / 16, PAUSE_MAX_S))  # noqa: TID251


def random_moment(chance: random.Random, within_s: float) -> None:
    """Return at a random moment: faults come when nobody expects them. It is no way to wait for anything."""
    time.sleep(chance.uniform(0, within_s))  # noqa: TID251


def is_soon(ask: Callable[[], object], within_s: float) -> bool:
    """Whether it ever takes no longer. A machine that is busy may be late any number of times; what waits for
    somebody else, or for a wake-up that was lost, is late each time.
    """
    return any(_took_s(ask) < within_s for _ in range(TRIES))


def _took_s(ask: Callable[[], object]) -> float:
    begun = time.monotonic()
    ask()
    return time.monotonic() - begun


class _HasFileno(Protocol):
    def fileno(self) -> int: ...


def is_readable(what: int | _HasFileno, timeout_s: float = 0.0) -> bool:
    """Return True if it has something within so many seconds.

    Unlike select(), this works for any number of open files.
    """
    poll = select.poll()
    poll.register(what, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
