"""The sealed segments on disk that the object store does not have yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from mpbroker.remote.tier.candidates import Candidate, Misfit, Sealed, ready, sealed_ranges
from mpbroker.remote.tier.places import Key, Place
from mpbroker.storage.names import segment_name
from mpbroker.storage.segments import segments_of

log = logging.getLogger("mpbroker.remote")


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
