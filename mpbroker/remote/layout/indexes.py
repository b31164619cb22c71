"""The object `.indexes` of a segment: Kafka's files of the segment, joined. (Aiven: SegmentIndexesV1.)

offset index            `.index`
time index              `.timeindex`
producer snapshot       `.snapshot` of the offset where the segment ends
leader epochs           `leader-epoch-checkpoint`, with the epochs that begin before the segment ends
transaction index       `.txnindex`, empty if no transaction was aborted in the segment
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from mpbroker.storage.checkpoints import text_of_epochs
from mpbroker.storage.leader_epochs import Epochs


class IndexesDamaged(ValueError):
    """Raised for an object whose size is not that of its parts."""


class IndexSizes(NamedTuple):
    """The sizes of the parts in bytes."""

    offset: int
    time: int
    producer_snapshot: int
    leader_epochs: int
    transactions: int

    @property
    def positions(self) -> IndexSizes:
        """Return where the parts begin."""
        return IndexSizes(*accumulate(self[:-1], initial=0))


class SegmentIndexes(NamedTuple):
    """The bytes of the parts."""

    offset: bytes
    time: bytes
    producer_snapshot: bytes
    leader_epochs: bytes
    transactions: bytes

    @property
    def sizes(self) -> IndexSizes:
        return IndexSizes(*map(len, self))

    @property
    def joined(self) -> bytes:
        """Return the bytes of the object."""
        return b"".join(self)


def split_indexes(body: bytes, sizes: Iterable[int]) -> SegmentIndexes:
    """Return the parts of an object, whose sizes the ledger has. Raises IndexesDamaged."""
    parts = IndexSizes(*sizes)
    if sum(parts) != len(body):
        raise IndexesDamaged(f"the indexes of a segment have {len(body)} bytes, not {sum(parts)}")
    places = zip(parts.positions, parts, strict=True)
    return SegmentIndexes(*(body[position : position + size] for position, size in places))


def leader_epochs_below(epochs: Epochs, end: int) -> bytes:
    """Return the part for a segment that ends at `end`: epochs of its log, as in Kafka's checkpoint."""
    return text_of_epochs((epoch, start) for epoch, start in epochs if start < end)


def epochs_within(epochs: Epochs, base: int, end: int) -> tuple[tuple[int, int], ...]:
    """Return the leader epochs of offsets [base, end), each with the first offset there that it has."""
    ends = [*(start for _, start in epochs[1:]), end]
    return tuple(
        (epoch, max(start, base))
        for (epoch, start), until in zip(epochs, ends, strict=False)
        if max(start, base) < min(until, end)
    )
