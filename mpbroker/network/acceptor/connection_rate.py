"""Measures connections a second in windows, as Kafka does, and computes throttles above a bound (sans-I/O).

Each window has one sample, like `Rate` and `SampledStat` of Kafka's metrics. The throttle is
`QuotaUtils.throttleTime`, but at most one window, as Kafka has it for connections.
"""

from __future__ import annotations

from dataclasses import dataclass

from mpbroker.config.integers import INT_MAX

# The settings' value for "no limit".
UNLIMITED = INT_MAX


@dataclass
class _Sample:
    start_ms: float
    last_ms: float
    value: float


class WindowedRate:
    """A rate of events a second. Call `record` and then `throttle_ms`. Events above the bound count, too."""

    def __init__(self, bound: float, windows: int, window_ms: int) -> None:
        self.bound = bound
        self.windows = windows
        self.window_ms = window_ms
        self._samples: list[_Sample] = []
        self.last_ms = 0.0

    def record(self, value: float, now_ms: float) -> None:
        self.last_ms = now_ms
        if not self._samples or now_ms - self._samples[-1].start_ms >= self.window_ms:
            self._samples.append(_Sample(now_ms, now_ms, 0.0))
            del self._samples[: -(self.windows + 1)]
        sample = self._samples[-1]
        sample.value += value
        sample.last_ms = now_ms

    def is_over(self, now_ms: float) -> bool:
        """Return whether all recorded events are too old to count."""
        return now_ms - self.last_ms >= self.windows * self.window_ms

    def per_second(self, now_ms: float) -> float:
        return self._measure(now_ms)[0]

    def throttle_ms(self, now_ms: float) -> int:
        """Return the time to wait in ms; 0 if the rate is within the bound."""
        if self.bound >= UNLIMITED:
            return 0
        rate, span_ms = self._measure(now_ms)
        if rate <= self.bound:
            return 0
        if self.bound <= 0:
            return self.window_ms
        return min(round((rate - self.bound) / self.bound * span_ms), self.window_ms)

    def _measure(self, now_ms: float) -> tuple[float, float]:
        """Return (events per second, ms over which they were measured)."""
        live = [s for s in self._samples if now_ms - s.last_ms < self.windows * self.window_ms]
        if not live:
            return 0.0, (self.windows - 1) * self.window_ms or 1
        span_ms = now_ms - live[0].start_ms
        missing = self.windows - 1 - int(span_ms // self.window_ms)
        span_ms = max(1.0, span_ms + max(0, missing) * self.window_ms)
        return sum(s.value for s in live) * 1000 / span_ms, span_ms
