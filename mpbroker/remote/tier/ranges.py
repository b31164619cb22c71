"""Finds the bytes of unshipped rounds in the segments of partitions.

The journal would not do: it has no large writes, and nothing from before a start.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mpbroker.ipc.table import Partition, PartitionFlag, read_partition_surely
from mpbroker.ipc.unshipped import Unsent
from mpbroker.protocol.topic_names import METADATA_TOPIC_ID
from mpbroker.remote.cuts.files import is_partition
from mpbroker.remote.ledger.events import ShippedRange
from mpbroker.storage.checkpoints import opened, topic_id_if_any
from mpbroker.storage.names import METADATA_DIRECTORY, parse_partition, parse_segment, segment_name
from shm.table import SlotTable

_READ_BYTES = 256 << 10
_SERVED = PartitionFlag.PARTITION_LIVE | PartitionFlag.PARTITION_OFFLINE | PartitionFlag.PARTITION_DELETED


class NotFound(OSError):
    """Raised where the files of a partition are not where they should be. A later try may find them."""


class Found(NamedTuple):
    """A range for the ledger, and the directory that its bytes are in."""

    shipped: ShippedRange
    directory: Path

    @property
    def size(self) -> int:
        return sum(length for _, _, length in self.shipped.pieces)

    def read(self) -> Iterator[bytes]:
        """Yield the bytes of all pieces. Raises NotFound, OSError."""
        for base, position, length in self.shipped.pieces:
            with opened(self.directory / segment_name(base)) as fd:
                end = position + length
                while position < end:
                    data = os.pread(fd, min(end - position, _READ_BYTES), position)
                    if not data:
                        raise NotFound(f"{self.directory / segment_name(base)} ends at byte {position}")
                    position += len(data)
                    yield data


class Ranges:
    """Finds the ranges of rounds in the log directories. One thread uses it."""

    def __init__(self, table: SlotTable, log_dirs: Sequence[str]) -> None:
        self._table = table
        self._log_dirs = [Path(name) for name in log_dirs]
        # The names of partitions' directories, as they were found.
        self._names: dict[tuple[bytes, int], str] = {}

    def find(self, unsent: Unsent) -> Found | None:
        """Find what a round has of a partition; None if nobody serves that any more.

        Raises NotFound, OSError.
        """
        now = read_partition_surely(self._table, unsent.slot)
        if now.generation != unsent.generation or now.flags & _SERVED != PartitionFlag.PARTITION_LIVE:
            return None
        directory = self._directory(now)
        pieces = tuple(_pieces(directory, unsent))
        name = f"{now.log_dir}/{directory.name}"
        return Found(ShippedRange(name, now.topic_id, unsent.log_start, pieces, unsent.end), directory)

    def _directory(self, now: Partition) -> Path:
        """Return a partition's directory. A deleted one may have left its name to a partition of today."""
        key, log_dir = (now.topic_id, now.partition), self._log_dirs[now.log_dir]
        if now.topic_id == METADATA_TOPIC_ID:
            return log_dir / METADATA_DIRECTORY
        name = self._names.get(key)
        if name is None or topic_id_if_any(log_dir / name) != now.topic_id:
            self._names |= dict(_partitions(log_dir))
            name = self._names.get(key)
        if name is None or topic_id_if_any(log_dir / name) != now.topic_id:
            raise NotFound(f"{log_dir} has no directory of the partition in slot {now}")
        return log_dir / name


def _partitions(log_dir: Path) -> Iterator[tuple[tuple[bytes, int], str]]:
    for name in os.listdir(log_dir):  # noqa: PTH208 - names are all that is wanted
        if is_partition(f"{log_dir}/{name}") and (topic_id := topic_id_if_any(log_dir / name)) is not None:
            yield (topic_id, parse_partition(name).partition), name


def _pieces(directory: Path, unsent: Unsent) -> Iterator[tuple[int, int, int]]:
    """Yield what lies between the two places: base of the segment, position, length."""
    begin, end = unsent.begin, unsent.end
    if begin.offset >= end.offset:
        return
    if begin.segment_base == end.segment_base:
        yield end.segment_base, begin.position, end.position - begin.position
        return
    bases = sorted(base for name in os.listdir(directory) if (base := parse_segment(name)) is not None)  # noqa: PTH208
    # A segment all of which is in the store may be gone, or have been cleaned.
    first = max((base for base in bases if base <= begin.offset), default=end.segment_base)
    for base in bases:
        if not first <= base <= end.segment_base:
            continue
        position = begin.position if base == begin.segment_base else 0
        size = (directory / segment_name(base)).stat().st_size
        limit = end.position if base == end.segment_base else size
        if limit > position:
            yield base, position, limit - position
