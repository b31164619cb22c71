"""Files as the device has them: written there, then read anew.

When the kernel fails to write pages back it says so once, and takes them for written: a later sync succeeds,
and what is read comes from memory (Linux: errseq, `mapping_set_error`).
"""

from __future__ import annotations

import logging
import os
from typing import Protocol

from mpbroker.log.partition.partition_log import sync
from shm.word import Words

# The kernel keeps what it holds in one piece (a folio) if only a part of it is named, and no such piece has
# more pages; where they begin in a file is a multiple of their size.
_LARGEST_PIECE = os.sysconf("SC_PAGE_SIZE") << 11
# So many files are synced by themselves before all that is on their file system is.
FEW = 8
_log = logging.getLogger("mpbroker")


def read_anew(fd: int, position: int) -> None:
    """What is read from `position` on comes from the device, but for what has yet to be written there."""
    os.posix_fadvise(fd, position - position % _LARGEST_PIECE, 0, os.POSIX_FADV_DONTNEED)


class Syncs(Protocol):
    def sync(self, fd: int) -> bool:
        """The file is on the device; whether all others of its directory are, with their names, as they were
        before it was opened. Raises SyncFailed.
        """


class EachFile:
    def sync(self, fd: int) -> bool:
        sync(fd)
        return False


EACH_FILE = EachFile()


class Whole(Protocol):
    """A file system (`file_system.FileSystem`)."""

    @property
    def is_synced_at_once(self) -> bool: ...
    def has(self, path: int) -> bool: ...
    def sync(self) -> None: ...


class AtOnce:
    """The file system as a whole once there are more than a few; `synced` has a word of each worker.

    What failed before `file_system` was opened it does not tell; that is gone when it is read anew. A file
    that was written to by one of the workers since is not to be given to it. What lies on another file
    system, by a link or a mount, is synced by itself.
    """

    def __init__(self, file_system: Whole, synced: Words, worker: int) -> None:
        self._file_system = file_system
        self._is_possible = file_system.is_synced_at_once
        self._synced = synced
        self._worker = worker
        self._count = 0

    def _is_synced(self) -> bool:
        return any(self._synced.load(number) for number in range(self._synced.count))

    def sync(self, fd: int) -> bool:
        if not self._file_system.has(fd):
            sync(fd)
            return False
        if self._is_synced():
            return True
        self._count += 1
        if self._count > FEW and self._is_possible:
            try:
                self._file_system.sync()
            except OSError as error:
                _log.warning("a file system cannot be synced as a whole, each file is: %s", error.strerror)
                self._is_possible = False
            else:
                self._synced.store(self._worker, 1)
                return True
        sync(fd)
        return False
