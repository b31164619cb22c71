"""Which leader epoch wrote which offsets: (epoch, start offset) pairs, both ascending.

(Kafka: LeaderEpochFileCache; KIP-101, KIP-279, KIP-320.) A broker that is alone never begins an epoch; a log
directory that a cluster has left may have many.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

NO_EPOCH = -1
NO_OFFSET = -1

Epochs = Sequence[tuple[int, int]]
# Of a log in which no epoch has ever begun.
FIRST: Epochs = ((0, 0),)


class EpochEnd(NamedTuple):
    """The offset behind the last one of the epoch; both -1 if that cannot be said."""

    epoch: int
    offset: int


def trimmed(epochs: Epochs, log_start: int, log_end: int) -> list[tuple[int, int]]:
    """As a log with these ends has them. The last epoch stays: what comes next is of it."""
    if not epochs:
        return [(0, log_end)]
    if len(epochs) == 1:
        # As most of thousands of partitions have it.
        return [(epochs[0][0], min(max(epochs[0][1], log_start), log_end))]
    inside = [entry for entry in epochs if entry[1] < log_end]
    if not inside or inside[-1][0] != epochs[-1][0]:
        inside.append((epochs[-1][0], log_end))
    first = max((i for i, (_, start) in enumerate(inside) if start <= log_start), default=0)
    oldest, start = inside[first]
    return [(oldest, max(start, min(log_start, log_end))), *inside[first + 1 :]]


def shared(epochs: Epochs) -> Epochs:
    """The same; most partitions have no others than these."""
    return FIRST if len(epochs) == 1 and epochs[0] == FIRST[0] else epochs


def epoch_of(epochs: Epochs, offset: int) -> int:
    """The epoch that wrote the offset; -1 if it lies before all that are known."""
    place = bisect_right(epochs, offset, key=itemgetter(1))
    return epochs[place - 1][0] if place else NO_EPOCH


def end_of(epochs: Epochs, wanted: int, log_end: int) -> EpochEnd:
    """Where the epoch ends, or the one before it if nothing was written in it."""
    if wanted < 0 or not epochs or wanted > epochs[-1][0]:
        return EpochEnd(NO_EPOCH, NO_OFFSET)
    if wanted == epochs[-1][0]:
        return EpochEnd(wanted, log_end)
    place = bisect_right([epoch for epoch, _ in epochs], wanted)
    return EpochEnd(epochs[place - 1][0] if place else wanted, epochs[place][1])
