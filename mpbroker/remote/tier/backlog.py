"""Finds the sealed segments that the object store does not have yet, in the order of their uploads.

A segment is ready when it is sealed, and all of its records are durable and below the last stable offset: its
transactions have ended, so that nothing in it or in its indexes changes any more. (Kafka:
RemoteLogManager.candidateLogSegments.)
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from mpbroker.remote.tier.places import Key, Place
from mpbroker.storage.names import segment_name
from mpbroker.storage.segments import segments_of

log = logging.getLogger("mpbroker.remote")


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


class _Listed(NamedTuple):
    """A directory's sealed segments. As long as `seen` is the same, none was sealed or deleted."""

    seen: tuple[object, ...]
    segments: Sequence[Sealed]


class Backlog:
    """Finds what waits for its upload."""

    def __init__(self) -> None:
        self._listed: dict[Key, _Listed] = {}
        self._problems: dict[Key, str] = {}

    def find(self, places: Iterable[Place], remote_end: Callable[[Key], int]) -> list[list[Candidate]]:
        """Return the candidates of each partition that has some, by offset.

        `remote_end` returns the end of the segments that need not be uploaded.
        """
        found, listed = [], {}
        for place in places:
            if not place.is_copied:
                continue
            try:
                segments = listed[place.key] = self._sealed(place)
                candidates = ready(segments.segments, place, remote_end(place.key))
                self._problems.pop(place.key, None)
            except (FileNotFoundError, NotADirectoryError):
                # Deleted or moved meanwhile.
                continue
            except (Misfit, OSError) as error:
                if self._problems.get(place.key) != str(error):
                    self._problems[place.key] = str(error)
                    log.error("%s is not uploaded: %s", place.name, error)
                continue
            if candidates:
                found.append([Candidate(place, one) for one in candidates])
        self._listed = listed
        return found

    def forget(self, key: Key) -> None:
        """Have the next `find` list the partition's directory again, because its files have changed."""
        self._listed.pop(key, None)

    def _sealed(self, place: Place) -> _Listed:
        seen = (place.slot, place.generation, place.directory, place.newest_base, place.log_start)
        known = self._listed.get(place.key)
        if known is not None and known.seen == seen:
            return known
        segments = []
        for base, end in sealed_ranges(segments_of(place.directory), place.newest_base):
            found = (place.directory / segment_name(base)).stat()
            segments.append(Sealed(base, end, found.st_size, found.st_mtime_ns // 1_000_000))
        return _Listed(seen, segments)
