"""The files of a partition's directory, by their names, and the part that a recovery checks."""

from __future__ import annotations

import os
from bisect import bisect_right
from typing import NamedTuple

from mpbroker.storage import names
from mpbroker.storage.checkpoints import opened
from mpbroker.storage.index import offset_floor


class PartitionFiles(NamedTuple):
    """The files of one partition: segments and indexes by base offset, snapshots by offset. Lists are sorted.

    `aborted`: segments with a `.txnindex`. `has_leftovers`: there are files of an unfinished operation.
    `has_remote`: there is a file of remote segments. `has_start`: one with the start of an undeleted log.
    """

    bases: list[int]
    indexes: set[int]
    time_indexes: set[int]
    aborted: set[int]
    snapshots: list[int]
    has_leftovers: bool
    has_remote: bool
    has_start: bool

    @classmethod
    def of(cls, directory: str) -> PartitionFiles:
        """Return the files in a partition's directory, by their names. Raises OSError."""
        bases: list[int] = []
        snapshots: list[int] = []
        indexes: set[int] = set()
        time_indexes: set[int] = set()
        aborted: set[int] = set()
        add = {
            names.LOG_SUFFIX: bases.append,
            names.INDEX_SUFFIX: indexes.add,
            names.TIME_INDEX_SUFFIX: time_indexes.add,
            names.TXN_INDEX_SUFFIX: aborted.add,
            names.SNAPSHOT_SUFFIX: snapshots.append,
        }
        leftovers = has_remote = has_start = False
        for name in os.listdir(directory):  # noqa: PTH208 - thousands of directories, and only their names
            kind = add.get(name[names.OFFSET_DIGITS :])
            if kind is not None and name[: names.OFFSET_DIGITS].isdecimal():
                kind(int(name[: names.OFFSET_DIGITS]))
            elif name.endswith(names.LEFTOVER_SUFFIXES):
                leftovers = True
            elif name == names.REMOTE_SEGMENTS:
                has_remote = True
            elif name == names.UNDELETED_START:
                has_start = True
        bases.sort()
        snapshots.sort()
        leftovers = leftovers or not (indexes | time_indexes | aborted).issubset(bases)
        return cls(bases, indexes, time_indexes, aborted, snapshots, leftovers, has_remote, has_start)


def first_suspect(bases: list[int], recovery_point: int) -> int:
    """Return the index in `bases` of the first segment to check: the one with the recovery point."""
    return max(bisect_right(bases, recovery_point) - 1, 0)


def bytes_after(directory: str, recovery_point: int) -> int:
    """Return about how many bytes a recovery checks, from `recovery_point` on. Raises OSError."""
    files = PartitionFiles.of(directory)
    total = 0
    for base in files.bases[first_suspect(files.bases, recovery_point) :]:
        total += os.stat(f"{directory}/{names.segment_name(base)}").st_size  # noqa: PTH116 - of thousands
        if base < recovery_point and base in files.indexes:
            with opened(f"{directory}/{names.segment_name(base, names.INDEX_SUFFIX)}") as fd:
                total -= offset_floor(fd, base, recovery_point - 1)[1]
    return max(0, total)
