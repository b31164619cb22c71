"""The dirty part of a log, whether compaction is due, and which segments are merged. No I/O, no clock.

(Kafka: LogCleanerManager.grabFilthiestCompactedLog, cleanableOffsets; Cleaner.groupSegmentsBySize.) A log is
clean below the offset in `cleaner-offset-checkpoint`, and dirty from there on. Records are cleaned only if
they are durable in segments, no open transaction may abort them, and their segment is not the active one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mpbroker.config.topic_config import TopicConfig
from mpbroker.log.partition.partition_log import Segment
from mpbroker.storage.names import OFFSET_SPAN

COMPACT = "compact"


class Limits(NamedTuple):
    """The bounds of a cleaning: from `checkpoint`, the end of the last cleaning, to below `safe_end`."""

    log_start: int
    log_end: int
    safe_end: int
    checkpoint: int | None
    now_ms: int


class Dirty(NamedTuple):
    """The part [first_dirty, end) to be cleaned, of `bytes_dirty` bytes.

    `must`: the oldest of these records have exceeded max.compaction.lag.ms (by `delay_ms`).
    """

    first_dirty: int
    end: int
    bytes_clean: int
    bytes_dirty: int
    must: bool
    delay_ms: int

    @property
    def ratio(self) -> float:
        total = self.bytes_clean + self.bytes_dirty
        return self.bytes_dirty / total if total else 0.0


def dirty_part(
    segments: Sequence[Segment], first_times_ms: Sequence[int], config: TopicConfig, limits: Limits
) -> Dirty:
    """Return the dirty part. `first_times_ms` has the timestamp of the first batch of each segment."""
    first_dirty = limits.checkpoint if limits.checkpoint is not None else limits.log_start
    if not limits.log_start <= first_dirty <= limits.log_end:
        first_dirty = limits.log_start
    end = _end(segments, config, limits, first_dirty)
    clean = sum(one.size for one in segments if one.end <= first_dirty)
    dirty = sum(one.size for one in segments if first_dirty < one.end <= end)
    first_ms = [
        time_ms
        for one, time_ms in zip(segments, first_times_ms, strict=True)
        if one.end > first_dirty and not one.is_active and time_ms >= 0
    ]
    delay_ms = max(limits.now_ms - min(first_ms) - config.max_compaction_lag_ms, 0) if first_ms else 0
    return Dirty(first_dirty, end, clean, dirty, delay_ms > 0 and dirty > 0, delay_ms)


def _end(segments: Sequence[Segment], config: TopicConfig, limits: Limits, first_dirty: int) -> int:
    """Return the base offset of the first segment that must not be cleaned."""
    for one in segments:
        too_young = (
            config.min_compaction_lag_ms > 0
            and one.end > first_dirty
            and one.largest_ms > limits.now_ms - config.min_compaction_lag_ms
        )
        if one.is_active or one.end > limits.safe_end or too_young:
            return one.base
    return limits.log_start


def is_due(dirty: Dirty, config: TopicConfig) -> bool:
    return dirty.bytes_dirty > 0 and (dirty.must or dirty.ratio > config.min_cleanable_dirty_ratio)


class Source(NamedTuple):
    """A segment to be cleaned, with the sizes of its files. `end`: the base offset of the next segment."""

    base: int
    end: int
    bytes: int
    index_bytes: int
    time_index_bytes: int


def groups(sources: Iterable[Source], segment_bytes: int, index_bytes: int) -> list[list[Source]]:
    """Group adjacent segments that can be merged: together they are within the limits of one segment."""
    found: list[list[Source]] = []
    for one in sources:
        group = found[-1] if found else []
        fits = (
            bool(group)
            and sum(other.bytes for other in group) + one.bytes <= segment_bytes
            and sum(other.index_bytes for other in group) + one.index_bytes <= index_bytes
            and sum(other.time_index_bytes for other in group) + one.time_index_bytes <= index_bytes
            and one.end - group[0].base <= OFFSET_SPAN
        )
        if fits:
            group.append(one)
        else:
            found.append([one])
    return found
