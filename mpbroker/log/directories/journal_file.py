"""The commit journal of a log worker in one log directory: a dead predecessor's journal, or a new one.

A journal is not used before the whole file is on disk (`mpbroker.log.directories.journal_set`). Segments that
a predecessor's journal names may not be synced yet. The I/O thread syncs these segments. Until then the
predecessor's part of the journal is not overwritten, and no recovery point moves.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from mpbroker.ipc.process import FatalError
from mpbroker.log.directories.journal_replay import sync_named
from mpbroker.log.io.io_thread import IoThread
from mpbroker.storage.checkpoints import fsync_directory
from mpbroker.storage.disk_errors import NO_ROOM
from mpbroker.storage.journal import RING_AT, JournalDamaged, JournalFile, make
from mpbroker.storage.names import PartitionName
from mpbroker.storage.strict_stat import is_there

Partitions = Callable[[], Iterable[tuple[Path, PartitionName]]]
_log = logging.getLogger("mpbroker.log")


def damaged(problem: JournalDamaged) -> FatalError:
    return FatalError(
        f"{problem}. The latest acknowledged records may be nowhere else. Restore the file, or delete "
        "it: then partitions that lack such records stay offline"
    )


MAKING_SUFFIX = ".tmp"
PIECE_BYTES = 4 << 20
PAGE_BYTES = 4096
_ZEROS = memoryview(bytes(PIECE_BYTES))


def ring_bytes_of(journal_bytes: int) -> int:
    return (journal_bytes - RING_AT) // PAGE_BYTES * PAGE_BYTES


class JournalCreation:
    """The creation of a commit journal at `path`: a file of zeros, written and synced once.

    A sync after overwriting blocks costs about half as much as a sync after growing a file. Until the journal
    exists, commit rounds sync each file by itself. The unfinished file, next to `path`, belongs to this
    object. Its room on the disk is allocated at once. Raises OSError.
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
        """Write one more piece; return the journal when it is whole and durable. Raises OSError."""
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


class DirJournal:
    """A log worker's journal in a log directory.

    `file`: the journal's file, None until it is on disk. `is_wanted`: log.flush.policy needs a journal, and
    the log directory works.
    """

    def __init__(self, log_dir: int, path: Path, *, is_wanted: bool) -> None:
        self.path = path
        self.file: JournalFile | None = None
        # The end of its records. A predecessor's records stay until all segments that they name are synced.
        self.end = 0
        self.inherited_is_synced = False
        self._log_dir = log_dir
        self._is_wanted = is_wanted
        self._inherited: list[tuple[bytes, int, int]] = []
        self._is_syncing = False
        self._creation: JournalCreation | None = None
        # The lack of room was logged.
        self._lacks_room = False

    # ---- a predecessor's journal ----

    def inherit(self) -> None:
        """Continue after the records of an existing journal, if any. Raises OSError, FatalError."""
        self.path.with_name(self.path.name + MAKING_SUFFIX).unlink(missing_ok=True)
        if not self._is_wanted or not is_there(self.path):
            return
        try:
            found = JournalFile(self.path)
            self.end, self._inherited = found.survey()
        except JournalDamaged as problem:
            raise damaged(problem) from problem
        # A head that was written but not synced must not be built upon.
        os.fdatasync(found.fd)
        self.file = found

    def _sync_inherited(self, partitions: Partitions) -> None:
        """Sync the segments that a predecessor's journal names. On failure, `must_sync` becomes True."""
        try:
            sync_named(self._inherited, partitions())
        finally:
            self._is_syncing = False
        self.inherited_is_synced = True
        self._inherited = []

    @property
    def is_unsynced(self) -> bool:
        """Return whether segments that a predecessor's journal names may be unsynced."""
        return bool(self._inherited)

    @property
    def is_inheriting(self) -> bool:
        return self.is_unsynced or self.inherited_is_synced

    @property
    def must_sync(self) -> bool:
        """Return whether segments of an earlier journal file must be synced again, after a failure."""
        return self.is_unsynced and not self._is_syncing

    # ---- the journal's file ----

    def prepare(self, journal_bytes: int, io_thread: IoThread, partitions: Partitions) -> None:
        """Begin to make a journal of `journal_bytes` bytes, unless `file` has this size already.

        The finished journal becomes `file`. If a predecessor's journal names segments that may be unsynced,
        begin to sync these segments, and make no journal yet. `partitions` yields the directories of the
        existing partitions, which have the segments. Raises OSError.
        """
        if self._inherited:
            self._is_syncing = True
            io_thread.submit(partial(self._sync_inherited, partitions), self._log_dir)
            return
        if self.file is not None and self.file.ring_bytes == ring_bytes_of(journal_bytes):
            return
        if self.file is not None:
            self.file.close()
            self.path.unlink()
            self.file, self.end = None, 0
        try:
            self._creation = JournalCreation(self.path, journal_bytes)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._report_no_room(journal_bytes, error)
            return
        io_thread.submit(partial(self._make_on, io_thread), self._log_dir)

    def _report_no_room(self, journal_bytes: int, error: OSError) -> None:
        """Log the lack of room, but only once, though the creation is retried from time to time."""
        if self._lacks_room:
            return
        self._lacks_room = True
        _log.warning(
            "log.journal.bytes: there is no room for a commit journal of %d MiB in %s: %s. Until there is, "
            "every commit syncs each file by itself, which is slower with many partitions. Free some space, "
            "or set a smaller one",
            journal_bytes >> 20,
            self.path.parent,
            error.strerror,
        )

    def _make_on(self, io_thread: IoThread) -> None:
        """Make the journal in the I/O thread, a piece at a time: other jobs run in between."""
        if self._creation is None:
            return
        try:
            self.file = self._creation.step()
        except OSError:
            self._creation = None
            raise
        if self.file is None:
            io_thread.submit(partial(self._make_on, io_thread), self._log_dir)
            return
        self._creation = None
        if self._lacks_room:
            self._lacks_room = False
            _log.info("%s: there is room for its commit journal now", self.path.parent)

    @property
    def size_bytes(self) -> int:
        return 0 if self.file is None else os.fstat(self.file.fd).st_size

    @property
    def is_missing(self) -> bool:
        """Return whether a wanted journal is missing and none is being made."""
        return self._is_wanted and self.file is None and self._creation is None

    def empty(self) -> None:
        """Empty the journal. All segments must be synced, and the I/O thread idle. Raises OSError."""
        if self._inherited:
            raise OSError(errno.EAGAIN, "segments that it names could not be synced")
        if self._creation is not None:
            self._creation.abandon()
        if self.file is not None:
            self.file.close()
            last = JournalFile(self.path)
            last.reset()
            last.close()
