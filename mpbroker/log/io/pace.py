"""How background work stays out of the way: how fast it may read and write (Kafka: Throttler,
ReplicationQuotaManager), and when it may use a CPU.

A CPU with nothing to do takes over what waits for another one, at once. One that works in the background is
never without something to do, so what waits elsewhere stays there until the kernel balances its CPUs at a
tick: 4 ms, however low the priority of the work is. So who works in the background leaves its CPU idle after
each stint, as shortly as that goes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import psutil

# One piece of a segment takes a third of it.
STINT_NS = 200_000
REST_S = 50e-6
LOWEST_IO_PRIORITY = 7
# Who is late by less catches up.
LATE_S = 1.0


class Pace:
    """Bytes per second of all threads that ask it, as the settings are at that moment: who waits already goes
    on sooner or later when they change.
    """

    def __init__(self, bytes_per_s: Callable[[], float]) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._taken = self._allowed = self._at = 0.0

    def take(self, count: int) -> float:
        """So many bytes more. -> a mark: how far all that was taken goes now."""
        with self._lock:
            rate = self._allow()
            if self._allowed - self._taken > rate * LATE_S:
                self._allowed = self._taken
            self._taken += count
            return self._taken

    def left_s(self, mark: float) -> float:
        """How long to wait until all up to a mark is allowed, if the settings stay as they are."""
        with self._lock:
            rate = self._allow()
            return (mark - self._allowed) / rate

    def _allow(self) -> float:
        """What has come since the last look. -> the rate"""
        now, rate = time.monotonic(), max(self._bytes_per_s(), 1.0)
        self._allowed += (now - self._at) * rate
        self._at = now
        return rate


class Stints:
    """Of the thread that takes them; the first one is over at once."""

    def __init__(self) -> None:
        self._begun_ns = -STINT_NS

    def rest_if_due(self) -> None:
        """To be called often: the stint lasts until then."""
        if time.thread_time_ns() - self._begun_ns >= STINT_NS:
            time.sleep(REST_S)
            self._begun_ns = time.thread_time_ns()


def only_when_idle() -> None:
    """From now on this thread gets a CPU that nobody else wants, and loses it as soon as somebody does.

    Without privileges there is no way back. Its reads are merely behind others: as those of an idle process
    they could wait for seconds, and with them whoever wants the same page. Raises OSError.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    psutil.Process(threading.get_native_id()).ionice(psutil.IOPRIO_CLASS_BE, LOWEST_IO_PRIORITY)
