"""Which segments of a partition have had their time. No I/O, no clock.

(Kafka: UnifiedLog.deleteOldSegments, deletableSegments.) A partition is its segments from the oldest to the
active one. What goes is a prefix of them: the first segment that no rule wants to go ends the search, and so
does the first whose records are not all below the high watermark. That the active one goes as well means that
the log is rolled first, so that an empty segment is left at its end; one that is empty stays.

A record of the future keeps its segment, and all behind it, until its time has come: it is the largest
timestamp that counts, not the age of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mpbroker.config.topic_config import TopicConfig
from mpbroker.log.format.segments import Segment

DELETE = "delete"


class Marks(NamedTuple):
    """What a partition's segments are measured by."""

    log_start: int
    high_watermark: int
    now_ms: int


class Doomed(NamedTuple):
    segment: Segment
    reason: str


Verdict = Callable[[Segment], str]
"""Why the segment goes, asked of one after the other; empty if it stays."""


def doomed(segments: Sequence[Segment], config: TopicConfig, marks: Marks) -> list[Doomed]:
    """What goes, oldest first. `segments`: all of the partition's, the active one last.

    One rule after the other, each for what the one before it has left.
    """
    found = below_log_start(segments, marks)
    if DELETE in config.cleanup_policy:
        left = segments[len(found) :]
        found += _prefix(left, marks, _by_size(left, config.retention_bytes))
        left = segments[len(found) :]
        found += _prefix(left, marks, _by_age(config.retention_ms, marks.now_ms))
    return found


def below_log_start(segments: Sequence[Segment], marks: Marks) -> list[Doomed]:
    """What nobody can ask for any more, also of what is only compacted; never the active one."""
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
    """What stays is never smaller than the limit."""
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
