"""How a background process stays out of the way: how fast it may read and write (Kafka: Throttler), and when
it may use a CPU.

A CPU with nothing to do takes over what waits for another one, at once. One that works in the background is
never without something to do, so what waits elsewhere stays there until the kernel balances its CPUs at a
tick: 4 ms, however low the priority of the work is. So who works in the background leaves its CPU idle after
each stint, as shortly as that goes.
"""

from __future__ import annotations

import os
import threading
import time

import psutil

# One piece of a segment takes a third of it. Beside it half of the CPU's time is used.
STINT_NS = 200_000
REST_S = 50e-6
LOWEST_IO_PRIORITY = 7


class Pace:
    """Bytes per second, counted from a beginning: whoever is late may catch up."""

    def __init__(self, bytes_per_s: float, started: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._started = started
        self._bytes = 0

    def due(self, count: int) -> float:
        """When to go on, after so many bytes more."""
        self._bytes += count
        return self._started + self._bytes / self._bytes_per_s


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
