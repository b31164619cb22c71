"""Which files of the log directories a cut has, and what is remembered of each.

A cut has what a start after a kill of all processes needs. It has no commit journal: segments have all that
was written, also what was not synced. It has no segment that the ledger has, and nothing that says who owns
the ledger.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from mpbroker.ipc.pointer import LOCK, POINTER_NAME
from mpbroker.remote.ledger.owner import OWNER_FILE
from mpbroker.storage.names import (
    CLEAN_SHUTDOWN,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    NOT_PARTITIONS,
    OFFSET_DIGITS,
    REMOTE_SEGMENTS,
    SCRUB,
    is_live_partition,
    parse_segment,
)

# What grows at its end only.
APPENDED: Final = (LOG_SUFFIX, *INDEX_SUFFIXES)
_NOT_KEPT: Final = frozenset((LOCK, POINTER_NAME, OWNER_FILE, CLEAN_SHUTDOWN, SCRUB, REMOTE_SEGMENTS))
# Files of work that was not finished. One that ends in `.swap` is part of the log.
_UNFINISHED: Final = (".tmp", ".deleted", ".cleaned", ".damaged", ".repaired")
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


class FoundFiles(NamedTuple):
    """All files by their paths, and the directories of partitions, as in `CutFile.path`."""

    files: dict[str, Found]
    partitions: list[str]


def find_files(log_dirs: Sequence[Path], remote_ends: Mapping[str, int]) -> FoundFiles:
    """List the files. `remote_ends`: by partition directory, up to where the ledger has its segments.

    Files that vanish meanwhile are left out. Raises OSError.
    """
    files: dict[str, Found] = {}
    partitions = []
    for number, log_dir in enumerate(log_dirs):
        with os.scandir(log_dir) as entries:
            for entry in entries:
                path = f"{number}/{entry.name}"
                if entry.is_file(follow_symlinks=False):
                    _add(files, path, entry)
                elif is_live_partition(entry.name) and entry.name not in NOT_PARTITIONS:
                    partitions.append(path)
                    _add_partition(files, path, entry.path, remote_ends.get(path, 0))
    return FoundFiles(files, partitions)


def _add_partition(files: dict[str, Found], path: str, directory: str, remote_end: int) -> None:
    try:
        with os.scandir(directory) as scanned:
            entries = {entry.name: entry for entry in scanned}
    except FileNotFoundError:
        return
    skipped = set(_remote_bases(entries, remote_end)) if remote_end else ()
    for name, entry in entries.items():
        if not (skipped and name[:OFFSET_DIGITS] in skipped and name.endswith(APPENDED)):
            _add(files, f"{path}/{name}", entry)


def _remote_bases(names: Mapping[str, object], remote_end: int) -> Iterator[str]:
    """Yield the first digits of the names of segments that end at or below `remote_end`."""
    bases = sorted(base for name in names if (base := parse_segment(name)) is not None)
    for base, end in pairwise(bases):
        if end <= remote_end:
            yield f"{base:0{OFFSET_DIGITS}d}"


def _add(files: dict[str, Found], path: str, entry: os.DirEntry[str]) -> None:
    name = entry.name
    if name in _NOT_KEPT or name.endswith(_UNFINISHED) or name.startswith(_JOURNAL):
        return
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return
    files[path] = Found(path, entry.path, found.st_size, found.st_ino, found.st_ctime_ns)
