"""Two clocks in milliseconds: the one of waits and rates, which never goes back and is the same for all
processes of a machine, and the one that records are stamped with.
"""

from __future__ import annotations

import time


def monotonic_ms() -> int:
    """CLOCK_MONOTONIC, as native code has it in nanoseconds (`shm.counters.monotonic_ns`)."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """Since 1970."""
    return time.time_ns() // 1_000_000
