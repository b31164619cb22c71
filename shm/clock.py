"""Two clocks in milliseconds.

`monotonic_ms` is for waits and rates: it never goes back and is the same for all processes of a machine.
`wall_ms` is the time that records are stamped with.
"""

from __future__ import annotations

import time


def monotonic_ms() -> int:
    """Return CLOCK_MONOTONIC in ms, which native code has in nanoseconds (`shm.counters.monotonic_ns`)."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    return time.time_ns() // 1_000_000
