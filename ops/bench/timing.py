"""How long a call takes when nothing else is in the way: the best of some rounds of many calls."""

from __future__ import annotations

import time
from collections.abc import Callable


def best_seconds(call: Callable[[], object], *, rounds: int, round_s: float) -> float:
    """Seconds of one call. A first one warms up and says how many fit a round."""
    started = time.perf_counter()
    call()
    calls = max(1, int(round_s / max(time.perf_counter() - started, 1e-7)))
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - started) / calls)
    return best
