"""Readers of partition files. The files of the most recently read partitions are kept open."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from mpbroker.handlers.hot_path.fetch_positions import FILES_PER_PARTITION
from mpbroker.ipc.table import Partition
from mpbroker.protocol.numbers import READ_COMMITTED
from mpbroker.storage.names import REPLICA, links_name, partition_name
from mpbroker.storage.reader import OPEN_ABORTED_INDEXES, OPEN_SEGMENTS, Bound, PartitionReader
from shm.procfs import descriptors_left

OPEN_PARTITIONS = 256
# Segments with their indexes, those of aborted transactions, and the directory.
FILES_PER_READER = 2 * OPEN_SEGMENTS + OPEN_ABORTED_INDEXES + 1
# Descriptors for other short uses: reads from the disk, directories, other indexes.
SPARE_DESCRIPTORS = 32
# Readers checked for deleted files at a time: a fraction of a millisecond.
LOOKED_AT_ONCE = 32


def bound_of(partition: Partition, isolation_level: int) -> Bound:
    """Return where a consumer's view ends: high watermark, or last stable offset for read_committed."""
    if isolation_level == READ_COMMITTED:
        return Bound(
            partition.last_stable_offset, partition.last_stable_segment, partition.last_stable_position
        )
    return Bound(
        partition.high_watermark, partition.high_watermark_segment, partition.high_watermark_position
    )


Key: TypeAlias = tuple[bytes, int, int, int]


def _key(partition: Partition) -> Key:
    """Return the key of a partition's reader. A move to another log directory changes the key."""
    return partition.topic_id, partition.partition, partition.generation, partition.log_dir


class _Held:
    """Keeps a reader's directory open, so that no other directory can get its inode number."""

    def __init__(self, path: Path) -> None:
        """Open the directory at `path`. Raises OSError."""
        self._fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._status = os.fstat(self._fd)

    def has_lost(self, path: Path) -> bool:
        """Return True if another directory is at `path`; False if none is, as during a rename."""
        try:
            return not os.path.samestat(os.stat(path), self._status)  # noqa: PTH116 - for each fetch
        except FileNotFoundError:
            return False

    def is_deleted(self) -> bool:
        return os.fstat(self._fd).st_nlink == 0

    def close(self) -> None:
        os.close(self._fd)


class Readers:
    """Open readers, as many as the limit of open files allows.

    `turn_partitions_max`: the number of partitions whose files the fetch turn may keep open. `log_dirs` are
    in the order of their numbers in the partition table.
    """

    def __init__(
        self, log_dirs: Sequence[str], make: Callable[[Path], PartitionReader] = PartitionReader
    ) -> None:
        self._log_dirs = [Path(directory) for directory in log_dirs]
        self._make = make
        # Half of the descriptors are for the fetch turn.
        left = max(descriptors_left() - SPARE_DESCRIPTORS, 0) // 2
        self._readers_max = max(1, min(OPEN_PARTITIONS, left // FILES_PER_READER))
        self.turn_partitions_max = min(OPEN_PARTITIONS, left // FILES_PER_PARTITION)
        self._open: OrderedDict[Key, PartitionReader] = OrderedDict()
        # Each reader's directory, from before its first file was opened.
        self._directories: dict[Key, _Held] = {}
        self._to_look_at: list[Key] = []

    def get(self, name: str, partition: Partition) -> PartitionReader:
        """Return the reader of a partition of topic `name`. Raises OSError if there is no directory.

        A partition that has moved to another log directory and back has new files under the same names. A
        reader that has the earlier files open would not see later records, so it is replaced.
        """
        key = _key(partition)
        directory = self.directory(name, partition)
        if key in self._open and self._directories[key].has_lost(directory):
            self._drop(key)
        reader = self._open.get(key)
        if reader is None:
            self._directories[key] = _Held(directory)
            reader = self._open[key] = self._make(directory)
            if len(self._open) > self._readers_max:
                self._drop(next(iter(self._open)))
        self._open.move_to_end(key)
        return reader

    def directory(self, name: str, partition: Partition) -> Path:
        """Return the directory of a partition's files."""
        return self._log_dirs[partition.log_dir] / partition_name(name, partition.partition)

    @property
    def is_replica(self) -> bool:
        """Return whether the files are those of another broker, as of its newest cut."""
        return False

    def forget(self, partition: Partition) -> None:
        """Close the reader of a partition whose files have been replaced."""
        self._drop(_key(partition))

    def forget_deleted(self) -> bool:
        """Check the next few readers, and close each whose files were deleted; return False after the last.

        Deleted files keep their disk space for as long as they are open.
        """
        if not self._to_look_at:
            self._to_look_at = list(self._open)
        for key in self._to_look_at[-LOOKED_AT_ONCE:]:
            reader = self._open.get(key)
            if reader is not None and (reader.has_deleted() or self._directories[key].is_deleted()):
                # The whole reader with the positions it knows: another file may have the name by now.
                self._drop(key)
        del self._to_look_at[-LOOKED_AT_ONCE:]
        return bool(self._to_look_at)

    def forget_all(self) -> None:
        """Close all readers. The log process has a successor, which may have truncated or replaced files."""
        for key in list(self._open):
            self._drop(key)

    def _drop(self, key: Key) -> None:
        reader = self._open.pop(key, None)
        if reader is not None:
            reader.close()
            self._directories.pop(key).close()


class ReplicaReaders(Readers):
    """Readers of a standby that serves reads: each slot has a directory of its own (`ipc/mirror.py`)."""

    def directory(self, name: str, partition: Partition) -> Path:  # noqa: ARG002 - it has another name here
        links = links_name(partition.topic_id, partition.partition, partition.generation)
        return self._log_dirs[partition.log_dir] / REPLICA / links

    @property
    def is_replica(self) -> bool:
        return True
