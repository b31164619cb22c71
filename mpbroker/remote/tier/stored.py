"""What the object store has of a partition, for downloads."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from mpbroker.remote.ledger.events import SegmentAdded
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.tier.cache import PartitionKey
from mpbroker.remote.tier.places import Key, Place


class Parts(NamedTuple):
    """The parts of a segment's `.indexes` that readers need."""

    offset: bytes
    time: bytes
    aborted: bytes


class IndexSizes(NamedTuple):
    """The sizes of the parts of a segment's `.indexes`, in their order."""

    offset: int
    time: int
    snapshot: int
    epochs: int
    aborted: int

    @property
    def total(self) -> int:
        return sum(self)

    def split(self, indexes: bytes) -> Parts:
        times = self.offset + self.time
        return Parts(
            indexes[: self.offset], indexes[self.offset : times], indexes[self.total - self.aborted :]
        )


class StoredSegment(NamedTuple):
    """A segment in the object store, with offsets [base, end) and `size` bytes; the names of its objects."""

    base: int
    end: int
    size: int
    segment_id: bytes
    log_name: str
    indexes_name: str
    sizes: IndexSizes
    indexes_checksum: int


class StoredPartition(NamedTuple):
    """What the object store has of a partition, and the partition's directory, with the later segments.

    `name` is for people. The segments are in the order of their offsets; each begins where the one before
    ends.
    """

    key: PartitionKey
    name: str
    directory: Path
    segments: Sequence[StoredSegment]

    def find(self, offset: int) -> StoredSegment | None:
        """Return the segment of an offset, or the next one if compaction has left no record in that one."""
        place = bisect_right(self.segments, offset, key=lambda one: one.base) - 1
        if place < 0:
            return None
        return next((one for one in self.segments[place:] if one.size and offset < one.end), None)

    def key_of(self, segment: StoredSegment) -> tuple[PartitionKey, int, bytes]:
        """Return what tells a segment from all others."""
        return self.key, segment.base, segment.segment_id


class StoredPartitions:
    """Finds partitions by slot. `place_of` reads the partition table, `state_of` the ledger."""

    def __init__(
        self, place_of: Callable[[int, int], Place | None], state_of: Callable[[], RemoteState | None]
    ) -> None:
        self._place_of = place_of
        self._state_of = state_of
        # By partition: the segments of the ledger that these were made of. They grow, or are replaced.
        self._made: dict[Key, tuple[Sequence[SegmentAdded], int, Sequence[StoredSegment]]] = {}

    def find(self, slot: int, generation: int) -> StoredPartition | None:
        """Return a partition; None if it is not open, or not tiered, or the ledger was not read yet."""
        place, state = self._place_of(slot, generation), self._state_of()
        if place is None or state is None:
            return None
        segments = state.segments_of(*place.key)
        made = self._made.get(place.key)
        if made is None or made[0] is not segments or made[1] != len(segments):
            count = len(segments)
            made = self._made[place.key] = segments, count, [_stored(one) for one in segments[:count]]
        return StoredPartition(PartitionKey(*place.key), place.name, place.directory, made[2])


def _stored(segment: SegmentAdded) -> StoredSegment:
    return StoredSegment(
        segment.base,
        segment.end,
        segment.size,
        segment.segment_id,
        segment.objects.log,
        segment.objects.indexes,
        IndexSizes(*segment.index_sizes),
        segment.indexes_crc,
    )
