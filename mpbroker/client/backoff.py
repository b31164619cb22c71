"""Waits that grow with each failure and vary at random (Kafka: ExponentialBackoff; KIP-144, KIP-580)."""

import math
import random
import time
from collections.abc import Callable

BASE = 2
JITTER = 0.2


def monotonic_ms() -> float:
    """Return the monotonic clock's time in milliseconds. A client measures all its waits with this clock."""
    return time.monotonic() * 1000


class ExponentialBackoff:
    """A wait that doubles from `initial_ms` with each failure and varies by up to 20 %; at most `max_ms`."""

    def __init__(
        self, initial_ms: int, max_ms: int, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        self._initial_ms = min(initial_ms, max_ms)
        self._max_ms = max_ms
        self._uniform = uniform
        self._exponent_max = math.log(max_ms / max(self._initial_ms, 1), BASE) if max_ms > 0 else 0.0

    def after(self, attempts: int) -> float:
        """Return the milliseconds to wait after a failure. `attempts` is 0 for the first failure."""
        term: float = self._initial_ms * BASE ** min(attempts, self._exponent_max)
        return min(term * self._uniform(1 - JITTER, 1 + JITTER), float(self._max_ms))
