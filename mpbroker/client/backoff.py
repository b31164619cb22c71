"""Waits that grow with each failure and vary at random (Kafka: ExponentialBackoff; KIP-144, KIP-580)."""

import math
import random
import time
from collections.abc import Callable

BASE = 2
JITTER = 0.2


def monotonic_ms() -> float:
    """Return the time of the clock that measures all waits of a client."""
    return time.monotonic() * 1000


class ExponentialBackoff:
    """Double `initial_ms` with each attempt up to `max_ms`, then vary it by up to a fifth within `max_ms`."""

    def __init__(
        self, initial_ms: int, max_ms: int, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        self._initial_ms = min(initial_ms, max_ms)
        self._max_ms = max_ms
        self._uniform = uniform
        self._exponent_max = math.log(max_ms / max(self._initial_ms, 1), BASE) if max_ms > 0 else 0.0

    def after(self, attempts: int) -> float:
        """Return the milliseconds to wait after a failure, counted from 0."""
        term: float = self._initial_ms * BASE ** min(attempts, self._exponent_max)
        return min(term * self._uniform(1 - JITTER, 1 + JITTER), float(self._max_ms))
