"""Snapshots of a broker's counts, made by hand."""

from __future__ import annotations

from typing import Any

from mpbroker.ipc import topology
from mpbroker.ipc.counters import Counter, Histogram
from mpbroker.ipc.meters import TopicMeter
from mpbroker.ipc.partition_counts import PartitionCounts
from mpbroker.metrics.snapshot import NOTHING, NS, Distribution, Snapshot
from shm.counters import bucket_bounds


def counts(seconds: float, **changed: Any) -> Snapshot:
    """A snapshot at that time in which nothing has happened, but for what is said."""
    nothing = {
        "uptime_s": seconds,
        "alive": True,
        "counters": {index: [0] * Counter.COUNTERS for index in range(topology.PROCESSES)},
        "distributions": {index: [NOTHING] * Histogram.HISTOGRAMS for index in range(topology.PROCESSES)},
        "all_topics": [0] * TopicMeter.TOPIC_METERS,
        **{key: {} for key in ("apis", "errors", "topics", "clients", "ciphers", "quota_clients")},
        **{key: {} for key in ("heartbeats_ns", "listeners", "log_dirs")},
        "quotas": [],
        "lost": 0,
        "logs": [],
        "partitions": PartitionCounts({}, 0),
    }
    return Snapshot(now_ns=int(seconds * NS), **(nothing | changed))


def counted(**of_counters: dict[str, int]) -> dict[int, list[int]]:
    """Counters of processes, by the names of process and counter."""
    names = {topology.name_of(index).replace(" ", "_"): index for index in range(topology.PROCESSES)}
    found = {index: [0] * Counter.COUNTERS for index in range(topology.PROCESSES)}
    for name, values in of_counters.items():
        for counter, value in values.items():
            found[names[name]][Counter[f"COUNT_{counter}"]] = value
    return found


def spread(values: dict[int, int]) -> Distribution:
    buckets = list(NOTHING.buckets)
    for value, number in values.items():
        at = next(
            one for one in range(len(buckets)) if bucket_bounds(one)[0] <= value < bucket_bounds(one)[1]
        )
        buckets[at] += number
    return Distribution(buckets, sum(value * number for value, number in values.items()), max(values))
