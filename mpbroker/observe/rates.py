"""Rates and distributions between two snapshots of the counters."""

from __future__ import annotations

from collections.abc import Callable

from mpbroker.metrics.snapshot import NS, Distribution, Snapshot


def per_second(now: float, before: float, passed_ns: int) -> float | None:
    """Return the growth per second of a count, at least 0; None if no time has passed."""
    return max(now - before, 0) / (passed_ns / NS) if passed_ns > 0 else None


def rate(now: Snapshot | None, before: Snapshot | None, count: Callable[[Snapshot], float]) -> float | None:
    """Return the growth per second of a count between two snapshots; None if one is missing."""
    if now is None or before is None:
        return None
    return per_second(count(now), count(before), now.now_ns - before.now_ns)


def since(now: Distribution, before: Distribution) -> Distribution:
    """Return the growth of a histogram, at least 0 in each bucket, with `largest` copied from `now`."""
    buckets = [max(a - b, 0) for a, b in zip(now.buckets, before.buckets, strict=True)]
    return Distribution(buckets, max(now.total - before.total, 0), now.largest)
