"""Make a commit journal beside the broker's work: a file of zeros, all of it written and synced once.

Overwriting blocks that were written before makes a sync about half as dear as growing a file does. Until the
journal is there, and where there is no room for one, rounds sync each file by itself.
"""

from __future__ import annotations

import os
from pathlib import Path

from mpbroker.storage.checkpoints import fsync_directory
from mpbroker.storage.journal import RING_AT, JournalFile, make

MAKING_SUFFIX = ".tmp"
PIECE_BYTES = 4 << 20
PAGE_BYTES = 4096
_ZEROS = memoryview(bytes(PIECE_BYTES))


def ring_bytes_of(journal_bytes: int) -> int:
    return (journal_bytes - RING_AT) // PAGE_BYTES * PAGE_BYTES


class JournalCreation:
    """A commit journal being made at `path`.

    Owns the unfinished file beside it, whose room on the disk is allocated at once. Raises OSError.
    """

    def __init__(self, path: Path, journal_bytes: int) -> None:
        self._made = path
        self._path = path.with_name(path.name + MAKING_SUFFIX)
        self._end = RING_AT + ring_bytes_of(journal_bytes)
        self._at = 0
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(self._fd, 0, self._end)
        except OSError:
            self.abandon()
            raise

    def step(self) -> JournalFile | None:
        """Write one piece more; return the journal when it is whole and durable. Raises OSError."""
        try:
            if self._at < self._end:
                self._at += os.pwrite(self._fd, _ZEROS[: self._end - self._at], self._at)
                os.fdatasync(self._fd)
                return None
            make(self._fd, self._end - RING_AT)
            os.fsync(self._fd)
            whole = self._path.rename(self._made)
            fsync_directory(whole.parent)
            made = JournalFile(whole)
            os.close(self._fd)
            return made
        except OSError:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Remove the unfinished file, which was never used."""
        os.close(self._fd)
        self._path.unlink(missing_ok=True)
