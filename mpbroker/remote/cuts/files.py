"""Which files of the log directories a cut has, and what is remembered of each.

A cut has what a start after a kill of all processes needs. It has no commit journal: segments have all that
was written, also what was not synced. It has no segment that the ledger has, and nothing that says who owns
the ledger. It does not say how far partitions are compacted, because it may have segments of before the last
compaction (see `Broker.look`): a cleaner would remove tombstones while older records of their keys are there.
The last cut of a clean stop has Kafka's file of a clean shutdown, so that a new owner checks nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from mpbroker.ipc.nodes import NODES_FILE
from mpbroker.ipc.pointer import LOCK, POINTER_NAME
from mpbroker.remote.cuts.manifest import CutPartition
from mpbroker.remote.ledger.spare import SPARE
from mpbroker.storage.names import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    NOT_PARTITIONS,
    OFFSET_DIGITS,
    REMOTE_CLAIM,
    REMOTE_OWNER,
    REMOTE_SEGMENTS,
    SCRUB,
    is_live_partition,
    parse_segment,
)

# What grows at its end only.
APPENDED: Final = (LOG_SUFFIX, *INDEX_SUFFIXES)
_NOT_KEPT: Final = frozenset(
    (
        *(LOCK, POINTER_NAME, REMOTE_OWNER, REMOTE_CLAIM, NODES_FILE, SCRUB, REMOTE_SEGMENTS),
        *(CLEAN_SHUTDOWN, CLEANER_OFFSETS),
    )
)
# Files of work that was not finished, and spares. One that ends in `.swap` is part of the log.
_UNFINISHED: Final = (".tmp", ".deleted", ".cleaned", ".damaged", ".repaired", SPARE)
_JOURNAL: Final = "mpbroker.journal"


class Found(NamedTuple):
    """A file of a log directory. `changed_ns` is its ctime."""

    path: str
    real_path: str
    size: int
    inode: int
    changed_ns: int

    @property
    def is_appended(self) -> bool:
        return self.path.endswith(APPENDED)


class Row(NamedTuple):
    """A partition's slot in the table, and what it says. Who appends to the partition changes that."""

    slot: int
    payload: bytes
    topic_id: bytes
    partition: int


class Listed(NamedTuple):
    """The files of a partition, and what its row was before they were listed; None: they may be torn.

    `remote` is set if the ledger has segments of it: those are not among the files.
    """

    row: Row | None
    remote: CutPartition | None
    files: list[Found]


class Look(NamedTuple):
    """All files of a cut: those beside the partitions, and those of each partition directory.

    `rows` are the rows of open partitions, by directory, as they were when the files were listed, or before.
    `offline` are the numbers of log directories that have failed or cannot be listed.
    """

    beside: list[Found]
    partitions: dict[str, Listed]
    rows: Mapping[str, Row] = {}
    offline: frozenset[int] = frozenset()

    def files(self) -> Iterator[Found]:
        """Yield all files."""
        yield from self.beside
        for one in self.partitions.values():
            yield from one.files


def list_partition(path: str, directory: str, remote: CutPartition | None) -> list[Found]:
    """List a partition's files; those that vanish meanwhile are left out. Raises OSError."""
    try:
        names = os.listdir(directory)  # noqa: PTH208 - as in the pause
    except FileNotFoundError:
        return []
    skipped = frozenset(_remote_bases(names, remote.remote_end)) if remote is not None else ()
    found = (
        find_file(f"{path}/{name}", f"{directory}/{name}")
        for name in names
        if not (skipped and name[:OFFSET_DIGITS] in skipped and name.endswith(APPENDED))
    )
    return [one for one in found if one is not None]


def list_directory(number: int, log_dir: Path, names: Iterable[str]) -> tuple[list[Found], dict[str, str]]:
    """Return the files of a log directory, and the directories of its partitions with real paths."""
    files, partitions = [], {}
    for name in names:
        path, real_path = f"{number}/{name}", f"{log_dir}/{name}"
        if is_partition(real_path):
            partitions[path] = real_path
        elif (found := find_file(path, real_path)) is not None:
            files.append(found)
    return files, partitions


def is_partition(real_path: str) -> bool:
    """Return whether this is the directory of a partition."""
    name = real_path.rpartition("/")[2]
    return is_live_partition(name) and name not in NOT_PARTITIONS and Path(real_path).is_dir()


def find_file(path: str, real_path: str, *, is_closed: bool = False) -> Found | None:
    """Return a file of a log directory; None if it is none, or one that is in no cut.

    `is_closed`: nobody has the directory open.
    """
    name = real_path.rpartition("/")[2]
    if not (_is_kept(name) or (is_closed and name == CLEAN_SHUTDOWN)):
        return None
    try:
        found = os.lstat(real_path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return Found(path, real_path, found.st_size, found.st_ino, found.st_ctime_ns)


def _remote_bases(names: Iterable[str], remote_end: int) -> Iterator[str]:
    """Yield the first digits of the names of segments that end at or below `remote_end`."""
    bases = sorted(base for name in names if (base := parse_segment(name)) is not None)
    for base, end in pairwise(bases):
        if end <= remote_end:
            yield f"{base:0{OFFSET_DIGITS}d}"


def _is_kept(name: str) -> bool:
    return not (name in _NOT_KEPT or name.endswith(_UNFINISHED) or name.startswith(_JOURNAL))
