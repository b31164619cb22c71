"""Data for the page's picture of the broker: rings (queues) between its processes, and commit rounds.

A broker has a ring for each pair of processes and direction. The picture has one arrow for each pair of kinds
of processes, so rings are added up by these kinds. A commit round is a sync that makes batches durable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from mpbroker.ipc import topology
from mpbroker.ipc.counters import Counter, Histogram
from mpbroker.ipc.topology import SharedMemory
from mpbroker.metrics.snapshot import Snapshot
from mpbroker.observe.rates import per_second, rate, since

NS_PER_MS = 1_000_000
BACKGROUND: Final = (topology.CLEANER, topology.SCRUBBER, topology.EXPORTER, topology.TIER)


def kind_of(role: int) -> str:
    """Return the kind of the process `role`. Each box in the picture has the name of a kind."""
    if topology.is_processor(role):
        return "processor"
    if topology.is_handler(role):
        return "handler"
    if topology.is_log_worker(role):
        return "log"
    if role in (topology.ACCEPTOR, topology.CONTROL_ACCEPTOR):
        return "acceptor"
    return "background" if role in BACKGROUND else topology.name_of(role)


KINDS: Final = {topology.name_of(role): kind_of(role) for role in range(topology.PROCESSES)}
"""Kinds of processes by their names."""


def rings(memory: SharedMemory) -> list[dict[str, Any]]:
    """Return a row per arrow of the picture: ring count, waiting entries, the fill of the fullest ring."""
    roles = memory.words("roles")
    alive = [bool(roles.load(role)) for role in range(topology.PROCESSES)]
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for producer, consumer, slots in topology.ring_pairs(memory.sizes.log_workers):
        if not (alive[producer] and alive[consumer]):
            continue
        # Words of two processes, read one after the other.
        waiting = min(max(memory.ring(producer, consumer).waiting(), 0), slots)
        between = kind_of(producer), kind_of(consumer)
        row = found.setdefault(
            between, {"from": between[0], "to": between[1], "rings": 0, "waiting": 0, "fill": 0.0}
        )
        row["rings"] += 1
        row["waiting"] += waiting
        row["slots"] = slots
        row["fill"] = max(row["fill"], waiting / slots)
    return list(found.values())


def commits(now: Snapshot, before: Snapshot | None, log_workers: Iterable[int]) -> dict[str, Any]:
    """Return the rate and times (ms) of all log workers' commit rounds between two snapshots."""
    workers = tuple(log_workers)
    waiting = sum(now.get(worker, Counter.COUNT_PRODUCES_DELAYED) for worker in workers)
    if before is None:
        return {"waiting": waiting}
    times, batches, appends = (
        since(now.distribution(one, workers), before.distribution(one, workers))
        for one in (Histogram.TIME_COMMIT_NS, Histogram.BATCHES_PER_ROUND, Histogram.TIME_APPEND_NS)
    )
    found: dict[str, Any] = {
        "waiting": waiting,
        "rounds_per_s": per_second(times.count, 0, now.now_ns - before.now_ns),
    }
    if times.count:
        known = times.attributes(NS_PER_MS)
        found |= {"p50_ms": known["50thPercentile"], "p99_ms": known["99thPercentile"]}
    if batches.count:
        found["batches"] = batches.total / batches.count
    if appends.count:
        found["append_p99_ms"] = appends.attributes(NS_PER_MS)["99thPercentile"]
    return found


def paths(now: Snapshot, before: Snapshot | None) -> dict[str, float]:
    """Return produces and fetches per second by path: native code, Python, or waiting for records.

    Native code answers a fetch at once or passes it to Python. Fetches that wait for records always go to
    Python. They are counted apart, or they would hide how many other fetches native code passes to Python.
    """
    if before is None or now.now_ns <= before.now_ns:
        return {}
    produce_native = _rate(now, before, Counter.COUNT_PRODUCE_FAST)
    produce_python = _rate(now, before, Counter.COUNT_PRODUCE_SLOW)
    fetch_native = _rate(now, before, Counter.COUNT_FETCHES_FAST)
    fetch_waited = _rate(now, before, Counter.COUNT_FETCHES_PARKED)
    fetches = _rate(now, before, Counter.COUNT_FETCHES)
    return {
        "produce_native": produce_native,
        "produce_python": produce_python,
        "fetch_native": fetch_native,
        "fetch_waited": fetch_waited,
        # One that waits is counted when it comes, and again when it begins to wait, maybe after this
        # snapshot.
        "fetch_python": max(fetches - fetch_native - fetch_waited, 0.0),
    }


def _rate(now: Snapshot, before: Snapshot, counter: int) -> float:
    """Return the growth per second of a counter, summed over all handlers."""
    return rate(now, before, lambda counts: sum(counts.get(h, counter) for h in topology.HANDLERS)) or 0.0
