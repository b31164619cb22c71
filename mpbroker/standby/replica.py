"""The partitions that consumers may read from a standby: those of the newest cut, up to its high watermarks.

For each partition that a cut has changed there is a new directory, with links to the files of the mirror.
These are complete, and stay as they are while the next cut is applied: the mirror appends to its files, and
replaces all others (`Mirror`, `is_read`). A reader that knows the former directory reads on there until it
learns of the new one. Nothing here is durable: a successor begins with none.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from mpbroker.ipc.mirror import ReadPartition
from mpbroker.reading.segments import opened, position_by_offset
from mpbroker.records.errors import CorruptBatch
from mpbroker.remote.cuts.manifest import CutEnd, CutFile, CutManifest
from mpbroker.remote.restore.mirror import place
from mpbroker.storage.checkpoints import read_epochs, topic_id_if_any
from mpbroker.storage.names import (
    METADATA_DIRECTORY,
    REPLICA,
    SWAP_FILE_SUFFIX,
    TXN_INDEX_SUFFIX,
    links_name,
    segment_name,
)
from mpbroker.storage.reader import Bound, SegmentGone
from mpbroker.storage.scan import find_offset, last_batch
from mpbroker.storage.segments import offsets_of, segments_of
from mpbroker.storage.transaction_index import read_aborted

_DIRECTORY_MODE: Final = 0o750
log = logging.getLogger("mpbroker.supervisor")


class NotReadable(ValueError):
    """Raised where the files of a cut do not tell what consumers may read of a partition."""


class _Cut(NamedTuple):
    """A partition of a cut. Its links and its slot stay as long as these fields are equal."""

    files: tuple[CutFile, ...]
    end: CutEnd


class Replica:
    """Keeps the links and the table of what consumers may read. One thread."""

    def __init__(self, log_dirs: Sequence[Path]) -> None:
        self._log_dirs = log_dirs
        # By directory of the cut.
        self._cuts: dict[str, _Cut] = {}
        self._readable: dict[str, ReadPartition] = {}
        # Those that the last update has replaced, whose slots and links readers may still use.
        self._former: list[ReadPartition] = []
        self._free_places: list[int] = []
        self._generation = self._next_place = 0
        self.clear()

    @property
    def partitions(self) -> list[ReadPartition]:
        return list(self._readable.values())

    def clear(self) -> None:
        """Remove all links, because nobody reads them. Raises OSError."""
        self._cuts, self._readable = {}, {}
        for log_dir in self._log_dirs:
            shutil.rmtree(log_dir / REPLICA, ignore_errors=True)

    def update(self, manifest: CutManifest) -> None:
        """Let consumers read what the mirror has of this cut. The links of the cut before stay.

        Raises OSError: then call it again.
        """
        before = list(self._free_places), self._next_place
        try:
            self._update(manifest)
        except OSError:
            # A disk that stays full must not use up the slots.
            self._free_places, self._next_place = before
            raise

    def _update(self, manifest: CutManifest) -> None:
        cuts = _partitions_of(manifest)
        self._generation += 1
        # One that was not open at the instant, as at a start, is readable as before.
        readable = {path: self._readable[path] for path in manifest.directories if path in self._readable}
        for path, cut in cuts.items():
            if cut != self._cuts.get(path):
                readable.pop(path, None)
                if (found := self._linked(path, cut)) is not None:
                    readable[path] = found
        former = [one for path, one in self._readable.items() if readable.get(path) is not one]
        self._remove_but(set(map(self._links, [*readable.values(), *former])))
        self._free_places += [one.place for one in self._former]
        cuts = self._cuts | cuts
        self._cuts = {path: cuts[path] for path in manifest.directories if path in cuts}
        self._readable, self._former = readable, former

    def _linked(self, path: str, cut: _Cut) -> ReadPartition | None:
        """Link a partition's files; return what may be read of them, None if nothing. Raises OSError."""
        number, topic_id, partition = int(path.partition("/")[0]), cut.end.topic_id, cut.end.partition
        if topic_id_if_any(place(self._log_dirs, path)) != topic_id:
            return None
        directory = self._log_dirs[number] / REPLICA / links_name(topic_id, partition, self._generation)
        # One that is there is of a try that has failed.
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(_DIRECTORY_MODE, parents=True)
        for one in cut.files:
            os.link(place(self._log_dirs, one.path), directory / one.path.rpartition("/")[2])
        try:
            bounds, epochs = _bounds(directory, cut), read_epochs(directory)
            aborted_end = _aborted_end(directory)
        except (ValueError, CorruptBatch, SegmentGone) as error:
            log.warning("consumers cannot read %s here until the next cut: %s", path, error)
            shutil.rmtree(directory)
            return None
        return ReadPartition(
            *(topic_id, partition, self._take_place(), self._generation, number),
            *(epochs[-1][0] if epochs else 0, cut.end.log_start, *bounds, aborted_end),
        )

    def _take_place(self) -> int:
        if self._free_places:
            return self._free_places.pop()
        self._next_place += 1
        return self._next_place - 1

    def _links(self, one: ReadPartition) -> Path:
        name = links_name(one.topic_id, one.partition, one.generation)
        return self._log_dirs[one.log_dir] / REPLICA / name

    def _remove_but(self, kept: set[Path]) -> None:
        for log_dir in self._log_dirs:
            for one in (log_dir / REPLICA).glob("*"):
                if one not in kept:
                    shutil.rmtree(one)


def _partitions_of(manifest: CutManifest) -> dict[str, _Cut]:
    """Return the partitions of a cut that were open, by directory."""
    files: dict[str, list[CutFile]] = {one.directory: [] for one in manifest.ends}
    for one in manifest.files:
        if (of := files.get(one.path.rpartition("/")[0])) is not None:
            of.append(one)
    return {
        one.directory: _Cut(tuple(files[one.directory]), one)
        for one in manifest.ends
        if one.directory.partition("/")[2] != METADATA_DIRECTORY
    }


def _bounds(directory: Path, cut: _Cut) -> tuple[Bound, Bound]:
    """Return high watermark and last stable offset, with their places in a partition's files.

    Raises ValueError, CorruptBatch, SegmentGone, OSError.
    """
    bases = segments_of(directory)
    if any(one.path.endswith(SWAP_FILE_SUFFIX) for one in cut.files):
        raise NotReadable("compaction was just replacing segments")
    if not bases or cut.end.last_stable < bases[0]:
        raise NotReadable("its first segment begins behind the last stable offset")
    return _bound(directory, bases, cut.end.high_watermark), _bound(directory, bases, cut.end.last_stable)


def _bound(directory: Path, bases: Sequence[int], offset: int) -> Bound:
    """Return where the batch of an offset begins, or where the log ends if that comes first."""
    base = max(one for one in bases if one <= offset)
    with opened(directory, base) as fd:
        start, size = position_by_offset(directory, base, fd, offset), os.fstat(fd).st_size
        if (batch := find_offset(fd, start, size, offset)) is not None:
            return Bound(offset, base, batch.position)
        last = last_batch(fd, start, size)
    if last is None:
        return Bound(base, base, 0)
    return Bound(min(offset, last.last_offset + 1), base, last.position + last.length)


def _aborted_end(directory: Path) -> int:
    """Return the offset behind the last marker of an aborted transaction, 0 if none was aborted."""
    for base in reversed(offsets_of(directory, TXN_INDEX_SUFFIX)):
        if found := read_aborted(directory / segment_name(base, TXN_INDEX_SUFFIX), may_grow=True):
            return found[-1].last_offset + 1
    return 0
