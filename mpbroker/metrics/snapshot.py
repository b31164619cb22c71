"""All counts at one moment: the counter pages and meters of all processes of a broker.

The counts are read from a read-only map of the broker's shared memory (its public region). This works while
the broker hangs, and after its death as long as the file exists. Words are read one by one, so numbers of one
snapshot can be a few microseconds apart.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field
from operator import add
from pathlib import Path

from mpbroker.ipc import topology
from mpbroker.ipc.counters import Counter, Histogram
from mpbroker.ipc.listeners import MAX_LISTENERS, ListenerCount, ListenerState
from mpbroker.ipc.log_sizes import DirSeen, DirSizes, PartitionSizes
from mpbroker.ipc.meters import ClientKind, QuotaKind, QuotaWord, Reader, TopicMeter
from mpbroker.ipc.partition_counts import PartitionCounts, count_partitions
from mpbroker.ipc.table import Partition, PartitionFlag, read_partition_surely
from mpbroker.protocol.topic_names import METADATA_TOPIC
from shm.counters import BUCKETS, bucket_bounds
from shm.region import Region

NS = 1_000_000_000
# Kafka's percentiles of a histogram.
PERCENTILES = {
    "50thPercentile": 0.5,
    "75thPercentile": 0.75,
    "95thPercentile": 0.95,
    "98thPercentile": 0.98,
    "99thPercentile": 0.99,
    "999thPercentile": 0.999,
}


@dataclass(frozen=True)
class Distribution:
    """A histogram: the counts by bucket, the exact sum (`total`), and the largest value."""

    buckets: list[int]
    total: int
    largest: int

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def with_zeros(self, count: int) -> Distribution:
        """Return a copy, filled up with zeros to `count` values: the broker does not record zeros."""
        missing = max(count - self.count, 0)
        return Distribution([self.buckets[0] + missing, *self.buckets[1:]], self.total, self.largest)

    def attributes(self, unit: float) -> dict[str, float]:
        """Return the attributes of Kafka's histograms; all but Count are divided by `unit`.

        Min, StdDev and the percentiles may be off by 12.5 %.
        """
        count = self.count
        found: dict[str, float] = {"Count": count}
        if not count:
            return found | dict.fromkeys(("Min", "Max", "Mean", "StdDev", *PERCENTILES), 0.0)
        used = [(i, n) for i, n in enumerate(self.buckets) if n]
        mean = self.total / count
        found["Min"] = min(bucket_bounds(used[0][0])[0], self.largest) / unit
        found["Max"] = self.largest / unit
        found["Mean"] = mean / unit
        found["StdDev"] = math.sqrt(sum(n * (_middle(i) - mean) ** 2 for i, n in used) / count) / unit
        for name, fraction in PERCENTILES.items():
            found[name] = min(self._at(fraction, used), self.largest) / unit
        return found

    def _at(self, fraction: float, used: list[tuple[int, int]]) -> float:
        rank, seen = max(1, math.ceil(fraction * self.count)), 0
        for bucket, n in used:
            seen += n
            if seen >= rank:
                return _middle(bucket)
        return _middle(used[-1][0])


NOTHING = Distribution([0] * BUCKETS, 0, 0)


def _middle(bucket: int) -> float:
    low, high = bucket_bounds(bucket)
    return low if high - low == 1 else (low + high) / 2


def added(distributions: list[Distribution]) -> Distribution:
    if not distributions:
        return NOTHING
    return Distribution(
        [sum(column) for column in zip(*(d.buckets for d in distributions), strict=True)],
        sum(d.total for d in distributions),
        max(d.largest for d in distributions),
    )


@dataclass
class ApiCounts:
    """The counts of one API in all processes: requests by version, and histograms by ApiHistogram."""

    versions: dict[int, int] = field(default_factory=dict)
    histograms: list[Distribution] = field(default_factory=list)

    def add(self, versions: dict[int, int], histograms: list[Distribution]) -> None:
        for version, count in versions.items():
            self.versions[version] = self.versions.get(version, 0) + count
        pairs = zip(self.histograms, histograms, strict=True) if self.histograms else ()
        self.histograms = [added([a, b]) for a, b in pairs] or histograms


@dataclass(frozen=True)
class ListenerSeen:
    """A listener and its counts, which are indexed by ListenerCount."""

    name: str
    counts: list[int]


@dataclass(frozen=True)
class LogSeen:
    """A partition's log. `sizes`: how many segments and bytes the log has, None if not measured yet.

    `high_watermark_at`: the base offset of the high watermark's segment, and its byte position there.
    `slot` and `generation`: the log's entry in the partition table. A log that is not `usable` is offline.
    """

    topic: str
    partition: int
    log_start: int
    log_end: int
    sizes: tuple[int, int] | None
    high_watermark: int
    usable: bool
    slot: int
    generation: int
    high_watermark_at: tuple[int, int] = (0, 0)


@dataclass
class Snapshot:
    """The counts of a broker. `uptime_s`: seconds from the broker's start until now or until its death."""

    now_ns: int
    uptime_s: float
    alive: bool
    counters: dict[int, list[int]]
    distributions: dict[int, list[Distribution]]
    apis: dict[int, ApiCounts]
    errors: dict[int, dict[int, int]]
    topics: dict[str, list[int]]
    all_topics: list[int]
    clients: dict[int, list[tuple[str, str, int, int]]]
    ciphers: dict[int, list[tuple[str, str, int, int]]]
    quotas: list[list[int]]  # by QuotaKind, all clients together
    quota_clients: dict[tuple[int, str, str], list[int]]  # by QuotaKind, user and client id
    lost: int
    heartbeats_ns: dict[int, int]
    listeners: dict[int, ListenerSeen]  # by number
    log_dirs: dict[int, DirSeen]  # by number
    logs: list[LogSeen]
    partitions: PartitionCounts

    def get(self, process: int, counter: int) -> int:
        return self.counters[process][counter]

    def distribution(self, histogram: int, processes: tuple[int, ...]) -> Distribution:
        """Return the sum of the histograms of these processes."""
        return added([self.distributions[process][histogram] for process in processes])

    def serving(self, processes: tuple[int, ...] | range) -> list[int]:
        """Return the given processes that are running, or were running when the broker died."""
        return [p for p in processes if self.get(p, Counter.COUNT_STARTED_NS)]


def attach(runtime_file: Path) -> Region:
    """Map a broker's public region.

    Raises RegionUnavailable if the file cannot be opened, LayoutMismatch if its version or content is wrong.
    """
    return Region.attach(runtime_file, topology.PUBLIC_MAGIC, topology.LAYOUT_VERSION)


def take(public: Region) -> Snapshot:
    """Return the counts that the region has now."""
    counters, distributions, beats = {}, {}, {}
    for process in range(topology.PROCESSES):
        page = topology.counter_page(public, process)
        beats[process] = page.heartbeat_ns
        if not page.heartbeat_ns:
            # There never was such a process, as of most roles.
            counters[process] = [0] * Counter.COUNTERS
            distributions[process] = [NOTHING] * Histogram.HISTOGRAMS
            continue
        counters[process] = [page.get(i) for i in range(Counter.COUNTERS)]
        distributions[process] = [
            Distribution(page.histogram(i), page.histogram_sum(i), page.histogram_max(i))
            for i in range(Histogram.HISTOGRAMS)
        ]
    alive = public.owner_is_alive()
    now_ns = time.monotonic_ns() if alive else max(beats.values())
    since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME) - (time.monotonic_ns() - now_ns) / NS
    found = Snapshot(
        now_ns=now_ns,
        uptime_s=max(since_boot_s - public.owner_start / os.sysconf("SC_CLK_TCK"), 0.001),
        alive=alive,
        counters=counters,
        distributions=distributions,
        apis={},
        errors={},
        topics={},
        all_topics=[0] * TopicMeter.TOPIC_METERS,
        clients={},
        ciphers={},
        quotas=[[0] * QuotaWord.QUOTA_WORDS for _ in range(QuotaKind.QUOTA_KINDS)],
        quota_clients={},
        lost=0,
        heartbeats_ns=beats,
        listeners=_take_listeners(public),
        log_dirs=DirSizes(public.block("log_dirs")).all(),
        logs=[],
        partitions=count_partitions(
            topology.attach_table(public),
            sum(counts[Counter.COUNT_PARTITIONS_WAITING] for counts in counters.values()),
        ),
    )
    _take_meters(public, found)
    return found


def _take_listeners(public: Region) -> dict[int, ListenerSeen]:
    """Return the listeners that accept connections, by number."""
    found = {}
    for number in range(MAX_LISTENERS):
        counts = topology.listener_counts(public, number)
        if counts.get(ListenerCount.STATE) == ListenerState.ACCEPTING:
            found[number] = ListenerSeen(counts.name, [counts.get(count) for count in ListenerCount])
    return found


def _take_meters(public: Region, into: Snapshot) -> None:
    reader = topology.meter_reader(public)
    names = _names(public, reader, into.logs)
    for process in range(topology.PROCESSES):
        for api, (versions, histograms) in reader.apis(process).items():
            found = [Distribution(*histogram) for histogram in histograms]
            into.apis.setdefault(api, ApiCounts()).add(versions, found)
        for api, codes in reader.errors(process).items():
            counts = into.errors.setdefault(api, {})
            for code, count in codes.items():
                counts[code] = counts.get(code, 0) + count
        for place, cell in reader.topics(process).items():
            name = names.get(place)
            if name == METADATA_TOPIC:
                continue  # no topic of clients: Kafka does not count it
            # There is a cell for each partition and process: this is most of the work.
            into.all_topics = list(map(add, into.all_topics, cell))
            if name is not None:
                before = into.topics.get(name)
                into.topics[name] = cell if before is None else list(map(add, before, cell))
        into.all_topics = [a + b for a, b in zip(into.all_topics, reader.retired(process), strict=True)]
        if clients := reader.clients(process, ClientKind.CLIENT_SOFTWARE):
            into.clients[process] = clients
        if ciphers := reader.clients(process, ClientKind.CLIENT_CIPHER):
            into.ciphers[process] = ciphers
        _add_quotas(*reader.quotas(process), into)
        into.lost += reader.lost(process)


def _names(public: Region, reader: Reader, logs: list[LogSeen]) -> dict[tuple[int, int], str]:
    """Return the topic name of each existing partition by (slot, generation). Add the logs to `logs`.

    A deleted partition has no name. Its counts remain only in the sum of all topics.
    """
    table, sizes = topology.attach_table(public), PartitionSizes(public.block("log_sizes"))
    found = {}
    for (slot, generation), name in reader.names().items():
        # A plain read could give up on the busiest slot.
        now = read_partition_surely(table, slot)
        if now.generation == generation and not now.flags & PartitionFlag.PARTITION_DELETED:
            found[slot, generation] = name
            if now.flags & (PartitionFlag.PARTITION_LIVE | PartitionFlag.PARTITION_OFFLINE):
                logs.append(_log_of(now, name, slot, sizes.get(slot, generation)))
    return found


def _log_of(now: Partition, topic: str, slot: int, sizes: tuple[int, int] | None) -> LogSeen:
    return LogSeen(
        topic,
        now.partition,
        now.log_start_offset,
        now.log_end_offset,
        sizes,
        now.high_watermark,
        not now.flags & PartitionFlag.PARTITION_OFFLINE,
        slot,
        now.generation,
        (now.high_watermark_segment, now.high_watermark_position),
    )


def _add_quotas(alls: list[list[int]], clients: list[tuple[str, str, list[int]]], into: Snapshot) -> None:
    """Add one process's quotas to `into`. Several processes may have counts of the same client."""
    for kind, words in enumerate(alls):
        into.quotas[kind] = [a + b for a, b in zip(into.quotas[kind], words, strict=True)]
    for user, client_id, words in clients:
        owner = words[QuotaWord.QUOTA_OF], user, client_id
        before = into.quota_clients.get(owner, [0] * QuotaWord.QUOTA_WORDS)
        into.quota_clients[owner] = [a + b for a, b in zip(before, words, strict=True)]
