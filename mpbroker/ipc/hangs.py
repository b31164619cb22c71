"""The judgement whether a process is alive, busy for long, waiting for a disk, or hung.

A process is silent while its turn counter does not move. An observer counts its own checks that find silence.
By the clock alone, processes would appear dead after the machine or the observer has slept. The observer is
the supervisor or, for the worker processes of a recovery, the log process that started them.
(Kafka has no counterpart: a JVM cannot replace a thread.)

alive     the turn counter moves; the loop of every process turns at least once in a tick
works     the process uses the CPU. A process with an announced heavy request then counts as alive for up to
          `HEAVY_TIMEOUTS` times handler.hang.timeout.ms, a process in recovery for as long as that takes, the
          exporter for a quarter of the timeout; any other process counts as silent even if it uses the CPU
waits     the process is in an uninterruptible sleep of the kernel, which a slow disk causes and no signal can
          end; or it could run, but other processes use all CPUs
hangs     none of these for handler.hang.timeout.ms, ten times as long in recovery, or a quarter of it in the
          exporter: the process is killed and replaced
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from shm import procfs
from shm.procfs import COULD_RUN, WAITS_FOR_DISK

# The interval between judgements of heartbeats.
TICK_S = 1.0
# A loop that begins to sleep as a tick begins may seem silent in it, on a machine that is late.
HANG_TICKS_MIN = 2
# One check counts as at most this much, however late it comes.
LOOK_MAX_S = 2.0
# One request may work for this many timeouts with CPU use as the only sign of life. Recovery may wait as long
# for something that shows neither in its turns nor as CPU.
HEAVY_TIMEOUTS = 10
# The exporter has a timeout shorter by this factor. Only it answers probes of liveness, which give up after
# 20 s or more (docs/CONTAINERS.md), and that costs the whole broker. It waits for nothing but a disk, and
# nothing is lost with it. Its event loop may be busy for a while, such as with loading the console.
EXPORTER_DIVISOR = 4


class Patience:
    """A time limit for one wait. The time between two calls of `is_over` counts as LOOK_MAX_S at most."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit_s = limit_s
        self._left_s = limit_s
        self._clock = clock
        self._last = clock()

    def is_over(self) -> bool:
        now = self._clock()
        self._left_s -= min(now - self._last, LOOK_MAX_S)
        self._last = now
        return self._left_s <= 0

    def renew(self) -> None:
        self._left_s = self.limit_s
        self._last = self._clock()


class Verdict(Enum):
    ALIVE = 0
    WAITS_FOR_DISK = 1
    HANGS = 2


@dataclass
class Pulse:
    """What an observer has seen of one process so far. A restarted process gets a new Pulse."""

    turns: int = -1
    cpu_ticks: int = 0
    silent_ticks: int = 0
    working_ticks: int = 0

    def judge(
        self, turns: int, limit_ticks: int, working_limit_ticks: float, probe: Callable[[], tuple[str, int]]
    ) -> Verdict:
        """Return the verdict on the process after one tick.

        `turns` is the turn counter. The process hangs after `limit_ticks` silent ticks. A silent process that
        uses the CPU counts as alive for up to `working_limit_ticks`. `probe`, which is called only for a
        silent process, returns (state, CPU time used).
        """
        if turns != self.turns:
            self.turns, self.silent_ticks, self.working_ticks = turns, 0, 0
            return Verdict.ALIVE
        state, cpu_ticks = probe()
        worked, self.cpu_ticks = cpu_ticks != self.cpu_ticks, cpu_ticks
        if worked and self.working_ticks < working_limit_ticks:
            self.working_ticks += 1
            self.silent_ticks = 0
            return Verdict.ALIVE
        if state == COULD_RUN and not worked:
            return Verdict.ALIVE
        self.silent_ticks += 1
        if self.silent_ticks < limit_ticks:
            return Verdict.ALIVE
        return Verdict.WAITS_FOR_DISK if state == WAITS_FOR_DISK else Verdict.HANGS


def look_at(pid: int) -> tuple[str, int]:
    """Return (state, CPU time in clock ticks) of a process; ("", 0) if it has just ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        found = procfs.process(pid)
        return found.state, found.cpu_ticks
    return "", 0


def waits_for_disk(threads: Path = Path("/proc/self/task")) -> bool:
    """Return whether a thread of this process is in an uninterruptible sleep of the kernel."""
    for thread in threads.iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            if procfs.stat(thread).state == WAITS_FOR_DISK:
                return True
    return False
