"""Which files a partition's directory has, as their names tell, and how much of them a recovery looks at."""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import dataclass

from mpbroker.log.index import offset_floor
from mpbroker.log.names import (
    CLEANED_FILE_SUFFIX,
    DELETED_FILE_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    OFFSET_DIGITS,
    SNAPSHOT_SUFFIX,
    SWAP_FILE_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_name,
)

_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)
_LEFTOVERS = (SWAP_FILE_SUFFIX, CLEANED_FILE_SUFFIX, DELETED_FILE_SUFFIX, ".tmp")


@dataclass(frozen=True)
class PartitionFiles:
    """Base offsets of segments and indexes, offsets of snapshots; lists are in order.

    `aborted`: segments with a `.txnindex`. `has_leftovers`: of something that was not finished.
    """

    bases: list[int]
    indexes: frozenset[int]
    time_indexes: frozenset[int]
    aborted: frozenset[int]
    snapshots: list[int]
    has_leftovers: bool

    @classmethod
    def of(cls, directory: str) -> PartitionFiles:
        """Raises OSError."""
        found: dict[str, list[int]] = {suffix: [] for suffix in _SUFFIXES}
        leftovers = False
        for name in os.listdir(directory):  # noqa: PTH208 - thousands of directories, and only their names
            stem, kind = name[:OFFSET_DIGITS], found.get(name[OFFSET_DIGITS:])
            if kind is not None and len(stem) == OFFSET_DIGITS and stem.isdecimal():
                kind.append(int(stem))
            else:
                leftovers |= name.endswith(_LEFTOVERS)
        bases = sorted(found[LOG_SUFFIX])
        indexes = {*found[INDEX_SUFFIX], *found[TIME_INDEX_SUFFIX], *found[TXN_INDEX_SUFFIX]}
        return cls(
            bases,
            frozenset(found[INDEX_SUFFIX]),
            frozenset(found[TIME_INDEX_SUFFIX]),
            frozenset(found[TXN_INDEX_SUFFIX]),
            sorted(found[SNAPSHOT_SUFFIX]),
            leftovers or not indexes.issubset(bases),
        )


def first_suspect(bases: list[int], recovery_point: int) -> int:
    """The place of the segment with the recovery point: from there on what was not synced may be missing."""
    return max(bisect_right(bases, recovery_point) - 1, 0)


def bytes_behind(directory: str, recovery_point: int) -> int:
    """About how many bytes a check after an unclean stop looks at. Raises OSError."""
    files = PartitionFiles.of(directory)
    total = 0
    for base in files.bases[first_suspect(files.bases, recovery_point) :]:
        total += os.stat(f"{directory}/{segment_name(base)}").st_size  # noqa: PTH116 - of thousands
        if base < recovery_point and base in files.indexes:
            fd = os.open(f"{directory}/{segment_name(base, INDEX_SUFFIX)}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                total -= offset_floor(fd, base, recovery_point - 1)[1]
            finally:
                os.close(fd)
    return max(0, total)
