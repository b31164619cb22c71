"""Which segments are to be uploaded, and in which order. Sans-I/O.

A segment is ready when it is sealed, and all of its records are durable and below the last stable offset: its
transactions have ended, so that nothing in it or in its indexes changes any more. (Kafka:
RemoteLogManager.candidateLogSegments.)
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from mpbroker.remote.tier.places import Place


class Misfit(Exception):
    """Raised where local segments do not continue the remote ones; the message says which and what to do."""


class Sealed(NamedTuple):
    """A sealed segment on disk: offsets [base, end), the bytes of its `.log`, when it was last written."""

    base: int
    end: int
    size: int
    written_ms: int


class Candidate(NamedTuple):
    place: Place
    segment: Sealed


def sealed_ranges(bases: Sequence[int], newest_base: int) -> list[tuple[int, int]]:
    """Return (base, end) of the sealed ones among the segments with these bases, ascending."""
    return list(pairwise(base for base in bases if base <= newest_base))


def ready(segments: Iterable[Sealed], place: Place, remote_end: int) -> list[Sealed]:
    """Return the segments that are to be uploaded, by offset. Those below `remote_end` are uploaded already.

    Raises Misfit.
    """
    start, below = max(remote_end, place.log_start), min(place.durable, place.stable)
    found = [one for one in segments if start < one.end <= below]
    if found and found[0].base < remote_end:
        raise Misfit(
            f"{place.directory}: the segment of offset {found[0].base} begins before {remote_end}, where the "
            "segments in the object store end, and ends after it: they were copied from another directory. "
            "Restore that one, or delete the topic"
        )
    return found


def in_turn(candidates: Iterable[Sequence[Candidate]]) -> Iterator[Candidate]:
    """Yield the candidates of all partitions, the one that was sealed first before the others.

    Those of one partition come in their order.
    """
    return heapq.merge(*candidates, key=lambda one: one.segment.written_ms)
