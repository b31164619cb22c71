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
from mpbroker.reading.errors import CorruptLog
from mpbroker.reading.segments import opened, position_by_offset
from mpbroker.reading.transactions import aborted_in, at_rest
from mpbroker.records.errors import CorruptBatch
from mpbroker.remote.cuts.manifest import CutFile, CutManifest
from mpbroker.remote.restore.mirror import place
from mpbroker.storage.checkpoints import Offsets, read_epochs, read_offsets, topic_id_if_any
from mpbroker.storage.names import (
    HIGH_WATERMARKS,
    LOG_STARTS,
    METADATA_DIRECTORY,
    REPLICA,
    SWAP_FILE_SUFFIX,
    TXN_INDEX_SUFFIX,
    links_name,
    parse_partition,
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
    """What follows from a cut about a partition. It is readable as before while this is the same."""

    files: tuple[CutFile, ...]
    is_tiered: bool
    log_start: int
    high_watermark: int


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
        cuts = self._read(manifest)
        self._generation += 1
        readable = {}
        for path, cut in cuts.items():
            if cut == self._cuts.get(path):
                if path in self._readable:
                    readable[path] = self._readable[path]
            elif (found := self._linked(path, cut)) is not None:
                readable[path] = found
        former = [one for path, one in self._readable.items() if readable.get(path) is not one]
        self._remove_but(set(map(self._links, [*readable.values(), *former])))
        self._free_places += [one.place for one in self._former]
        self._cuts, self._readable, self._former = cuts, readable, former

    def _read(self, manifest: CutManifest) -> dict[str, _Cut]:
        """Return the partitions of a cut, by directory."""
        files: dict[str, list[CutFile]] = {
            path: [] for path in manifest.directories if path.partition("/")[2] != METADATA_DIRECTORY
        }
        for one in manifest.files:
            if (of := files.get(one.path.rpartition("/")[0])) is not None:
                of.append(one)
        tiered = {one.directory for one in manifest.remote}
        starts, marks = (self._offsets(name) for name in (LOG_STARTS, HIGH_WATERMARKS))
        found = {}
        for path, some in files.items():
            number, _, name = path.partition("/")
            topic, partition, _ = parse_partition(name)
            of_dir = int(number)
            mark = manifest.high_watermarks.get(path, marks[of_dir].get((topic, partition), 0))
            start = starts[of_dir].get((topic, partition), 0)
            found[path] = _Cut(tuple(some), path in tiered, start, mark)
        return found

    def _offsets(self, name: str) -> list[Offsets]:
        files = [log_dir / name for log_dir in self._log_dirs]
        return [read_offsets(one) if one.exists() else Offsets() for one in files]

    def _linked(self, path: str, cut: _Cut) -> ReadPartition | None:
        """Link a partition's files; return what may be read of them, None if nothing. Raises OSError."""
        topic_id = topic_id_if_any(place(self._log_dirs, path))
        number, _, name = path.partition("/")
        partition = parse_partition(name).partition
        if topic_id is None:
            return None
        directory = self._log_dirs[int(number)] / REPLICA / links_name(topic_id, partition, self._generation)
        # One that is there is of a try that has failed.
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(_DIRECTORY_MODE, parents=True)
        for one in cut.files:
            os.link(place(self._log_dirs, one.path), directory / one.path.rpartition("/")[2])
        try:
            start, end, stable, aborted_end = _bounds(directory, cut)
            epochs = read_epochs(directory)
        except (ValueError, CorruptBatch, CorruptLog, SegmentGone) as error:
            log.warning("consumers cannot read %s here until the next cut: %s", path, error)
            shutil.rmtree(directory)
            return None
        return ReadPartition(
            *(topic_id, partition, self._take_place(), self._generation, int(number)),
            *(epochs[-1][0] if epochs else 0, start, end, stable, aborted_end),
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


def _bounds(directory: Path, cut: _Cut) -> tuple[int, Bound, Bound, int]:
    """Return the log start, high watermark, last stable offset and `aborted_end` of a partition's files.

    Raises ValueError, CorruptBatch, CorruptLog, SegmentGone, OSError.
    """
    bases = segments_of(directory)
    if any(one.path.endswith(SWAP_FILE_SUFFIX) for one in cut.files):
        raise NotReadable("compaction was just replacing segments")
    if not bases or cut.high_watermark < bases[0]:
        raise NotReadable("its first segment begins behind the high watermark")
    end = _bound(directory, bases, cut.high_watermark)
    rest = at_rest(directory, bases, end.offset)
    indexed = aborted_in(directory, bases[0], end.offset) if rest.aborted else []
    markers = {(one.producer_id, one.last_offset) for one in indexed}
    if not all((one.producer_id, one.last_offset) in markers for one in rest.aborted):
        raise NotReadable("its index lacks aborted transactions")
    last_stable = rest.last_stable_offset
    stable = end if last_stable == end.offset else _bound(directory, bases, last_stable)
    # A checkpoint may be older than the removal of segments. Of a tiered partition the store has them.
    start = cut.log_start if cut.is_tiered else max(cut.log_start, bases[0])
    return min(start, end.offset), end, stable, _aborted_end(directory)


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
