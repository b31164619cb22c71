"""Finds the records that a read_committed reader does not get: those of aborted transactions (KIP-98)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from mpbroker.records.batch import CONTROL_BIT, frame_at
from mpbroker.records.markers import ABORT, marker_of

NOT_ENDED: Final = (1 << 63) - 1
"""The last offset of a transaction whose abort marker has not been seen."""


class AbortedRange(NamedTuple):
    """The transactional records of a producer with offsets in [first_offset, last_offset] were aborted.

    `last_offset` is that of the abort marker, or NOT_ENDED if the marker is not known yet.
    """

    producer_id: int
    first_offset: int
    last_offset: int


def from_fetch(records: memoryview, aborted: Iterable[tuple[int, int]]) -> list[AbortedRange]:
    """Return the aborted transactions of a Fetch response with their ends.

    `aborted` has (producer id, first offset) of each, as the response lists them; `records` are the whole
    batches of the response. A transaction ends at its producer's next abort marker in them, and is NOT_ENDED
    if they have none. Raises CorruptBatch. (Kafka: CompletedFetch.consumeAbortedTransactionsUpTo.)
    """
    listed = sorted(set(aborted))
    if not listed:
        return []
    markers = _abort_markers(records, {producer_id for producer_id, _ in listed})
    ranges = []
    for producer_id, first_offset in listed:
        offsets = markers.get(producer_id, [])
        behind = bisect_right(offsets, first_offset)
        last_offset = offsets[behind] if behind < len(offsets) else NOT_ENDED
        ranges.append(AbortedRange(producer_id, first_offset, last_offset))
    return ranges


def _abort_markers(records: memoryview, producer_ids: set[int]) -> dict[int, list[int]]:
    """Return the offsets of these producers' abort markers, ascending."""
    found: dict[int, list[int]] = {}
    position = 0
    while (frame := frame_at(records, position, False)) is not None:
        end = position + frame.length
        if frame.attributes & CONTROL_BIT and frame.producer_id in producer_ids:
            marker = marker_of(records[position:end])
            if marker is not None and marker[0] == ABORT:
                found.setdefault(frame.producer_id, []).append(frame.base_offset)
        position = end
    return found
