"""Limits of background work: how fast it reads and writes, and when it uses a CPU.

(Kafka: Throttler, ReplicationQuotaManager.) When a CPU becomes idle, it takes over a thread that waits for
another CPU. A CPU with background work never becomes idle. Threads that wait for other CPUs then stay there
until a tick, at which the kernel balances its CPUs: up to 4 ms, however low the priority of the background
work is. So a background thread leaves its CPU idle after each stint (a short time of work), as briefly as
possible.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from shm import linux

# One piece of a segment takes a third of a stint.
STINT_NS = 200_000
REST_S = 50e-6
LOWEST_IO_PRIORITY = 7
# A thread that is late by less catches up.
LATE_S = 1.0


class Pace:
    """A limit in bytes per second, read from the current settings, for all threads that share this object."""

    def __init__(self, bytes_per_s: Callable[[], float]) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._taken = self._allowed = self._at = 0.0

    def take(self, count: int) -> float:
        """Take `count` bytes more; return the total taken, as a mark for `left_s`."""
        with self._lock:
            rate = self._allow()
            if self._allowed - self._taken > rate * LATE_S:
                self._allowed = self._taken
            self._taken += count
            return self._taken

    def left_s(self, mark: float) -> float:
        """Return the seconds until all bytes up to a mark are allowed by the current settings; <= 0: now."""
        with self._lock:
            rate = self._allow()
            return (mark - self._allowed) / rate

    def _allow(self) -> float:
        """Add the allowance since the last call; return the rate in bytes per second."""
        now, rate = time.monotonic(), max(self._bytes_per_s(), 1.0)
        self._allowed += (now - self._at) * rate
        self._at = now
        return rate


# Pieces between two decisions on the size. One of them has the least size, to compare with.
ROUND = 16
# With fewer pieces of the wanted size in a round that size is not needed, and cannot be judged.
FULL_AT_LEAST = ROUND // 4
# How many times as long as one of the least size a larger piece may take. Below the second factor twice the
# size is tried.
SHRINKS_ABOVE, GROWS_BELOW = 1.5, 1.25


class PieceSize:
    """The piece size of background work on one disk, for threads that wait for each piece.

    A commit may have to wait for a piece. On a disk that begins each request at once, only small
    pieces are fast. A rotating disk, or one across a network, takes hardly longer for half a megabyte than
    for a few kilobytes, and gets large pieces; with small ones a copy would take days.
    The times of pieces show which kind a disk is: the kernel's `queue/rotational` is wrong for virtual
    devices. `bytes`: the size of the next piece.
    """

    def __init__(self, least_bytes: int, most_bytes: int) -> None:
        self._least = self._usual = self.bytes = least_bytes
        self._most = most_bytes
        self._least_s: deque[float] = deque(maxlen=ROUND)
        self._usual_s: list[float] = []
        self._pieces = 0

    def took(self, count: int, disk_s: float) -> None:
        """Note that the disk took `disk_s` for a piece of `count` bytes. Ignore 0: the page cache had it."""
        if disk_s <= 0.0:
            return
        self._pieces += 1
        if count == self.bytes:
            if self.bytes == self._least:
                self._least_s.append(disk_s)
            if self.bytes == self._usual:
                self._usual_s.append(disk_s)
            self.bytes = self._usual
        if self._pieces >= ROUND:
            self._measure_again()

    def _measure_again(self) -> None:
        is_known = len(self._usual_s) >= FULL_AT_LEAST
        times = _median(self._usual_s) / _median(self._least_s) if is_known else float("inf")
        if times > SHRINKS_ABOVE:
            self._usual = max(self._usual // 2, self._least)
        elif times < GROWS_BELOW:
            self._usual = min(self._usual * 2, self._most)
        self._usual_s.clear()
        self._pieces = 0
        self.bytes = self._least


# The statistics module would take 0.3 MB of each broker.
def _median(values: Sequence[float]) -> float:
    ordered, middle = sorted(values), len(values) // 2
    return (ordered[middle] + ordered[~middle]) / 2


class Stints:
    """A thread's stints on its CPU, each followed by a rest. The first call of `rest_if_due` rests."""

    def __init__(self) -> None:
        self._begun_ns = -STINT_NS

    def rest_if_due(self) -> None:
        """Rest for REST_S if the stint has lasted STINT_NS. Call this often: a stint can only end here."""
        if time.thread_time_ns() - self._begun_ns >= STINT_NS:
            time.sleep(REST_S)
            self._begun_ns = time.thread_time_ns()


def only_when_idle() -> None:
    """Run this thread only on a CPU that no other thread wants. Raises OSError.

    Without privileges this cannot be undone. The thread's reads get the lowest best-effort priority: in the
    idle class a read could take seconds, and delay every thread that needs the same page.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    linux.set_io_priority(linux.IOPRIO_CLASS_BE, LOWEST_IO_PRIORITY)


def is_in_background() -> bool:
    """Return whether this thread runs `only_when_idle`."""
    return os.sched_getscheduler(0) == os.SCHED_IDLE
