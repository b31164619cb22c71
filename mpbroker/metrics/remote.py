"""Metrics of tiered storage (Kafka: RemoteStorageMetrics.java, BrokerTopicMetrics.java).

They are there once the tier process has begun.
"""

from __future__ import annotations

from collections.abc import Iterator

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.leading import lease_left_ms
from mpbroker.ipc.topology import TIER
from mpbroker.metrics.broker import OURS, TOPICS
from mpbroker.metrics.families import Bean, View, family, value

TIER_BEANS = OURS + "Tier,name="
METERS = {
    "RemoteCopyBytesPerSec": Counter.COUNT_REMOTE_COPIED_BYTES,
    "RemoteCopyRequestsPerSec": Counter.COUNT_REMOTE_COPIED_SEGMENTS,
    "RemoteCopyErrorsPerSec": Counter.COUNT_REMOTE_ERRORS,
    "RemoteFetchBytesPerSec": Counter.COUNT_REMOTE_FETCHED_BYTES,
    "RemoteFetchRequestsPerSec": Counter.COUNT_REMOTE_FETCHES,
    "RemoteFetchErrorsPerSec": Counter.COUNT_REMOTE_FETCH_ERRORS,
    "RemoteDeleteRequestsPerSec": Counter.COUNT_REMOTE_DELETED_SEGMENTS,
}
GAUGES = {
    "RemoteCopyLagBytes": Counter.COUNT_REMOTE_PENDING_BYTES,
    "RemoteCopyLagSegments": Counter.COUNT_REMOTE_PENDING_SEGMENTS,
    "RemoteDeleteLagBytes": Counter.COUNT_REMOTE_REMOVED_BYTES,
    "RemoteDeleteLagSegments": Counter.COUNT_REMOTE_REMOVED_SEGMENTS,
    "RemoteLogSizeBytes": Counter.COUNT_REMOTE_BYTES,
    "RemoteLogMetadataCount": Counter.COUNT_REMOTE_SEGMENTS,
}
# Ours. Times are Unix times in ms, 0 for none.
STATES = {
    "Fenced": Counter.COUNT_REMOTE_FENCED,
    "DownSinceMs": Counter.COUNT_REMOTE_DOWN_SINCE_MS,
    "LastCommitMs": Counter.COUNT_REMOTE_COMMITTED_MS,
    "PendingSinceMs": Counter.COUNT_REMOTE_PENDING_SINCE_MS,
    "CacheBytes": Counter.COUNT_REMOTE_CACHE_BYTES,
    "LastCutMs": Counter.COUNT_REMOTE_CUT_MS,
    "LastCutPauseUs": Counter.COUNT_REMOTE_CUT_PAUSE_US,
    "CutsMade": Counter.COUNT_REMOTE_CUTS,
    "CutsSkipped": Counter.COUNT_REMOTE_CUTS_SKIPPED,
    "Standbys": Counter.COUNT_REMOTE_STANDBYS,
}


def _has_begun(view: View) -> bool:
    return view.now.heartbeats_ns[TIER] > 0


@family(
    TOPICS + f"<{'|'.join(METERS)}>",
    "meter",
    "Of all tiered topics together. Copies and deletions are counted in segments, when the ledger has them; "
    "fetches are windows and indexes that were downloaded. Errors of copies are all failures of the thread "
    "that writes to the store, those of deletions, too.",
)
def transfers(view: View) -> Iterator[Bean]:
    if _has_begun(view):
        for name, counter in METERS.items():
            yield view.meter(TOPICS + name, counter, (TIER,))


@family(
    TOPICS + f"<{'|'.join(GAUGES)}>",
    "gauge",
    "Of all tiered topics together: sealed segments that wait for their upload, removed ones that wait for "
    "their deletion, and what the ledger has.",
)
def sizes(view: View) -> Iterator[Bean]:
    if _has_begun(view):
        for name, counter in GAUGES.items():
            yield value(TOPICS + name, view.now.get(TIER, counter))


@family(
    TIER_BEANS + f"<{'|'.join(STATES)}>",
    "gauge",
    "Fenced is 1 if the tier writes nothing any more. DownSinceMs: since when the object store fails; "
    "LastCommitMs: when the ledger got its last entry; PendingSinceMs: when the oldest segment that waits "
    "was written; LastCutMs: the instant of the newest cut (Unix times, 0: none). CacheBytes: downloads that "
    "are kept on disk. LastCutPauseUs: for how long that cut stopped the other processes; CutsMade, "
    "CutsSkipped: since the broker began. Standbys: brokers that stand by.",
)
def states(view: View) -> Iterator[Bean]:
    if _has_begun(view):
        for name, counter in STATES.items():
            yield value(TIER_BEANS + name, view.now.get(TIER, counter))


@family(
    TIER_BEANS + "<Leads|LeaseLeftMs>",
    "gauge",
    "Leads is 1 if clients are served, 0 if the lease has run out. LeaseLeftMs: how long it lasts, -1 "
    "without a standby.",
)
def lease(view: View) -> Iterator[Bean]:
    if _has_begun(view):
        left_ms = lease_left_ms(view.now.get(TIER, Counter.COUNT_REMOTE_LEASE_UNTIL_MS))
        yield value(TIER_BEANS + "Leads", int(left_ms != 0))
        yield value(TIER_BEANS + "LeaseLeftMs", -1 if left_ms is None else left_ms)


@family(
    TIER_BEANS + "CacheHitsPerSec", "meter", "Windows that handlers asked for, and that were in the cache."
)
def hits(view: View) -> Iterator[Bean]:
    if _has_begun(view):
        yield view.meter(TIER_BEANS + "CacheHitsPerSec", Counter.COUNT_REMOTE_CACHE_HITS, (TIER,))
