"""Rows about a broker, made of samples. Without I/O: `add` and `add_groups` take samples.

Rates are between the last two samples. Percentiles are of the requests of the last `WINDOW_S` seconds:
percentiles between two samples would vary too much, and percentiles since the start too little.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from mpbroker.client.group_descriptions import Member
from mpbroker.ipc import topology
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.meters import ApiHistogram, TopicMeter
from mpbroker.metrics.requests import NAMES_OF_PAGE, NS_PER_MS, api_name, by_name
from mpbroker.metrics.snapshot import NOTHING, NS, ApiCounts, Distribution, Snapshot
from mpbroker.observe.lag import Ends
from mpbroker.observe.rates import per_second, rate, since
from mpbroker.observe.samples import Groups, GroupSeen, PartitionSeen, ProcessSeen, Sample
from mpbroker.protocol.topic_names import TopicPartition

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
    """The broker in numbers; None: not known. CPU is in percent of one CPU, shared memory counts once."""

    messages_in_per_s: float | None = None
    bytes_in_per_s: float | None = None
    bytes_out_per_s: float | None = None
    requests_per_s: float | None = None
    produce_p50_ms: float | None = None
    produce_p99_ms: float | None = None
    cpu_percent: float | None = None
    pss_bytes: float | None = None


class Model:
    """Keeps the last samples of one broker, and makes rows from them. Without samples there are no rows.

    A row has a value for each of its names, None where nothing is known. `window` has the counts of the last
    `WINDOW_S` seconds.
    """

    def __init__(self) -> None:
        self.sample: Sample | None = None
        self.groups: Groups | None = None
        self.summary = Summary()
        self.history: dict[str, deque[float]] = {name: deque(maxlen=HISTORY) for name in Summary._fields}
        self._before: Sample | None = None
        self._groups_before: Groups | None = None
        self.window: deque[Snapshot] = deque()
        self._ends = Ends({})
        self._trends: dict[TopicPartition, deque[float]] = {}
        self._lags: dict[str, deque[float]] = {}

    def add(self, sample: Sample) -> None:
        """Add the newest sample. If it is of another run of the broker, rates begin again."""
        last = self.sample
        is_same_run = last is not None and last.broker.pid == sample.broker.pid
        self._before = last if is_same_run else None
        if not is_same_run or sample.counts is None:
            self.window.clear()
        self.sample = sample
        if sample.counts is not None:
            self.window.append(sample.counts)
            while sample.counts.now_ns - self.window[0].now_ns > WINDOW_S * NS:
                self.window.popleft()
        self.summary = self._summarize(sample)
        for name, values in self.history.items():
            values.append(getattr(self.summary, name) or 0.0)
        self._ends = Ends({_place(one): one.high_watermark for one in sample.partitions})
        self._follow_partitions(sample)

    def add_groups(self, groups: Groups) -> None:
        """Add the newest groups. If they could not be read, keep the previous groups and note the problem."""
        if self.groups is not None and groups.taken_ns == self.groups.taken_ns:
            return
        if groups.problem:
            known = self.groups.groups if self.groups is not None else ()
            self.groups = Groups(groups.taken_ns, known, groups.problem)
            return
        self._groups_before = None if self.groups is None or self.groups.problem else self.groups
        self.groups = groups
        lags = {one.group: self._ends.lag(one.committed) for one in groups.groups}
        self._lags = {name: self._lags.get(name) or deque(maxlen=TREND) for name in lags}
        for name, lag in lags.items():
            self._lags[name].append(lag or 0.0)

    # ---- the broker as a whole

    def _summarize(self, sample: Sample) -> Summary:
        cpu = [percent for one in sample.processes if (percent := self._cpu_percent(one)) is not None]
        pss = [one.pss_bytes for one in sample.processes if one.pss_bytes is not None]
        produce: dict[str, float] = {}
        if self.window:
            now, first = (
                by_name(one).get("Produce", ApiCounts()) for one in (self.window[-1], self.window[0])
            )
            produce = _latencies(now, first, ApiHistogram.TOTAL_NS)
        return Summary(
            messages_in_per_s=self._rate(lambda counts: counts.all_topics[TopicMeter.MESSAGES_IN]),
            bytes_in_per_s=self._rate(lambda counts: counts.all_topics[TopicMeter.BYTES_IN]),
            bytes_out_per_s=self._rate(lambda counts: counts.all_topics[TopicMeter.BYTES_OUT]),
            requests_per_s=self._rate(_requests_in),
            produce_p50_ms=produce.get("50thPercentile"),
            produce_p99_ms=produce.get("99thPercentile"),
            cpu_percent=sum(cpu) if cpu else None,
            pss_bytes=sum(pss) if pss else None,
        )

    def _rate(self, count: Callable[[Snapshot], float]) -> float | None:
        """Return the growth per second of a count between the last two samples."""
        return rate(_counts(self.sample), _counts(self._before), count)

    # ---- processes

    def process_rows(self) -> Iterator[Row]:
        processes = self.sample.processes if self.sample is not None else ()
        for one in sorted(processes, key=lambda process: _INDEX_OF.get(process.name, 0)):
            index = _INDEX_OF.get(one.name)
            cpu = self._cpu_percent(one)
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

    def _cpu_percent(self, process: ProcessSeen) -> float | None:
        if self.sample is None or self._before is None:
            return None
        before = next((one for one in self._before.processes if one.name == process.name), None)
        if before is None or before.pid != process.pid or before.cpu_s is None or process.cpu_s is None:
            return None
        used = per_second(process.cpu_s, before.cpu_s, self.sample.taken_ns - self._before.taken_ns)
        return None if used is None else used * 100

    def _counter_rate(self, index: int | None, counter: Counter) -> float | None:
        return None if index is None else self._rate(lambda counts: counts.get(index, counter))

    # ---- requests

    def request_rows(self) -> Iterator[Row]:
        counts, before = _counts(self.sample), _counts(self._before)
        if counts is None:
            return
        passed_ns = counts.now_ns - before.now_ns if before is not None else 0
        earlier = by_name(before) if before is not None else {}
        oldest = by_name(self.window[0])
        for name, now in by_name(counts).items():
            if name in _PARTS:
                continue
            total, then = sum(now.versions.values()), earlier.get(name, ApiCounts())
            first = oldest.get(name, ApiCounts())
            times = _latencies(now, first, ApiHistogram.TOTAL_NS)
            yield {
                "api": name,
                "requests_per_s": per_second(total, sum(then.versions.values()), passed_ns),
                "bytes_per_s": per_second(_bytes_of(now), _bytes_of(then), passed_ns),
                "errors_per_s": self._rate(partial(_errors, name)),
                **{key: times.get(percentile) for key, percentile in _PERCENTILES.items()},
                **{
                    key: _latencies(now, first, stage).get("99thPercentile") for key, stage in _STAGES.items()
                },
                "total": total,
            }

    # ---- rings and arenas

    def memory_rows(self) -> Iterator[Row]:
        counts = _counts(self.sample)
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
        """Add each partition's growth in records per second to its trend."""
        kept: dict[TopicPartition, deque[float]] = {}
        grown = self._per_second(sample, lambda before, now: now.log_end_offset - before.log_end_offset)
        for place, records_per_s in grown.items():
            kept[place] = self._trends.get(place) or deque(maxlen=TREND)
            kept[place].append(records_per_s)
        self._trends = kept

    def _per_second(
        self, sample: Sample, grown: Callable[[PartitionSeen, PartitionSeen], float | None]
    ) -> dict[TopicPartition, float]:
        """Return each partition's growth per second between the last two samples, if it is known."""
        if self._before is None:
            return {}
        passed_ns = sample.taken_ns - self._before.taken_ns
        earlier = {_place(one): one for one in self._before.partitions}
        pairs = (
            (place, earlier[place], one) for one in sample.partitions if (place := _place(one)) in earlier
        )
        return {
            place: found
            for place, before, now in pairs
            if (by := grown(before, now)) is not None and (found := per_second(by, 0, passed_ns)) is not None
        }

    def partition_rows(self) -> Iterator[Row]:
        if self.sample is None:
            return
        bytes_in = self._per_second(self.sample, _grown_bytes)
        for one in sorted(self.sample.partitions, key=_place):
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

    def group_rows(self) -> Iterator[Row]:
        groups = self.groups.groups if self.groups is not None else ()
        for one in sorted(groups, key=lambda group: group.group):
            yield {
                "group": one.group,
                "state": one.state,
                "type": one.type or None,
                "protocol": None if one.described is None else one.described.assignor or None,
                "epoch": None if one.described is None else one.described.epoch,
                "target_epoch": None if one.described is None else one.described.target_epoch,
                "members": one.members,
                "partitions": len(places := self._ends.places(one.places)),
                "uncommitted": len(places) - len(one.committed),
                "lag": self._ends.lag(one.committed),
                "trend": list(self._lags.get(one.group, ())),
                "committed_per_s": self._committed_rate(one),
                "topics": ", ".join(sorted({topic for topic, _ in one.places})) or None,
            }

    def committed_of(self, name: str) -> list[tuple[str, int, int | None, int]]:
        """Return (topic, partition, committed offset or None, high watermark) of a group's partitions."""
        groups = self.groups.groups if self.groups is not None else ()
        ends = self._ends
        return [
            (*place, group.committed.get(place), ends.of[place])
            for group in groups
            if group.group == name
            for place in ends.places(group.places)
            if place in ends.of
        ]

    def members_of(self, name: str) -> list[Member]:
        """Return the members of a group, as far as they are known."""
        groups = self.groups.groups if self.groups is not None else ()
        found = (one.described for one in groups if one.group == name)
        return [member for group in found if group is not None for member in group.members]

    def _committed_rate(self, group: GroupSeen) -> float | None:
        if self.groups is None or self._groups_before is None:
            return None
        before = next((one for one in self._groups_before.groups if one.group == group.group), None)
        if before is None:
            return None
        moved = [
            offset - before.committed[place]
            for place, offset in group.committed.items()
            if place in before.committed
        ]
        return per_second(sum(moved), 0, self.groups.taken_ns - self._groups_before.taken_ns)


def _counts(sample: Sample | None) -> Snapshot | None:
    return sample.counts if sample is not None else None


def _place(one: PartitionSeen) -> TopicPartition:
    return one.topic, one.partition


def _grown_bytes(before: PartitionSeen, now: PartitionSeen) -> float | None:
    """Return how many bytes the high watermark has moved: an estimate if it is now in another segment."""
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
    """Return the number of error responses of the API `name`."""
    return sum(
        number
        for key, codes in counts.errors.items()
        if api_name(key) == name
        for code, number in codes.items()
        if code
    )


def _latencies(now: ApiCounts, before: ApiCounts, histogram: ApiHistogram) -> dict[str, float]:
    """Return the percentiles (ms) of an API between two samples; empty if it had no request."""
    total = _since(now, before, ApiHistogram.TOTAL_NS).count
    return _since(now, before, histogram).with_zeros(total).attributes(NS_PER_MS) if total else {}


def _since(now: ApiCounts, before: ApiCounts, histogram: ApiHistogram) -> Distribution:
    new, old = (one.histograms[histogram] if one.histograms else NOTHING for one in (now, before))
    return since(new, old)
