"""Decides how much of what waits a micro-batch takes. Knows offsets and the time it is told, asks nobody.

(Spark: KafkaMicroBatchStream.rateLimit and delayBatch.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from mpbroker.reading.options import TopicPartition
from mpbroker.reading.plan import OffsetRange


def backlog(begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> int:
    """Counts the offsets between begins and ends, over all partitions."""
    return sum(max(0, end - begins[one]) for one, end in ends.items())


def at_most_offsets(
    limit: int, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Returns ends that are about `limit` offsets away, each partition in proportion to what waits in it.

    As with Kafka's source every partition with a backlog goes on by one offset at least.
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
    """Returns ends at most `limit` bytes away, but at least a record batch in each partition that waits.

    `weight` tells the bytes of a range, growing with it by whole batches; 0 if it does not know them, which
    leaves that end as it is.
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
    """Finds the last end whose range weighs no more than the share, or than the first batch."""
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
    """Holds a batch back until enough offsets wait, or for as long as it may be held."""

    def __init__(self, min_offsets: int | None, max_delay_ms: int) -> None:
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        # The first batch of a run is never held back.
        self._last_ms: float | None = None

    def holds(self, waiting: int, now_ms: float) -> bool:
        """Tells whether this trigger gets no batch. `now_ms` is of a clock that never goes back."""
        if self._min_offsets is None:
            return False
        is_due = self._last_ms is None or now_ms - self._last_ms >= self._max_delay_ms
        if waiting < self._min_offsets and not is_due:
            return True
        self._last_ms = now_ms
        return False
