"""Long computations of a coordinator, in slices between its other work."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias, TypeVar

from mpbroker.coordinator.runtime.timers import Clock, Timers

# How long a slice may delay requests and timers.
SLICE_S: Final = 0.003

T = TypeVar("T")
Job: TypeAlias = Generator[None, None, T]
"""Yields about every millisecond, and returns its result."""


@dataclass(eq=False)
class Background:
    """Runs jobs as timers that are due at once. `slice_s`: the length of a slice, which tests change."""

    _timers: Timers
    _clock: Clock
    slice_s: float = SLICE_S

    def start(self, kind: str, name: str, job: Job[T], then: Callable[[T], None]) -> None:
        """Run a job: the first slice now, the others between events. `then` gets the result.

        `kind` and `name` (a group id) name the job in log messages. `then` may be called before the return.
        An exception of the job, or of `then`, in the first slice is raised to the caller.
        """
        until = time.perf_counter() + self.slice_s
        while True:
            try:
                next(job)
            except StopIteration as stop:
                then(stop.value)
                return
            if time.perf_counter() >= until:
                break
        self.put_off(kind, name, job, then)

    def put_off(self, kind: str, name: str, job: Job[T], then: Callable[[T], None]) -> None:
        """Run a job as `start` does, but not before the event that is handled now has ended."""
        later = partial(self.start, kind, name, job, then)
        self._timers.set((kind, name), self._clock.monotonic_ms(), later)

    def is_running(self, kind: str, name: str) -> bool:
        return (kind, name) in self._timers

    def stop(self, kind: str, name: str) -> None:
        self._timers.cancel((kind, name))
