"""Takes samples of the broker while the page is open, and keeps them for a quarter of an hour.

The first request starts the sampling, which ends some time after the last request: a console without visitors
costs nothing. Samples, rows and rates are the same as in `mpbroker top`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import asdict

from mpbroker.client.range_assignor import assigned_partitions
from mpbroker.console import pipeline
from mpbroker.console.workers import Busy, Workers
from mpbroker.ipc import health, topology
from mpbroker.ipc.control_client import ControlClient, ControlError
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.disk_problems import state_of
from mpbroker.ipc.process import ProcessContext
from mpbroker.metrics.snapshot import Snapshot
from mpbroker.observe.lag import Ends, lag_behind
from mpbroker.observe.live import LiveBroker
from mpbroker.observe.model import Model, Row
from mpbroker.observe.offset_follower import OffsetFollower
from mpbroker.observe.samples import BrokerSeen, Health, Sample
from mpbroker.protocol.table_progress import GROUP_PREFIX
from mpbroker.protocol.topic_names import OWN_TOPICS, TopicPartition

EVERY_S: Final = 2.0
# A sample that took a second is followed by a pause of three: clients need the processor, too.
PAUSE_FACTOR: Final = 3.0
HISTORY_S: Final = 900.0
# Sampling ends this long after the last request.
WATCHED_S: Final = 20.0
# Samples are at least this far apart. A clock that is set back must not make the history longer.
HISTORY_MAX: Final = int(HISTORY_S / EVERY_S) + 1
# Any client may choose names of groups.
GROUP_HISTORIES_MAX: Final = 300
SERIES: Final = (
    *("messages_in_per_s", "bytes_in_per_s", "bytes_out_per_s", "requests_per_s", "produce_p50_ms"),
    *("produce_p99_ms", "fsync_p50_ms", "fsync_p99_ms", "cpu_percent", "pss_bytes", "connections"),
)


class Watch:
    """Takes and keeps samples. Only `_sample` and `_health` block, and they run in worker threads."""

    def __init__(self, context: ProcessContext, offsets: OffsetFollower) -> None:
        self._context = context
        self._offsets = offsets
        # Health has another one: its question to the supervisor may take longer than a sample.
        self._samplers = Workers("console-sample", 1)
        self._healths = Workers("console-health", 1)
        control = ControlClient(context.memory.public_path.parent)
        self._live = LiveBroker(control)
        self.model = Model()
        self._commits: dict[str, Any] = {}
        self._paths: dict[str, float] = {}
        self._samples: deque[tuple[int, float, list[float | None]]] = deque(maxlen=HISTORY_MAX)
        self._lags: dict[str, deque[tuple[int, float, int]]] = {}
        self._number = 0
        self._asked_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._is_sampled = asyncio.Event()
        self._soon = asyncio.Event()

    async def fresh(self) -> None:
        """Begin or continue to take samples for a while. Return as soon as there is a sample."""
        self._asked_at = time.monotonic()
        if self._task is None or self._task.done():
            self._is_sampled.clear()
            self._task = asyncio.create_task(self._run())
        if not self._is_sampled.is_set():
            first = asyncio.create_task(self._is_sampled.wait())
            await asyncio.wait((first, self._task), return_when=asyncio.FIRST_COMPLETED)
            first.cancel()
            if self._task.done():
                self._task.result()

    def sample_soon(self) -> None:
        """Take the next sample without a pause, since the console has changed something."""
        self._soon.set()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._samplers.close()
        self._healths.close()

    async def _run(self) -> None:
        while time.monotonic() - self._asked_at < WATCHED_S:
            began = time.monotonic()
            try:
                sample = await self._samplers.do(self._sample)
            except Busy:
                # Samples of cancelled tasks are not over yet.
                await asyncio.sleep(EVERY_S)
                continue
            self._add(sample)
            if sample.counts is not None:
                await self._offsets.follow(sample.counts)
                self._follow_lags(sample.counts)
            self._is_sampled.set()
            took_s = time.monotonic() - began
            self._soon.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._soon.wait(), max(EVERY_S - took_s, took_s * PAUSE_FACTOR))

    def _sample(self) -> Sample:
        try:
            return self._live.sample()
        except ControlError as error:
            return Sample(time.monotonic_ns(), BrokerSeen(Health.UNKNOWN, str(error)))

    def _add(self, sample: Sample) -> None:
        self.model.add(sample)
        self._number += 1
        now = sample.counts
        if now is not None:
            window = self.model.window
            before = window[0] if len(window) > 1 else None
            self._commits = pipeline.commits(now, before, topology.LOG_WORKERS)
            self._paths = pipeline.paths(now, before)
        summary = self.model.summary._asdict()
        summary |= {
            "fsync_p50_ms": self._commits.get("p50_ms"),
            "fsync_p99_ms": self._commits.get("p99_ms"),
            "connections": sample.broker.connections,
        }
        clock = time.time()
        self._samples.append((self._number, clock, [_short(summary[name]) for name in SERIES]))
        while self._samples[0][1] < clock - HISTORY_S:
            self._samples.popleft()

    def _follow_lags(self, now: Snapshot) -> None:
        clock = time.time()
        for name, lag in self._lags_of(now).items():
            values = self._lags.get(name)
            if values is None:
                if len(self._lags) >= GROUP_HISTORIES_MAX:
                    continue
                values = self._lags[name] = deque(maxlen=HISTORY_MAX)
            values.append((self._number, clock, lag))
            while values[0][1] < clock - HISTORY_S:
                values.popleft()
        for name in [name for name, values in self._lags.items() if values[-1][0] != self._number]:
            del self._lags[name]

    def _lags_of(self, now: Snapshot) -> dict[str, int]:
        """Return the lag of each group that has a committed offset in an existing partition."""
        ends = ends_of(now)
        lags = {name: ends.lag(group.offsets) for name, group in self._offsets.committed.groups.items()}
        return {name: lag for name, lag in lags.items() if lag is not None}

    # ---- answers to the page

    def live(self, after: int) -> dict[str, Any]:
        """Return the samples after number `after`, the broker's state, and the rows of the page's tables."""
        config, memory = self._context.config, self._context.memory
        sample = self.model.sample
        assert sample is not None
        broker = sample.broker
        return {
            "number": self._number,
            "every_s": EVERY_S,
            "series": SERIES,
            "samples": [[at, *values] for number, at, values in self._samples if number > after],
            "broker": {
                "health": broker.health.name.lower(),
                "note": broker.note,
                "node_id": broker.node_id,
                "version": broker.version,
                "up_s": broker.up_s,
                "listeners": broker.listeners,
                "connections": broker.connections,
                "offline_partitions": broker.offline_partitions,
            },
            "problems": health.reasons_not_ready(config, memory),
            "processes": [
                _with_kind(_without(row, "last_error", "cpu_bar")) for row in self.model.process_rows()
            ],
            "requests": list(self.model.request_rows()),
            "memory": [_with_kind(row) for row in self.model.memory_rows()],
            "rings": pipeline.rings(memory),
            "commits": self._commits,
            "paths": self._paths,
            "journal_bytes": config.log_journal_bytes,
            "flush_policy": config.log_flush_policy,
        }

    def topics(self) -> list[dict[str, Any]]:
        """Return a row for each topic, with the sums of its partitions."""
        found: dict[str, dict[str, Any]] = {}
        for one in self.model.partition_rows():
            name = one["topic"]
            first: dict[str, Any] = {"topic": name, "is_internal": is_internal(name), "trend": []}
            first |= dict.fromkeys(("partitions", "records", "records_per_s"), 0)
            first |= dict.fromkeys(("size_bytes", "segments"))
            row = found.setdefault(name, first)
            row["partitions"] += 1
            row["records"] += one["log_end_offset"] - one["log_start_offset"]
            row["records_per_s"] += one["records_per_s"] or 0.0
            for each in ("size_bytes", "segments"):
                if one[each] is not None:
                    row[each] = (row[each] or 0) + one[each]
            row["trend"] = _added(row["trend"], one["trend"])
        return list(found.values())

    def partitions(self, topic: str) -> list[Row]:
        return [_without(row, "topic") for row in self.model.partition_rows() if row["topic"] == topic]

    def groups(self) -> list[dict[str, Any]]:
        """Return a row for each group. `uncommitted`: its number of partitions without a commit."""
        ends = self._ends()
        rows = []
        for name, group in self._offsets.committed.groups.items():
            assigned = {place for one in group.assignments for place in assigned_partitions(one)}
            assigned |= {place for one in group.subscribed_topics if (place := (one, 0)) in ends.of}
            places = ends.places({*assigned, *group.offsets})
            rows.append(
                {
                    "group": name,
                    "type": group.type,
                    "members": group.members or 0,
                    "partitions": len(places),
                    "uncommitted": len(places) - len(group.offsets),
                    "topics": sorted({topic for topic, _ in places})[:20],
                    "lag": ends.lag(group.offsets),
                    "history": self._lag_history(name),
                }
            )
        return rows

    def tables(self) -> list[dict[str, Any]]:
        """Return a row for each table that the tables job writes, as it says itself."""
        ends = self._ends()
        return [
            {
                "table": name.removeprefix(GROUP_PREFIX),
                "group": name,
                "topics": sorted({topic for topic, _ in group.offsets}),
                "lag": ends.lag(group.offsets),
                "history": self._lag_history(name),
                **asdict(group.note),
            }
            for name, group in sorted(self._offsets.committed.groups.items())
            if group.note is not None
        ]

    def type_of(self, name: str) -> str:
        """Return the type of a group, "" if its records are not read yet."""
        group = self._offsets.committed.groups.get(name)
        return "" if group is None else group.type

    def _ends(self) -> Ends:
        sample = self.model.sample
        return ends_of(sample.counts) if sample is not None and sample.counts is not None else Ends({})

    def _lag_history(self, name: str) -> list[list[float]]:
        return [[round(at, 1), lag] for _, at, lag in self._lags.get(name, ())]

    def lag_of(
        self, name: str, assigned: Iterable[TopicPartition]
    ) -> tuple[list[list[float]], list[dict[str, Any]]]:
        """Return the lag of a group over time, and a row for each partition of its topics."""
        ends, group = self._ends(), self._offsets.committed.groups.get(name)
        committed = group.offsets if group is not None else {}
        places = ends.places({*committed, *assigned})
        rows = [_offset_row(place, committed.get(place), ends.of.get(place)) for place in places]
        # Offsets are read between two samples, too: the line ends with the sum of the rows.
        lags = [row["lag"] for row in rows if row["lag"] is not None]
        now = [[round(time.time(), 1), sum(lags)]] if lags else []
        return self._lag_history(name) + now, rows

    async def health(self) -> dict[str, Any]:
        """Return the state of recovery, scrubbing and log directories. Raises Busy."""
        return await self._healths.do(self._health)

    def _health(self) -> dict[str, Any]:
        config, memory = self._context.config, self._context.memory
        found: dict[str, Any] = {
            "problems": health.reasons_not_ready(config, memory),
            "silent": health.unresponsive_processes(config, memory),
            "recovery": [
                {
                    "log_dir": config.log_dirs[one.log_dir],
                    "partitions_done": one.partitions_done,
                    "partitions": one.partitions,
                    "bytes_done": one.bytes_done,
                    "bytes": one.bytes,
                    "seconds_left": one.seconds_left,
                }
                for one in health.recoveries_under_way(config, memory)
            ],
            "log_dirs": [
                {
                    "log_dir": one.name,
                    "state": state_of(one),
                    "size_bytes": one.size_bytes,
                    "kept_bytes": one.kept_bytes,
                    "total_bytes": one.total_bytes,
                    "usable_bytes": one.usable_bytes,
                }
                for one in memory.dir_sizes().all().values()
            ],
            "offline_partitions": self.model.sample.broker.offline_partitions if self.model.sample else 0,
            "restarts": memory.counters(topology.SUPERVISOR).get(Counter.COUNT_RESTARTS),
        }
        try:
            found["scrub"] = self._live.control.call("scrub")
            found["remote"] = self._live.control.call("remote")
        except ControlError as error:
            found["scrub_problem"] = str(error)
        return found


def is_internal(topic: str) -> bool:
    """Return whether a topic is the broker's own, which the console does not delete or extend."""
    return topic in OWN_TOPICS


def knows_topics(sample: Sample | None) -> bool:
    """Return whether a sample has all topics: the broker runs, and its recovery is over."""
    if sample is None or sample.counts is None:
        return False
    return sample.broker.health in (Health.RUNNING, Health.NOT_READY, Health.SILENT)


def ends_of(now: Snapshot) -> Ends:
    """Return the high watermarks of all partitions that are not offline."""
    return Ends({(one.topic, one.partition): one.high_watermark for one in now.logs if one.usable})


def _offset_row(place: TopicPartition, committed: int | None, end: int | None) -> dict[str, Any]:
    """Return a row about a group's partition. An `end` below `committed` is old: `committed` replaces it."""
    row = {"topic": place[0], "partition": place[1], "committed": committed, "end": end, "lag": None}
    if committed is not None and end is not None:
        row |= {"end": max(end, committed), "lag": lag_behind(end, committed)}
    return row


def _without(row: Row, *names: str) -> Row:
    return {name: value for name, value in row.items() if name not in names}


def _with_kind(row: Row) -> Row:
    """Return a row about a process, with the process's kind added."""
    return {**row, "kind": pipeline.KINDS[row["name"]]}


def _added(sums: list[float], values: list[float]) -> list[float]:
    """Return the sum of two trends whose last values are of the same moment."""
    longer, shorter = (sums, values) if len(sums) >= len(values) else (values, sums)
    offset = len(longer) - len(shorter)
    return [*longer[:offset], *(a + b for a, b in zip(longer[offset:], shorter, strict=True))]


def _short(value: float | None) -> float | None:
    """Return a value rounded to four digits, which is enough for a plot."""
    if value is None or value == 0 or not math.isfinite(value):
        return value
    return float(f"{value:.4g}")
