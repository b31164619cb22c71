"""Which segments the object store has of partitions: the files `mpbroker.remote`, read when they change."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Final

from mpbroker.ipc.metadata import PartitionImage
from mpbroker.ipc.table import version_of
from mpbroker.storage.remote_segments import RemoteSegments, read_remote_segments
from shm.word import Words

PARTITIONS_MAX: Final = 256


class RemoteFiles:
    """The files of the partitions that were last asked for. `words` are the tier's, one for each slot."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._known: OrderedDict[tuple[int, int], tuple[int, RemoteSegments]] = OrderedDict()

    def get(self, image: PartitionImage, directory: Path) -> RemoteSegments:
        """Return a partition's remote segments. Raises CheckpointCorrupt, OSError."""
        key = image.slot, image.slot_generation
        version = version_of(self._words.load(image.slot), image.slot_generation)
        known = self._known.get(key)
        # Without a version the tier has written no file since the broker began, and may write one now.
        if known is None or known[0] != version or not version:
            known = self._known[key] = version, read_remote_segments(directory)
            if len(self._known) > PARTITIONS_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return known[1]
