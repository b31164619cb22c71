"""Writes `mpbroker.remote` of each partition, and the word that tells others to read it again.

The file says what the ledger has, never more. Local segments are deleted by it, while the word is not 0. The
word is written after the file. A successor writes all words again: its predecessor may have been killed
between the two.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from mpbroker.ipc.table import version_of, word_of
from mpbroker.remote.ledger.spare import keep_spare, write_or_spare
from mpbroker.remote.tier.places import Key, Place, PlaceGone, held, told
from mpbroker.storage.checkpoints import CheckpointCorrupt
from mpbroker.storage.names import REMOTE_SEGMENTS
from mpbroker.storage.remote_segments import RemoteSegments, encode_remote_segments, read_remote_segments
from shm.word import Words

LARGEST_VERSION = 0xFFFFFFFF
log = logging.getLogger("mpbroker.remote")


class RemoteFiles:
    """The files of all partitions, for one thread. `words` has a word for each slot."""

    def __init__(self, words: Words) -> None:
        self._words = words
        # Where the file and the word of a partition are right.
        self._right: dict[Key, tuple[int, int, Path]] = {}
        self._problems: dict[Key, str] = {}

    def changed(self, keys: Iterable[Key]) -> None:
        """Note that the ledger has other segments of these partitions now."""
        for key in keys:
            self._right.pop(key, None)

    def is_right(self, place: Place) -> bool:
        return self._right.get(place.key) == (place.slot, place.generation, place.directory)

    def write(self, place: Place, segments: RemoteSegments) -> bool:
        """Have a partition's file say what the store has; return whether it does.

        An error is logged; the next call tries again.
        """
        try:
            with held(place) as directory:
                found = _read(directory)
                path, data = directory / REMOTE_SEGMENTS, encode_remote_segments(segments)
                if found != segments:
                    write_or_spare(path, data)
                else:
                    keep_spare(path, len(data))
        except PlaceGone:
            return False
        except (CheckpointCorrupt, OSError) as error:
            problem = told(place, error)
            if self._problems.get(place.key) != problem:
                self._problems[place.key] = problem
                log.error(
                    "%s: cannot write which segments the object store has: %s. Local segments stay",
                    place.directory,
                    problem,
                )
            return False
        self._problems.pop(place.key, None)
        self._raise_word(place)
        self._right[place.key] = (place.slot, place.generation, place.directory)
        return True

    def withdraw(self) -> None:
        """Clear all words, also a predecessor's: no local segment may be deleted because of the store."""
        for slot in range(self._words.count):
            if self._words.load(slot):
                self._words.store(slot, 0)

    def _raise_word(self, place: Place) -> None:
        version = version_of(self._words.load(place.slot), place.generation)
        self._words.store(place.slot, word_of(place.generation, version % LARGEST_VERSION + 1))


def _read(directory: Path) -> RemoteSegments | None:
    """Return what the file says; None if it is damaged."""
    try:
        return read_remote_segments(directory)
    except CheckpointCorrupt:
        return None
