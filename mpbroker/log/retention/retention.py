"""The rules by which segments of a partition expire. No I/O, no clock.

(Kafka: UnifiedLog.deleteOldSegments, deletableSegments.) Expired segments are a prefix of the partition's
segments, oldest first. The search ends at the first segment that no rule expires, or that has records at or
above the high watermark. If the active segment expires too, the log is rolled first, so that an empty
segment remains. An empty active segment stays.

A tiered partition has two retentions. `retention.*` counts what is in the object store and what is here
only, and moves the log start. `local.retention.*` counts what is here. It deletes files of segments that the
store has, and the log starts where it did. Without the store these files stay, however old they are.
(Kafka's `retention.*` spares segments that the store has not got yet: a store that is away fills the disk.)

A segment is as old as its largest timestamp, however old its file is: a record with a future timestamp keeps
its segment, and all later segments, until that time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, compress
from operator import and_
from typing import NamedTuple

from mpbroker.config.remote import AS_RETENTION
from mpbroker.config.topic_config import TopicConfig
from mpbroker.log.partition.partition_log import Segment
from mpbroker.storage.remote_segments import NO_SEGMENTS, RemoteSegments

DELETE = "delete"


class Marks(NamedTuple):
    """The offsets and the time that the rules compare segments with.

    `remote`: the partition's segments in the object store.
    """

    log_start: int
    high_watermark: int
    now_ms: int
    remote: RemoteSegments = NO_SEGMENTS


class Doomed(NamedTuple):
    segment: Segment
    reason: str


class Expired(NamedTuple):
    """The result for a partition: where the log starts, and the local segments whose files go.

    `rolls`: the active segment is due locally, so that the store is to have it.
    """

    log_start: int
    going: list[Doomed]
    rolls: bool = False


Verdict = Callable[[Segment], str]
"""Returns the reason why a segment expires, "" if it does not. Called for each segment in order."""


def expired(segments: Sequence[Segment], config: TopicConfig, marks: Marks) -> Expired:
    """Apply `retention.*` to the whole log.

    `segments`: the local segments, the active one last.
    """
    away = [
        Segment(one.base, one.end, one.size, one.largest_ms)
        for one in marks.remote
        if one.end > marks.log_start and one.base < segments[0].base
    ]
    found = doomed([*away, *segments], config, marks)
    start = max(marks.log_start, found[-1].segment.end if found else 0)
    if marks.remote:
        # The store may have removed more than an earlier log start said, before a crash.
        start = max(start, min(marks.remote.start, segments[0].base))
    return Expired(start, found[len(away) :])


def expired_locally(
    segments: Sequence[Segment], config: TopicConfig, marks: Marks, whole: Expired, stored: RemoteSegments
) -> Expired:
    """Apply `local.retention.*`, too, to a tiered partition. `whole`: the result of `expired`.

    A segment may go if `stored` has one of the same offsets and size.
    """
    there = {(one.base, one.end, one.size) for one in stored}
    left = segments[len(whole.going) :]
    limit, name = config.local_retention_bytes, "local.retention.bytes"
    if limit == AS_RETENTION:
        limit, name = config.retention_bytes, "retention.bytes"
    due = _prefix(left, marks, _by_size(left, limit, name))
    limit_ms, name = config.local_retention_ms, "local.retention.ms"
    if limit_ms == AS_RETENTION:
        limit_ms, name = config.retention_ms, "retention.ms"
    due += _prefix(left[len(due) :], marks, _by_age(limit_ms, marks.now_ms, name))
    is_there = (not one.segment.is_active and one.segment[:3] in there for one in due)
    return whole._replace(
        going=[*whole.going, *compress(due, accumulate(is_there, and_))],
        rolls=bool(due) and due[-1].segment.is_active,
    )


def doomed(segments: Sequence[Segment], config: TopicConfig, marks: Marks) -> list[Doomed]:
    """Return the expired segments, oldest first.

    `segments`: all segments of the partition, the active one last. Each rule applies to the segments that the
    earlier rules have kept.
    """
    found = below_log_start(segments, marks)
    if DELETE in config.cleanup_policy:
        left = segments[len(found) :]
        found += _prefix(left, marks, _by_size(left, config.retention_bytes, "retention.bytes"))
        left = segments[len(found) :]
        found += _prefix(left, marks, _by_age(config.retention_ms, marks.now_ms, "retention.ms"))
    return found


def below_log_start(segments: Sequence[Segment], marks: Marks) -> list[Doomed]:
    """Return the segments below the log start, except the active one, under any cleanup policy."""
    reason = f"the log starts at offset {marks.log_start}"
    return _prefix(segments[:-1], marks, lambda segment: reason if segment.end <= marks.log_start else "")


def _prefix(segments: Sequence[Segment], marks: Marks, verdict: Verdict) -> list[Doomed]:
    found: list[Doomed] = []
    for segment in segments:
        is_the_end = segment.is_active and segment.size == 0
        reason = "" if is_the_end or segment.end > marks.high_watermark else verdict(segment)
        if not reason:
            break
        found.append(Doomed(segment, reason))
    return found


def _by_size(segments: Sequence[Segment], limit: int, name: str) -> Verdict:
    """Return a rule that expires segments while the remaining ones have at least `limit` bytes."""
    size = sum(segment.size for segment in segments)
    excess = size - limit

    def verdict(segment: Segment) -> str:
        nonlocal excess
        if limit < 0 or excess < segment.size:
            return ""
        excess -= segment.size
        return f"the partition has {size} bytes, more than {name}={limit}"

    return verdict


def _by_age(limit_ms: int, now_ms: int, name: str) -> Verdict:
    def verdict(segment: Segment) -> str:
        goes = limit_ms >= 0 and now_ms - segment.largest_ms > limit_ms
        return f"its largest timestamp is older than {name}={limit_ms}" if goes else ""

    return verdict
