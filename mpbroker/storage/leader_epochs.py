"""Leader epochs of a log: (epoch, start offset) pairs, both ascending.

(Kafka: LeaderEpochFileCache; KIP-101, KIP-279, KIP-320.) A single broker never begins an epoch, but a log
directory that comes from a cluster may have many epochs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

NO_EPOCH = -1
NO_OFFSET = -1

Epochs = Sequence[tuple[int, int]]
# The epochs of a log in which none has begun since its creation.
FIRST: Epochs = ((0, 0),)


class EpochEnd(NamedTuple):
    """An epoch, and the offset after the epoch's last record. Both are -1 if the epoch is unknown."""

    epoch: int
    offset: int


def trimmed(epochs: Epochs, log_start: int, log_end: int) -> list[tuple[int, int]]:
    """Cut epochs to a log's start and end. The last epoch always stays, since new batches belong to it."""
    if not epochs:
        return [(0, log_end)]
    if len(epochs) == 1:
        # The usual case of thousands of partitions.
        return [(epochs[0][0], min(max(epochs[0][1], log_start), log_end))]
    inside = [entry for entry in epochs if entry[1] < log_end]
    if not inside or inside[-1][0] != epochs[-1][0]:
        inside.append((epochs[-1][0], log_end))
    first = max((i for i, (_, start) in enumerate(inside) if start <= log_start), default=0)
    oldest, start = inside[first]
    return [(oldest, max(start, min(log_start, log_end))), *inside[first + 1 :]]


def shared(epochs: Epochs) -> Epochs:
    """Return FIRST if `epochs` equals it, else `epochs`. So most partitions share one object."""
    return FIRST if len(epochs) == 1 and epochs[0] == FIRST[0] else epochs


def epoch_of(epochs: Epochs, offset: int) -> int:
    """Return the epoch of an offset, -1 if the offset is below the first epoch's start offset."""
    place = bisect_right(epochs, offset, key=itemgetter(1))
    return epochs[place - 1][0] if place else NO_EPOCH


def end_of(epochs: Epochs, wanted: int, log_end: int) -> EpochEnd:
    """Return the end of the epoch `wanted`, or of the epoch before `wanted` if `wanted` has no batches."""
    if wanted < 0 or not epochs or wanted > epochs[-1][0]:
        return EpochEnd(NO_EPOCH, NO_OFFSET)
    if wanted == epochs[-1][0]:
        return EpochEnd(wanted, log_end)
    place = bisect_right([epoch for epoch, _ in epochs], wanted)
    return EpochEnd(epochs[place - 1][0] if place else wanted, epochs[place][1])
