"""Syncs and reads that show files as the device has them.

When the kernel fails to write pages back it reports the failure once, and marks the pages clean. A later sync
succeeds, and reads come from memory (Linux: errseq, `mapping_set_error`).
"""

from __future__ import annotations

import logging
import os

from mpbroker.log.io.file_system import FileSystem
from mpbroker.log.partition.partition_log import sync
from shm.word import Words

# The kernel drops only folios that lie wholly in the range. This is the size of the largest folio; each
# begins at a multiple of its size.
_LARGEST_PIECE = os.sysconf("SC_PAGE_SIZE") << 11
# Files that are synced one by one before their whole file system is.
FEW = 8
_log = logging.getLogger("mpbroker.log")


def reread(fd: int, position: int) -> None:
    """Drop the clean cached pages from `position` on, so that the next reads come from the device."""
    os.posix_fadvise(fd, position - position % _LARGEST_PIECE, 0, os.POSIX_FADV_DONTNEED)


class Syncs:
    """Syncs each file by itself."""

    def sync(self, fd: int) -> bool:
        """Sync a file; return whether its whole file system has been synced. Raises SyncFailed."""
        sync(fd)
        return False


EACH_FILE = Syncs()


class FileSystemSync(Syncs):
    """Syncs the first few files singly, and then the file system as a whole.

    `synced` has a word for each worker, set when that worker has synced the file system. After that, `sync`
    does nothing, so it must not be called for files written to later. Errors of writes from before
    `file_system` was opened are not reported, but reads from the device show what was lost. A file on another
    file system, by a link or a mount, is synced by itself.
    """

    def __init__(self, file_system: FileSystem, synced: Words, worker: int) -> None:
        self._file_system = file_system
        self._is_possible = file_system.is_synced_at_once
        self._synced = synced
        self._worker = worker
        self._count = 0

    def sync(self, fd: int) -> bool:
        if not self._file_system.has(fd):
            return super().sync(fd)
        if any(self._synced.load(number) for number in range(self._synced.count)):
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
        return super().sync(fd)
