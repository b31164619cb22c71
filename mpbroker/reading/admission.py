"""Decides how much of the backlog a micro-batch reads; computes with offsets and times, without I/O.

(Spark: KafkaMicroBatchStream.rateLimit and delayBatch.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from mpbroker.reading.options import TopicPartition
from mpbroker.reading.plan import OffsetRange


def backlog(begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> int:
    """Return the number of offsets between `begins` and `ends`, summed over all partitions."""
    return sum(max(0, end - begins[one]) for one, end in ends.items())


def at_most_offsets(
    limit: int, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the ends of a batch of about `limit` offsets, shared out in proportion to the backlogs.

    Every partition with a backlog advances by at least one offset, as in Kafka's source.
    """
    total = backlog(begins, ends)
    if total == 0:
        return dict(ends)
    cut = {}
    for one, end in ends.items():
        waiting = end - begins[one]
        share = limit * (waiting / total)
        whole = math.ceil(share) if share < 1 else math.floor(share)
        cut[one] = min(end, begins[one] + whole) if waiting > 0 else end
    return cut


def at_most_bytes(
    limit: int,
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    weight: Callable[[OffsetRange], int],
) -> dict[TopicPartition, int]:
    """Return the ends of a batch of at most `limit` bytes, but at least one record batch of each backlog.

    `weight` returns the size of a range in bytes, counting whole record batches. Where `weight` returns 0
    (unknown), the partition keeps its end.
    """
    weights = {
        one: weight(OffsetRange(one, begins[one], end)) for one, end in ends.items() if end > begins[one]
    }
    total = sum(weights.values())
    if total <= limit:
        return dict(ends)
    cut = dict(ends)
    for one, whole in weights.items():
        if whole:
            cut[one] = _furthest(one, begins[one], ends[one], limit * whole // total, weight)
    return cut


def _furthest(
    one: TopicPartition, begin: int, end: int, share: int, weight: Callable[[OffsetRange], int]
) -> int:
    """Return the largest end whose range has at most `share` bytes; at least the first batch is included."""
    allowed = max(share, weight(OffsetRange(one, begin, begin + 1)))
    fits, too_far = begin + 1, end + 1
    while too_far - fits > 1:
        middle = (fits + too_far) // 2
        if weight(OffsetRange(one, begin, middle)) <= allowed:
            fits = middle
        else:
            too_far = middle
    return fits


class Delay:
    """Delays a micro-batch until `min_offsets` offsets have come, or `max_delay_ms` after the last batch."""

    def __init__(self, min_offsets: int | None, max_delay_ms: int) -> None:
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        # The first batch of a run is never held back.
        self._last_ms: float | None = None

    def holds(self, waiting: int, now_ms: float) -> bool:
        """Return whether to delay a batch of `waiting` offsets. `now_ms` is the time of a monotonic clock."""
        if self._min_offsets is None:
            return False
        is_due = self._last_ms is None or now_ms - self._last_ms >= self._max_delay_ms
        if waiting < self._min_offsets and not is_due:
            return True
        self._last_ms = now_ms
        return False
