"""Rows and rates, made of samples. Does no I/O: `add` and `add_groups` are told what was seen.

Rates are those between the last two samples. Percentiles are of the requests of the last `WINDOW_S` seconds:
those of one look would jump, those since the start would not move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final, NamedTuple

from mpbroker.cli.top import columns
from mpbroker.cli.top.columns import Kind, View
from mpbroker.cli.top.samples import Groups, GroupSeen, PartitionSeen, Place, ProcessSeen, Sample
from mpbroker.ipc import topology
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.meters import ApiHistogram, TopicMeter
from mpbroker.metrics.requests import NAMES_OF_PAGE, NS_PER_MS, api_name, by_name
from mpbroker.metrics.snapshot import NOTHING, NS, ApiCounts, Distribution, Snapshot

WINDOW_S: Final = 10.0
HISTORY: Final = 240
"""Values that are kept of each number of the summary."""
TREND: Final = 24
"""Values that are kept of each partition and group."""
Row = dict[str, Any]

_PERCENTILES = {"p50_ms": "50thPercentile", "p95_ms": "95thPercentile", "p99_ms": "99thPercentile"}
_STAGES = {
    "queue_p99_ms": ApiHistogram.REQUEST_QUEUE_NS,
    "local_p99_ms": ApiHistogram.LOCAL_NS,
    "remote_p99_ms": ApiHistogram.REMOTE_NS,
    "send_p99_ms": ApiHistogram.RESPONSE_SEND_NS,
}
_WAITING = (
    Counter.COUNT_PRODUCES_DELAYED,
    Counter.COUNT_FETCHES_DELAYED,
    Counter.COUNT_CALLS_DELAYED,
    Counter.COUNT_REBALANCES_DELAYED,
)
_INDEX_OF = {topology.name_of(index): index for index in range(topology.PROCESSES)}
_WITHOUT_RINGS = {topology.name_of(index) for index in (topology.SUPERVISOR, *topology.ALONE)}
# All fetches are counted under `Fetch`, too.
_PARTS = {name for names in NAMES_OF_PAGE.values() for name in names if name.startswith("Fetch")} - {"Fetch"}


class Summary(NamedTuple):
    """The broker in numbers; None: not known. CPU is in percent of one CPU, no memory counts twice."""

    messages_in_per_s: float | None = None
    bytes_in_per_s: float | None = None
    bytes_out_per_s: float | None = None
    requests_per_s: float | None = None
    produce_p50_ms: float | None = None
    produce_p99_ms: float | None = None
    cpu_percent: float | None = None
    pss_bytes: float | None = None


class Model:
    """Keeps the last samples of one broker, and makes rows of them: none before the first sample."""

    def __init__(self) -> None:
        self.sample: Sample | None = None
        self.groups: Groups | None = None
        self.summary = Summary()
        self.history: dict[str, deque[float]] = {name: deque(maxlen=HISTORY) for name in Summary._fields}
        self._before: Sample | None = None
        self._groups_before: Groups | None = None
        self._window: deque[Snapshot] = deque()
        self._ends: dict[Place, int] = {}
        self._by_topic: dict[str, list[Place]] = {}
        self._trends: dict[Place, deque[float]] = {}
        self._lags: dict[str, deque[float]] = {}

    def add(self, sample: Sample) -> None:
        """Take a sample as the present. One of another run of the broker ends what was between the two."""
        last = self.sample
        is_same_run = last is not None and last.broker.pid == sample.broker.pid
        self._before = last if is_same_run else None
        if not is_same_run or sample.counts is None:
            self._window.clear()
        self.sample = sample
        if sample.counts is not None:
            self._window.append(sample.counts)
            while sample.counts.now_ns - self._window[0].now_ns > WINDOW_S * NS:
                self._window.popleft()
        self.summary = self._summarize(sample)
        for name, values in self.history.items():
            values.append(getattr(self.summary, name) or 0.0)
        self._ends = {(one.topic, one.partition): one.high_watermark for one in sample.partitions}
        self._by_topic = {}
        for place in self._ends:
            self._by_topic.setdefault(place[0], []).append(place)
        self._follow_partitions(sample)

    def add_groups(self, groups: Groups) -> None:
        """Take the groups as those of now. If they are not known, those of before stay."""
        if self.groups is not None and groups.taken_ns == self.groups.taken_ns:
            return
        if groups.problem:
            known = self.groups.groups if self.groups is not None else ()
            self.groups = Groups(groups.taken_ns, known, groups.problem)
            return
        self._groups_before = None if self.groups is None or self.groups.problem else self.groups
        self.groups = groups
        lags = {one.group: self._lag(one) for one in groups.groups}
        self._lags = {name: self._lags.get(name) or deque(maxlen=TREND) for name in lags}
        for name, lag in lags.items():
            self._lags[name].append(lag or 0.0)

    def rows(self, view: View) -> list[Row]:
        """Return the rows of a view; each has a value for every column of it, None where nothing is known."""
        if self.sample is None:
            return []
        make: dict[View, Callable[[Sample], Iterable[Row]]] = {
            columns.PROCESSES: self._processes,
            columns.REQUESTS: self._requests,
            columns.MEMORY: self._memory,
            columns.PARTITIONS: self._partitions,
            columns.GROUPS: self._groups,
        }
        return list(make[view](self.sample))

    # ---- the broker as a whole

    def _summarize(self, sample: Sample) -> Summary:
        cpu = [row["cpu_percent"] for row in self._processes(sample) if row["cpu_percent"] is not None]
        pss = [one.pss_bytes for one in sample.processes if one.pss_bytes is not None]
        produce = self._latencies("Produce", ApiHistogram.TOTAL_NS)
        rate = self._rate
        return Summary(
            messages_in_per_s=rate(lambda counts: counts.all_topics[TopicMeter.MESSAGES_IN]),
            bytes_in_per_s=rate(lambda counts: counts.all_topics[TopicMeter.BYTES_IN]),
            bytes_out_per_s=rate(lambda counts: counts.all_topics[TopicMeter.BYTES_OUT]),
            requests_per_s=rate(_requests_in),
            produce_p50_ms=produce.get("50thPercentile"),
            produce_p99_ms=produce.get("99thPercentile"),
            cpu_percent=sum(cpu) if cpu else None,
            pss_bytes=sum(pss) if pss else None,
        )

    def _rate(self, count: Callable[[Snapshot], float]) -> float | None:
        """Return how much more a count has become in a second between the last two samples."""
        if self.sample is None or self.sample.counts is None:
            return None
        if self._before is None or self._before.counts is None:
            return None
        now, before = self.sample.counts, self._before.counts
        seconds = (now.now_ns - before.now_ns) / NS
        return max(count(now) - count(before), 0) / seconds if seconds > 0 else None

    # ---- processes

    def _processes(self, sample: Sample) -> Iterable[Row]:
        for one in sorted(sample.processes, key=lambda process: _INDEX_OF.get(process.name, 0)):
            index = _INDEX_OF.get(one.name)
            cpu = self._cpu_percent(one, sample)
            yield {
                "name": one.name,
                "pid": one.pid,
                "cpu_percent": cpu,
                "cpu_bar": cpu,
                "pss_bytes": one.pss_bytes,
                "requests_per_s": self._counter_rate(index, Counter.COUNT_REQUESTS),
                "turns_per_s": self._counter_rate(index, Counter.COUNT_WAKEUPS),
                "heartbeat_age_ms": one.heartbeat_age_ms,
                "restarts": one.restarts,
                "state": one.state,
                "last_error": one.last_error or None,
            }

    def _cpu_percent(self, process: ProcessSeen, sample: Sample) -> float | None:
        before = None
        if self._before is not None:
            before = next((one for one in self._before.processes if one.name == process.name), None)
        if before is None or before.pid != process.pid or before.cpu_s is None or process.cpu_s is None:
            return None
        assert self._before is not None
        seconds = (sample.taken_ns - self._before.taken_ns) / NS
        return max(process.cpu_s - before.cpu_s, 0.0) / seconds * 100 if seconds > 0 else None

    def _counter_rate(self, index: int | None, counter: Counter) -> float | None:
        return None if index is None else self._rate(lambda counts: counts.get(index, counter))

    # ---- requests

    def _requests(self, sample: Sample) -> Iterable[Row]:
        if sample.counts is None:
            return
        before = self._before.counts if self._before is not None else None
        earlier = by_name(before) if before is not None else {}
        for name, counts in by_name(sample.counts).items():
            if name in _PARTS:
                continue
            total, then = sum(counts.versions.values()), earlier.get(name, ApiCounts())
            times = self._latencies(name, ApiHistogram.TOTAL_NS)
            row: Row = {
                "api": name,
                "requests_per_s": self._between(total, sum(then.versions.values())),
                "bytes_per_s": self._between(_bytes_of(counts), _bytes_of(then)),
                "errors_per_s": self._rate(partial(_errors, name)),
                **{key: times.get(percentile) for key, percentile in _PERCENTILES.items()},
                **{key: self._latencies(name, stage).get("99thPercentile") for key, stage in _STAGES.items()},
                "total": total,
            }
            yield row

    def _between(self, now: float, before: float) -> float | None:
        """Return the rate of a count that is known of the last two samples."""
        if self._before is None or self._before.counts is None or self.sample is None:
            return None
        assert self.sample.counts is not None
        seconds = (self.sample.counts.now_ns - self._before.counts.now_ns) / NS
        return max(now - before, 0) / seconds if seconds > 0 else None

    def _latencies(self, name: str, histogram: ApiHistogram) -> dict[str, float]:
        """Return the percentiles (ms) of an API within the window; empty if it had no request there."""
        if len(self._window) < 2:
            return {}
        now, before = (by_name(one).get(name, ApiCounts()) for one in (self._window[-1], self._window[0]))
        if not now.histograms:
            return {}
        found = _since(now, before, histogram)
        total = _since(now, before, ApiHistogram.TOTAL_NS).count
        return found.with_zeros(total).attributes(NS_PER_MS) if total else {}

    # ---- rings and arenas

    def _memory(self, sample: Sample) -> Iterable[Row]:
        counts = sample.counts
        if counts is None:
            return
        for index in counts.serving(range(topology.PROCESSES)):
            name = topology.name_of(index)
            if name in _WITHOUT_RINGS:
                continue
            used = counts.get(index, Counter.COUNT_ARENA_BYTES)
            limit = counts.get(index, Counter.COUNT_ARENA_LIMIT_BYTES)
            is_processor = topology.is_processor(index)
            queued = counts.get(index, Counter.COUNT_QUEUED_REQUESTS)
            answers = counts.get(index, Counter.COUNT_RESPONSES_WAITING)
            yield {
                "name": name,
                "arena_bytes": used,
                "arena_limit_bytes": limit or None,
                "arena_percent": 100 * used / limit if limit else None,
                "queued": queued if is_processor else None,
                "answers": answers if is_processor else None,
                "waiting": None if is_processor else sum(counts.get(index, one) for one in _WAITING),
                "ring_full": counts.get(index, Counter.COUNT_RING_FULL),
                "memory_full": counts.get(index, Counter.COUNT_MEMORY_FULL),
                "fences": counts.get(index, Counter.COUNT_FENCES),
            }

    # ---- partitions

    def _follow_partitions(self, sample: Sample) -> None:
        """Note how fast each partition grows, for its trend."""
        kept: dict[Place, deque[float]] = {}
        for place, rate in self._growth(sample).items():
            kept[place] = self._trends.get(place) or deque(maxlen=TREND)
            kept[place].append(rate)
        self._trends = kept

    def _growth(self, sample: Sample) -> dict[Place, float]:
        """Return records a second of the partitions that were in the last two samples."""
        return self._per_second(sample, lambda before, now: now.log_end_offset - before.log_end_offset)

    def _per_second(
        self, sample: Sample, grown: Callable[[PartitionSeen, PartitionSeen], float | None]
    ) -> dict[Place, float]:
        """Return by how much partitions have grown in a second between the last two samples."""
        if self._before is None:
            return {}
        seconds = (sample.taken_ns - self._before.taken_ns) / NS
        earlier = {(one.topic, one.partition): one for one in self._before.partitions}
        pairs = (
            (place, earlier[place], one) for one in sample.partitions if (place := _place(one)) in earlier
        )
        return {
            place: max(by, 0) / seconds
            for place, before, now in pairs
            if seconds > 0 and (by := grown(before, now)) is not None
        }

    def _partitions(self, sample: Sample) -> Iterable[Row]:
        bytes_in = self._per_second(sample, _grown_bytes)
        for one in sorted(sample.partitions, key=_place):
            trend = self._trends.get(_place(one))
            yield {
                "topic": one.topic,
                "partition": one.partition,
                "records_per_s": trend[-1] if trend else None,
                "bytes_per_s": bytes_in.get(_place(one)),
                "trend": list(trend or ()),
                "size_bytes": one.size_bytes,
                "segments": one.segments,
                "log_start_offset": one.log_start_offset,
                "high_watermark": one.high_watermark,
                "log_end_offset": one.log_end_offset,
            }

    # ---- groups

    def _groups(self, _sample: Sample) -> Iterable[Row]:
        if self.groups is None:
            return
        for one in sorted(self.groups.groups, key=lambda group: group.group):
            yield {
                "group": one.group,
                "state": one.state,
                "members": one.members,
                "partitions": len(places := self._places(one)),
                "uncommitted": len(places) - len(one.committed),
                "lag": self._lag(one),
                "trend": list(self._lags.get(one.group, ())),
                "committed_per_s": self._committed_rate(one),
                "topics": ", ".join(sorted({topic for topic, _ in one.places})) or None,
            }

    def committed_of(self, name: str) -> list[tuple[str, int, int | None, int]]:
        """Return (topic, partition, committed offset, high watermark) of a group's partitions.

        They are all partitions of its topics. The offset is None where nothing is committed.
        """
        groups = self.groups.groups if self.groups is not None else ()
        return [place for group in groups if group.group == name for place in self._committed(group)]

    def _committed(self, group: GroupSeen) -> list[tuple[str, int, int | None, int]]:
        found = ((place, group.committed.get(place), self._ends.get(place)) for place in self._places(group))
        return [(*place, offset, end) for place, offset, end in found if end is not None]

    def _places(self, group: GroupSeen) -> list[Place]:
        """Return the partitions of a group's topics: those of its members, and those without any."""
        topics = {topic for topic, _ in group.places}
        return sorted(
            {*group.places, *(place for topic in topics for place in self._by_topic.get(topic, ()))}
        )

    def _lag(self, group: GroupSeen) -> int | None:
        """Return how many records the group has not committed; None without a committed offset.

        Partitions without one have no part in it: where the group would begin is not known.
        """
        lags = [max(end - at, 0) for _, _, at, end in self._committed(group) if at is not None]
        return sum(lags) if lags else None

    def _committed_rate(self, group: GroupSeen) -> float | None:
        if self.groups is None or self._groups_before is None:
            return None
        before = next((one for one in self._groups_before.groups if one.group == group.group), None)
        seconds = (self.groups.taken_ns - self._groups_before.taken_ns) / NS
        if before is None or seconds <= 0:
            return None
        moved = [
            offset - before.committed[place]
            for place, offset in group.committed.items()
            if place in before.committed
        ]
        return max(sum(moved), 0) / seconds


def arranged(rows: list[Row], view: View, wanted: str, key: str | None, *, is_reversed: bool) -> list[Row]:
    """Return the rows that have the wanted text, sorted by a column; None keeps the model's order.

    The wanted text is part of any text of the row, or a pattern of one with * and ?. Numbers begin with the
    largest, texts and offsets with the first; what is not known is last in either direction.
    """
    kinds = {column.key: column.kind for column in view.columns}
    texts = [name for name, kind in kinds.items() if kind in (Kind.TEXT, Kind.STATE)]
    found = [row for row in rows if _has(wanted, [row[name] for name in texts])]
    if key is None:
        return found
    known = [row for row in found if row[key] is not None]
    is_descending = kinds[key] not in (Kind.TEXT, Kind.STATE) and not key.endswith("_offset")
    known.sort(key=lambda row: row[key], reverse=is_descending != is_reversed)
    return known + [row for row in found if row[key] is None]


def _has(wanted: str, texts: Sequence[str | None]) -> bool:
    wanted = wanted.lower()
    if not wanted:
        return True
    given = [text.lower() for text in texts if text]
    if any(one in wanted for one in "*?["):
        return any(fnmatchcase(text, wanted) for text in given)
    return any(wanted in text for text in given)


def _place(one: PartitionSeen) -> Place:
    return one.topic, one.partition


def _grown_bytes(before: PartitionSeen, now: PartitionSeen) -> float | None:
    """Return how many bytes came between two looks, below the high watermark; None: not known.

    Of a segment that was rolled in between, the records are taken to be as large as those before the look.
    """
    if before.high_watermark_at is None or now.high_watermark_at is None:
        return None
    (old, begin), (segment, end) = before.high_watermark_at, now.high_watermark_at
    if segment == old:
        return end - begin
    records = before.high_watermark - old
    return None if records <= 0 else end + begin / records * max(segment - before.high_watermark, 0)


def _requests_in(counts: Snapshot) -> int:
    return sum(sum(one.versions.values()) for one in counts.apis.values())


def _bytes_of(counts: ApiCounts) -> int:
    return counts.histograms[ApiHistogram.REQUEST_BYTES].total if counts.histograms else 0


def _errors(name: str, counts: Snapshot) -> int:
    """Return how many errors an API has answered with."""
    return sum(
        number
        for key, codes in counts.errors.items()
        if api_name(key) == name
        for code, number in codes.items()
        if code
    )


def _since(now: ApiCounts, before: ApiCounts, histogram: ApiHistogram) -> Distribution:
    """Return what has come to a histogram. Its largest value is that since the start, which bounds it."""
    new = now.histograms[histogram]
    old = before.histograms[histogram] if before.histograms else NOTHING
    buckets = [max(a - b, 0) for a, b in zip(new.buckets, old.buckets, strict=True)]
    return Distribution(buckets, max(new.total - old.total, 0), new.largest)
