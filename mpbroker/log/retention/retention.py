"""The rules by which segments of a partition expire. No I/O, no clock.

(Kafka: UnifiedLog.deleteOldSegments, deletableSegments.) Expired segments are a prefix of the partition's
segments, oldest first. The search ends at the first segment that no rule expires, or that has records at or
above the high watermark. If the active segment expires too, the log is rolled first, so that an empty
segment remains. An empty active segment stays.

A segment is as old as its largest timestamp, however old its file is: a record with a future timestamp keeps
its segment, and all later segments, until that time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mpbroker.config.topic_config import TopicConfig
from mpbroker.log.partition.partition_log import Segment

DELETE = "delete"


class Marks(NamedTuple):
    """The offsets and the time that the rules compare segments with."""

    log_start: int
    high_watermark: int
    now_ms: int


class Doomed(NamedTuple):
    segment: Segment
    reason: str


Verdict = Callable[[Segment], str]
"""Returns the reason why a segment expires, "" if it does not. Called for each segment in order."""


def doomed(segments: Sequence[Segment], config: TopicConfig, marks: Marks) -> list[Doomed]:
    """Return the expired segments, oldest first.

    `segments`: all segments of the partition, the active one last. Each rule applies to the segments that the
    earlier rules have kept.
    """
    found = below_log_start(segments, marks)
    if DELETE in config.cleanup_policy:
        left = segments[len(found) :]
        found += _prefix(left, marks, _by_size(left, config.retention_bytes))
        left = segments[len(found) :]
        found += _prefix(left, marks, _by_age(config.retention_ms, marks.now_ms))
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


def _by_size(segments: Sequence[Segment], limit: int) -> Verdict:
    """Return a rule that expires segments while the remaining ones have at least `limit` bytes."""
    size = sum(segment.size for segment in segments)
    excess = size - limit

    def verdict(segment: Segment) -> str:
        nonlocal excess
        if limit < 0 or excess < segment.size:
            return ""
        excess -= segment.size
        return f"the partition has {size} bytes, more than retention.bytes={limit}"

    return verdict


def _by_age(limit_ms: int, now_ms: int) -> Verdict:
    def verdict(segment: Segment) -> str:
        goes = limit_ms >= 0 and now_ms - segment.largest_ms > limit_ms
        return f"its largest timestamp is older than retention.ms={limit_ms}" if goes else ""

    return verdict
