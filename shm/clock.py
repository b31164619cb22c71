"""Three clocks.

`monotonic_ms` is for waits and rates: it never goes back and is the same for all processes of a machine.
`wall_ms` is the time of day, in ms since 1970, as in the timestamps of records. `boot_ns` is for leases: it
never goes back and goes on while the machine is suspended.
"""

from __future__ import annotations

import time


def monotonic_ms() -> int:
    """Return CLOCK_MONOTONIC in milliseconds. (Native code uses nanoseconds: `shm.counters.monotonic_ns`.)"""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def boot_ns() -> int:
    """Return CLOCK_BOOTTIME in nanoseconds."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
