"""mpbroker's own metrics: processes, rings, memory, log writes, listeners, log directories, recovery.

Values are in Prometheus' base units, seconds and bytes. A ring is a queue in shared memory between processes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import islice
from typing import Final

from mpbroker.config.version import VERSION
from mpbroker.exporter.exposition import Family, Page
from mpbroker.exporter.partition_metrics import GROUP_OFFSETS_MAX
from mpbroker.ipc import topology
from mpbroker.ipc.counters import Counter, Histogram
from mpbroker.ipc.leading import lease_left_ms
from mpbroker.ipc.listeners import ListenerCount
from mpbroker.ipc.meters import ApiHistogram, QuotaWord
from mpbroker.ipc.progress import Progress
from mpbroker.ipc.standby_lag import StandbyLag
from mpbroker.ipc.topology import HANDLERS, LOG_WORKERS, SCRUBBER, SUPERVISOR, TIER, SharedMemory, name_of
from mpbroker.metrics import requests
from mpbroker.metrics.broker import LOG_TOTALS, SERVED
from mpbroker.metrics.listeners import OURS as LISTENER_COUNTS
from mpbroker.metrics.processes import ProcessUsage
from mpbroker.metrics.snapshot import NS, Snapshot
from mpbroker.observe.committed_groups import CommittedGroup
from mpbroker.observe.committed_offsets import CommittedOffsets
from mpbroker.protocol.table_progress import GROUP_PREFIX
from shm.counters import bucket_of

TABLES_MAX: Final = 1000
_families: list[Family] = []


def _gauge(name: str, meaning: str, kind: str = "gauge") -> Family:
    _families.append(Family(f"mpbroker_{name}", kind, meaning))
    return _families[-1]


def _counter(name: str, meaning: str) -> Family:
    return _gauge(f"{name}_total", meaning, "counter")


def _histogram(name: str, meaning: str) -> Family:
    return _gauge(name, meaning, "histogram")


def declared() -> list[Family]:
    """Return all metric families of this module, for docs/MONITORING.md."""
    return list(_families)


# Bounds of histograms, as powers of two of the recorded unit.
_TIME_BOUNDS = tuple((bucket_of(1 << power), (1 << power) / NS) for power in range(14, 36))
_COUNT_BOUNDS = tuple((bucket_of(1 << power), float(1 << power)) for power in range(13))

BUILD = _gauge("build_info", "1, with the version as a label.")
UPTIME = _gauge("uptime_seconds", "Time since the broker began.")
READY = _gauge(
    "ready", "1 if recovery is over, each listener answers, and each disk takes what producers send."
)
RESTARTS = _counter("restarts", "Processes that died and were replaced.")
LOST = _counter("lost_pages", "Pages of counters for which the tmpfs had no room: some counts are lost.")
UNMEASURED = _counter(
    "unmeasured_requests", "Requests that no quota limited: too many clients with quotas were active at once."
)

UP = _gauge("process_up", "1 if the process serves, 0 while it starts or is being replaced.")
CPU = _counter("process_cpu_seconds", "CPU time of the process that has the role now.")
PSS = _gauge(
    "process_pss_bytes",
    "Proportional set size: resident memory, shared pages divided among the processes that have them.",
)
RESIDENT = _gauge("process_resident_bytes", "Resident memory, shared pages and all.")
THREADS = _gauge("process_threads", "Threads of the process.")
HEARTBEAT = _gauge("process_heartbeat_age_seconds", "Time since the process moved last.")
IDLE = _counter("process_idle_seconds", "Time that the process has slept.")
TURNS = _counter("process_turns", "Turns of the process's loop.")
REQUESTS = _counter("process_requests", "Requests that the process has taken.")
ERRORS = _counter("process_errors", "Exceptions, answered with UNKNOWN_SERVER_ERROR or a closed connection.")
RING_FULL = _counter("process_ring_full", "Times that a ring had no room for the process.")
MEMORY_FULL = _counter(
    "process_memory_full", "Times that the process read no more because its arena was full."
)
ARENA = _gauge("process_arena_bytes", "Memory of the process's arena that is lent out.")
ARENA_LIMIT = _gauge("process_arena_limit_bytes", "What a processor's arena may lend at most.")
RING_WAITING = _gauge("ring_waiting", "Descriptors in the rings that the process consumes.")
RING_FILL = _gauge("ring_fill_ratio", "How full the fullest of these rings is, from 0 to 1.")

_SERVED_MEANINGS = {
    Counter.COUNT_PRODUCE_FAST: "Produce requests that took the native turn.",
    Counter.COUNT_PRODUCE_SLOW: "Produce requests that went through Python.",
    Counter.COUNT_FETCHES: "Fetch requests.",
    Counter.COUNT_FETCHES_FAST: "Fetch requests that took the native turn.",
    Counter.COUNT_FETCHES_PARKED: "Fetch requests that waited for records.",
    Counter.COUNT_FETCHES_INCREMENTAL: "Fetch requests that went on with a session.",
    Counter.COUNT_FETCHES_COLD: "Parts of files that were read from the disk for fetches.",
}
_LOG_MEANINGS = {
    Counter.COUNT_BATCHES_APPENDED: "Batches appended.",
    Counter.COUNT_RECORDS_APPENDED: "Records appended, with the broker's own metadata.",
    Counter.COUNT_BYTES_APPENDED: "Bytes appended.",
    Counter.COUNT_DUPLICATES: "Batches that idempotent producers sent twice.",
    Counter.COUNT_COMMIT_ROUNDS: "Commit rounds: what waits is synced together.",
    Counter.COUNT_SEGMENTS_ROLLED: "Segments rolled.",
    Counter.COUNT_UNSHIPPED_REFUSED: "Batches refused because too much waits for the object store.",
}


def _declare_totals(
    prefix: str, totals: Mapping[str, Counter], meanings: Mapping[Counter, str]
) -> dict[Counter, Family]:
    assert set(totals.values()) == set(meanings)
    return {
        counter: _counter(f"{prefix}_{name.removesuffix('-total').replace('-', '_')}", meanings[counter])
        for name, counter in totals.items()
    }


SERVED_FAMILIES = _declare_totals("handler", SERVED, _SERVED_MEANINGS)
LOG_FAMILIES = _declare_totals("log", LOG_TOTALS, _LOG_MEANINGS)
COMMIT = _histogram("log_commit_duration_seconds", "Commit rounds of the log workers: write and fdatasync.")
APPEND = _histogram("log_append_duration_seconds", "Rounds of appends of the log workers.")
ROUND = _histogram("log_round_batches", "Batches that a log worker appended in one round.")
TURN = _histogram("turn_requests", "Requests that a handler or a log worker took in one turn.")
DURATION = _histogram("request_duration_seconds", "From the whole request to the whole answer, by API.")
STAGE = _counter(
    "request_stage_seconds",
    "Time of requests in each stage: request_queue, local, remote, throttle, response_queue, response_send.",
)

LISTENER_FAMILIES = {
    ListenerCount.OPEN: _gauge("listener_connections", "Open connections."),
    ListenerCount.ACCEPTED: _counter("listener_accepted", "Connections given to a processor."),
    ListenerCount.REFUSED_PER_IP: _counter(
        "listener_refused_per_ip", "Connections refused by max.connections.per.ip."
    ),
    ListenerCount.THROTTLED: _counter(
        "listener_throttled", "Connections delayed by the rate of the broker or the listener."
    ),
    ListenerCount.THROTTLED_IP: _counter(
        "listener_throttled_per_ip", "Connections refused by the rate of their address."
    ),
    ListenerCount.ACCEPT_ERRORS: _counter("listener_accept_errors", "Failures to accept."),
}
assert set(LISTENER_FAMILIES) == set(LISTENER_COUNTS.values())

DIR_PARTITIONS = _gauge("log_dir_partitions", "Partitions in a log directory that can be used.")
DIR_SIZE = _gauge("log_dir_size_bytes", "Bytes of segments in a log directory.")
DIR_TOTAL = _gauge("log_dir_total_bytes", "Size of the file system of a log directory.")
DIR_USABLE = _gauge("log_dir_usable_bytes", "What is left of that for the broker.")
DIR_OFFLINE = _gauge("log_dir_offline", "1 if the log directory has failed.")
DIR_REFUSES = _gauge(
    "log_dir_refuses_produces", "1 while produces are refused, as on a full disk; reads go on."
)

RECOVERY_PARTITIONS = _gauge(
    "recovery_partitions_left", "Partitions of a log directory that recovery has yet to open."
)
RECOVERY_BYTES = _gauge("recovery_bytes_left", "Bytes that recovery has yet to check.")

SCRUB_BYTES = _counter("scrubber_bytes", "Bytes that the scrubber has read.")
SCRUB_BATCHES = _counter("scrubber_batches", "Batches that the scrubber found whole.")
SCRUB_PASSES = _counter("scrubber_passes", "Log directories scrubbed to their end.")
SCRUB_DAMAGED = _gauge("scrubber_damaged_ranges", "Damaged ranges: their offsets cannot be read.")
SCRUB_LEFT = _gauge("scrubber_remaining_bytes", "What is left of the pass under way.")

# Of tiered storage; they are there once the tier has begun.
_REMOTE = (
    (_counter("remote_copied_segments", "Segments uploaded."), Counter.COUNT_REMOTE_COPIED_SEGMENTS),
    (_counter("remote_copied_bytes", "Bytes of segments uploaded."), Counter.COUNT_REMOTE_COPIED_BYTES),
    (_counter("remote_errors", "Failures of uploads and deletions."), Counter.COUNT_REMOTE_ERRORS),
    (_counter("remote_fetches", "Windows and indexes downloaded."), Counter.COUNT_REMOTE_FETCHES),
    (_counter("remote_fetched_bytes", "Bytes downloaded."), Counter.COUNT_REMOTE_FETCHED_BYTES),
    (_counter("remote_fetch_errors", "Downloads that failed."), Counter.COUNT_REMOTE_FETCH_ERRORS),
    (_counter("remote_cache_hits", "Windows that were in the cache."), Counter.COUNT_REMOTE_CACHE_HITS),
    (_counter("remote_cuts", "Cuts that the ledger has."), Counter.COUNT_REMOTE_CUTS),
    (
        _counter("remote_cuts_skipped", "Cuts that were due and could not be made: the log says why."),
        Counter.COUNT_REMOTE_CUTS_SKIPPED,
    ),
    (_gauge("remote_cache_bytes", "Downloads that are kept on disk."), Counter.COUNT_REMOTE_CACHE_BYTES),
    (_gauge("remote_segments", "Segments in the object store."), Counter.COUNT_REMOTE_SEGMENTS),
    (_gauge("remote_bytes", "Bytes of these."), Counter.COUNT_REMOTE_BYTES),
    (
        _gauge("remote_pending_segments", "Sealed segments that wait for their upload."),
        Counter.COUNT_REMOTE_PENDING_SEGMENTS,
    ),
    (_gauge("remote_pending_bytes", "Bytes of these."), Counter.COUNT_REMOTE_PENDING_BYTES),
    (
        _gauge("remote_fenced", "1 if the tier writes nothing any more: its log says why."),
        Counter.COUNT_REMOTE_FENCED,
    ),
    (_gauge("remote_standbys", "Brokers that stand by."), Counter.COUNT_REMOTE_STANDBYS),
)
REMOTE_LEADS = _gauge("remote_leads", "1 if clients are served; 0: the lease has run out.")
REMOTE_LEASE = _gauge("remote_lease_seconds", "Time until the lease runs out; -1: nobody stands by.")
# Seconds since a time by the wall clock; 0 if there is none.
_REMOTE_AGES = (
    (
        _gauge("remote_pending_age_seconds", "Time since the oldest of these was last written."),
        Counter.COUNT_REMOTE_PENDING_SINCE_MS,
    ),
    (
        _gauge("remote_outage_seconds", "Time for which the object store has failed; 0: it answers."),
        Counter.COUNT_REMOTE_DOWN_SINCE_MS,
    ),
    (
        _gauge("remote_last_commit_age_seconds", "Time since the ledger got its last entry."),
        Counter.COUNT_REMOTE_COMMITTED_MS,
    ),
    (
        _gauge("remote_cut_age_seconds", "Time since the newest cut: what is younger has no copy."),
        Counter.COUNT_REMOTE_CUT_MS,
    ),
)

STANDBY_BEHIND = _gauge(
    "standby_behind_seconds", "Of a standby: time since its mirror had all of the ledger; -1: it never had."
)
STANDBY_ENTRIES = _gauge("standby_behind_entries", "Entries of the ledger that the mirror does not have yet.")
STANDBY_BYTES = _gauge("standby_behind_bytes", "Bytes that are still to be downloaded for these entries.")
STANDBY_CUT = _gauge("standby_cut_age_seconds", "Time since the cut that the mirror has; 0: it has none.")

OFFSETS_UNREADABLE = _gauge(
    "group_offsets_unreadable_partitions",
    "Partitions of __consumer_offsets that the exporter cannot read: the lag of their groups is old.",
)
OFFSETS_BEHIND = _gauge(
    "group_offsets_behind", "Offsets of __consumer_offsets that the exporter has yet to read."
)
OFFSETS_LEFT_OUT = _gauge(
    "group_offsets_left_out",
    f"Committed offsets beyond the {GROUP_OFFSETS_MAX:,} of a page; each group gets a fair share of them.",
)
TABLE_ROWS = _gauge("table_rows", "Rows of a table that the tables job writes.")
TABLE_FILES = _gauge("table_files", "Data files of a table.")
TABLE_BYTES = _gauge("table_bytes", "Bytes of a table's data files.")
TABLE_ERROR_ROWS = _gauge(
    "table_error_rows", "Rows with an error instead of a decoded value, since the tables job began."
)
TABLE_AGE = _gauge("table_commit_age_seconds", "Time since the tables job committed records to a table.")
TABLE_FAILS = _gauge("table_failing", "1 if the last try of the tables job failed for this table.")
CLIENT_INSTANCES = _gauge("client_metrics_instances", "Client instances whose pushed metrics are served.")
CLIENT_SERIES = _gauge("client_metrics_series", "Series of these instances.")
CLIENT_PUSHES = _counter(
    "client_metrics_pushes",
    "Pushes of clients that were taken, malformed, or dropped because the exporter could not keep up.",
)
CLIENT_LEFT_OUT = _counter(
    "client_metrics_left_out",
    "Data points of these pushes beyond the bounds of series, names and labels, or with an impossible value.",
)
SCRAPE = _gauge("scrape_duration_seconds", "Time that the page before this one took to make.")

_OF_PROCESS = (
    (TURNS, Counter.COUNT_WAKEUPS, 1),
    (REQUESTS, Counter.COUNT_REQUESTS, 1),
    (ERRORS, Counter.COUNT_ERRORS, 1),
    (RING_FULL, Counter.COUNT_RING_FULL, 1),
    (MEMORY_FULL, Counter.COUNT_MEMORY_FULL, 1),
    (IDLE, Counter.COUNT_IDLE_NS, NS),
    (ARENA, Counter.COUNT_ARENA_BYTES, 1),
)
_STAGES = {
    "request_queue": ApiHistogram.REQUEST_QUEUE_NS,
    "local": ApiHistogram.LOCAL_NS,
    "remote": ApiHistogram.REMOTE_NS,
    "throttle": ApiHistogram.THROTTLE_NS,
    "response_queue": ApiHistogram.RESPONSE_QUEUE_NS,
    "response_send": ApiHistogram.RESPONSE_SEND_NS,
}


def write_broker(now: Snapshot, *, ready: bool, scrape_s: float, page: Page) -> None:
    page.add(BUILD, 1, {"version": VERSION})
    page.add(UPTIME, now.uptime_s)
    page.add(READY, int(ready))
    page.add(RESTARTS, now.get(SUPERVISOR, Counter.COUNT_RESTARTS))
    page.add(LOST, now.lost)
    page.add(UNMEASURED, sum(words[QuotaWord.QUOTA_UNMEASURED] for words in now.quotas))
    page.add(SCRAPE, scrape_s)
    for _, seen in sorted(now.listeners.items()):
        for count, family in LISTENER_FAMILIES.items():
            page.add(family, seen.counts[count], {"listener": seen.name})
    for number, log_dir in sorted(now.log_dirs.items()):
        labels = {"log_dir": log_dir.name}
        page.add(DIR_OFFLINE, int(log_dir.failed), labels)
        page.add(DIR_REFUSES, int(log_dir.error != 0 and not log_dir.failed), labels)
        page.add(DIR_PARTITIONS, now.partitions.live.get(number, 0), labels)
        for family, size in (
            (DIR_SIZE, log_dir.size_bytes),
            (DIR_TOTAL, log_dir.total_bytes),
            (DIR_USABLE, log_dir.usable_bytes),
        ):
            if size is not None:
                page.add(family, size, labels)


def write_processes(
    now: Snapshot, incarnations: Mapping[int, int], seen: Mapping[int, ProcessUsage], page: Page
) -> None:
    """Write counters and resource usage of each process. A role's incarnation is 0 if its process is down."""
    serving = set(now.serving(range(topology.PROCESSES)))
    for role in sorted(serving | set(seen)):
        labels = {"process": name_of(role)}
        is_up = role in seen and (role == SUPERVISOR or bool(incarnations.get(role)))
        page.add(UP, int(is_up), labels)
        for family, counter, unit in _OF_PROCESS:
            page.add(family, now.get(role, counter) / unit, labels)
        if limit := now.get(role, Counter.COUNT_ARENA_LIMIT_BYTES):
            page.add(ARENA_LIMIT, limit, labels)
        # The beat may be read before or after the clock, so the difference can be negative.
        page.add(HEARTBEAT, max(now.now_ns - now.heartbeats_ns[role], 0) / NS, labels)
        if (process := seen.get(role)) is not None:
            page.add(CPU, process.cpu_s, labels)
            page.add(RESIDENT, process.resident_bytes, labels)
            page.add(THREADS, process.threads, labels)
            if process.pss_bytes is not None:
                page.add(PSS, process.pss_bytes, labels)


def write_rings(memory: SharedMemory, incarnations: Mapping[int, int], page: Page) -> None:
    """Write how many descriptors wait in the rings that each running process reads, and how full they are."""
    waiting: dict[int, int] = {}
    fullest: dict[int, float] = {}
    for producer, consumer, slots in topology.ring_pairs(memory.sizes.log_workers):
        if not (incarnations.get(producer) and incarnations.get(consumer)):
            continue
        # Words of two processes, read one after the other.
        count = min(max(memory.ring(producer, consumer).waiting(), 0), slots)
        waiting[consumer] = waiting.get(consumer, 0) + count
        fullest[consumer] = max(fullest.get(consumer, 0.0), count / slots)
    for consumer, count in sorted(waiting.items()):
        page.add(RING_WAITING, count, {"process": name_of(consumer)})
        page.add(RING_FILL, fullest[consumer], {"process": name_of(consumer)})


def write_work(now: Snapshot, page: Page) -> None:
    """Write the counts and durations of the work of handlers, log workers and the scrubber."""
    for counter, family in SERVED_FAMILIES.items():
        page.add(family, sum(now.get(handler, counter) for handler in HANDLERS))
    for counter, family in LOG_FAMILIES.items():
        page.add(family, sum(now.get(worker, counter) for worker in LOG_WORKERS))
    page.histogram(COMMIT, now.distribution(Histogram.TIME_COMMIT_NS, LOG_WORKERS), _TIME_BOUNDS, NS)
    page.histogram(APPEND, now.distribution(Histogram.TIME_APPEND_NS, LOG_WORKERS), _TIME_BOUNDS, NS)
    page.histogram(ROUND, now.distribution(Histogram.BATCHES_PER_ROUND, LOG_WORKERS), _COUNT_BOUNDS, 1)
    for process in now.serving((*LOG_WORKERS, *HANDLERS)):
        taken = now.distributions[process][Histogram.REQUESTS_PER_TURN]
        page.histogram(TURN, taken, _COUNT_BOUNDS, 1, {"process": name_of(process)})
    for name, counts in requests.by_name(now).items():
        total = counts.histograms[ApiHistogram.TOTAL_NS]
        page.histogram(DURATION, total, _TIME_BOUNDS, NS, {"request": name})
        for stage, histogram in _STAGES.items():
            page.add(STAGE, counts.histograms[histogram].total / NS, {"request": name, "stage": stage})
    for family, counter in (
        (SCRUB_BYTES, Counter.COUNT_SCRUB_BYTES),
        (SCRUB_BATCHES, Counter.COUNT_SCRUB_BATCHES),
        (SCRUB_PASSES, Counter.COUNT_SCRUB_PASSES),
        (SCRUB_DAMAGED, Counter.COUNT_SCRUB_FINDINGS),
    ):
        page.add(family, now.get(SCRUBBER, counter))
    whole, done = Counter.COUNT_SCRUB_PASS_TOTAL, Counter.COUNT_SCRUB_PASS_BYTES
    page.add(SCRUB_LEFT, max(now.get(SCRUBBER, whole) - now.get(SCRUBBER, done), 0))


def write_remote(now: Snapshot, now_ms: int, page: Page) -> None:
    """Write what the tier has done and waits for. `now_ms`: by the wall clock."""
    if not now.heartbeats_ns[TIER]:
        return
    for family, counter in _REMOTE:
        page.add(family, now.get(TIER, counter))
    for family, counter in _REMOTE_AGES:
        since_ms = now.get(TIER, counter)
        page.add(family, max(now_ms - since_ms, 0) / 1000 if since_ms else 0)
    left_ms = lease_left_ms(now.get(TIER, Counter.COUNT_REMOTE_LEASE_UNTIL_MS))
    page.add(REMOTE_LEADS, int(left_ms != 0))
    page.add(REMOTE_LEASE, -1 if left_ms is None else left_ms / 1000)


def write_standby(lag: StandbyLag | None, now_ms: int, page: Page) -> None:
    """Write how far a standby is behind. `now_ms`: by the wall clock."""
    if lag is not None:
        page.add(STANDBY_BEHIND, lag.behind_s)
        page.add(STANDBY_ENTRIES, lag.entries)
        page.add(STANDBY_BYTES, lag.size)
        page.add(STANDBY_CUT, max(now_ms - lag.cut_ms, 0) / 1000 if lag.cut_ms else 0)


def write_recovery(under_way: list[Progress], log_dirs: tuple[str, ...], page: Page) -> None:
    """Write the remaining work of recovery for each log directory, 0 when recovery is complete."""
    left = {one.log_dir: one for one in under_way}
    for number, path in enumerate(log_dirs):
        # A path may be no UTF-8; as DirSizes has it.
        labels = {"log_dir": os.fsencode(path).decode(errors="backslashreplace")}
        one = left.get(number)
        page.add(RECOVERY_PARTITIONS, one.partitions_left if one else 0, labels)
        page.add(RECOVERY_BYTES, one.bytes_left if one else 0, labels)


def write_clients(instances: int, series: int, pushes: Mapping[str, int], left_out: int, page: Page) -> None:
    page.add(CLIENT_INSTANCES, instances)
    page.add(CLIENT_SERIES, series)
    page.add(CLIENT_LEFT_OUT, left_out)
    for result, count in pushes.items():
        page.add(CLIENT_PUSHES, count, {"result": result})


def write_tables(groups: Mapping[str, CommittedGroup], now_ms: int, page: Page) -> None:
    """Write what the tables job says of its tables. `now_ms`: by the wall clock."""
    seen = ((group, found.note) for group, found in sorted(groups.items()) if found.note is not None)
    # Anybody who may commit can make such groups, and a page has to end.
    for group, note in islice(seen, TABLES_MAX):
        labels = {"table": group.removeprefix(GROUP_PREFIX)}
        page.add(TABLE_ROWS, note.rows, labels)
        page.add(TABLE_FILES, note.files, labels)
        page.add(TABLE_BYTES, note.bytes, labels)
        page.add(TABLE_ERROR_ROWS, note.error_rows, labels)
        page.add(TABLE_FAILS, int(bool(note.problem)), labels)
        if note.committed_ms:
            page.add(TABLE_AGE, max(now_ms - note.committed_ms, 0) / 1000, labels)


def write_offsets(committed: CommittedOffsets, left_out: int, page: Page) -> None:
    page.add(OFFSETS_LEFT_OUT, left_out)
    page.add(OFFSETS_UNREADABLE, committed.unreadable)
    page.add(OFFSETS_BEHIND, committed.unread)
