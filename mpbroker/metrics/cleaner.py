"""Metrics of compaction (Kafka: LogCleaner.scala, LogCleanerManager.scala)."""

from __future__ import annotations

from collections.abc import Iterator

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.topology import CLEANER, LOG_WORKERS
from mpbroker.metrics.families import Bean, View, family, value

CLEANER_GAUGES = "kafka.log:type=LogCleaner,name="
MANAGER_GAUGES = "kafka.log:type=LogCleanerManager,name="
NS_PER_MS = 1_000_000


@family(
    CLEANER_GAUGES
    + "<cleaner-recopy-percent|max-buffer-utilization-percent|max-clean-time-secs|max-compaction-delay-secs>",
    "gauge",
    "Of the last compaction: which part of the bytes read was written again, how full the memory for keys "
    "was, how long it took. How long beyond max.compaction.lag.ms the oldest record has waited.",
)
def last_cleaning(view: View) -> Iterator[Bean]:
    now = view.now
    yield value(
        CLEANER_GAUGES + "cleaner-recopy-percent", now.get(CLEANER, Counter.COUNT_CLEANER_RECOPY_PERCENT)
    )
    buffer = now.get(CLEANER, Counter.COUNT_CLEANER_BUFFER_PERCENT)
    yield value(CLEANER_GAUGES + "max-buffer-utilization-percent", buffer)
    yield value(
        CLEANER_GAUGES + "max-clean-time-secs", now.get(CLEANER, Counter.COUNT_CLEANER_TIME_MS) // 1000
    )
    delay_ms = max(now.get(worker, Counter.COUNT_CLEANER_DELAY_MS) for worker in LOG_WORKERS)
    yield value(CLEANER_GAUGES + "max-compaction-delay-secs", delay_ms // 1000)


@family(CLEANER_GAUGES + "DeadThreadCount", "gauge", "1 while the cleaner is being restarted.")
def dead_cleaners(view: View) -> Iterator[Bean]:
    looked = view.now.get(CLEANER, Counter.COUNT_CLEANER_LAST_RUN_NS)
    is_dead = looked and not view.now.serving((CLEANER,))
    yield value(CLEANER_GAUGES + "DeadThreadCount", int(bool(is_dead)))


@family(
    MANAGER_GAUGES
    + "<uncleanable-partitions-count|uncleanable-bytes|max-dirty-percent|time-since-last-run-ms>",
    "gauge",
    "Partitions whose compaction failed, and their dirty bytes, of all log directories together; the dirty "
    "part of the dirtiest one; when the cleaner last looked for something to do.",
)
def waiting(view: View) -> Iterator[Bean]:
    now = view.now
    uncleanable = view.total(Counter.COUNT_UNCLEANABLE_PARTITIONS, LOG_WORKERS)
    yield value(MANAGER_GAUGES + "uncleanable-partitions-count", uncleanable)
    uncleanable_bytes = view.total(Counter.COUNT_UNCLEANABLE_BYTES, LOG_WORKERS)
    yield value(MANAGER_GAUGES + "uncleanable-bytes", uncleanable_bytes)
    dirtiest = max(now.get(worker, Counter.COUNT_CLEANER_DIRTY_PERCENT) for worker in LOG_WORKERS)
    yield value(MANAGER_GAUGES + "max-dirty-percent", dirtiest)
    if looked := now.get(CLEANER, Counter.COUNT_CLEANER_LAST_RUN_NS):
        yield value(MANAGER_GAUGES + "time-since-last-run-ms", (now.now_ns - looked) // NS_PER_MS)
