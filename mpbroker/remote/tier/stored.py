"""What the object store has of a partition, for downloads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mpbroker.remote.ledger.events import SegmentAdded
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.tier.cache import PartitionKey
from mpbroker.remote.tier.download import IndexSizes, StoredPartition, StoredSegment
from mpbroker.remote.tier.places import Key, Place


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
