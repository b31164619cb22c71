"""Manages the commit journals of all log directories, from the start of a log worker to its clean stop."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial

from mpbroker.config.broker import BrokerConfig
from mpbroker.log.append.turn import AppendTurn
from mpbroker.log.append.turn_journals import (
    bypass_journals,
    inherited_is_synced,
    release_journals,
    use_journal,
)
from mpbroker.log.directories.log_directory import LogDirectory
from mpbroker.log.io.io_thread import IoThread
from mpbroker.storage.journal import BLOCK_BYTES, JournalFile

_log = logging.getLogger("mpbroker.log")


def crowd_journals(turn: AppendTurn, is_crowded: bool) -> None:
    """Bypass the journals while their unsynced segments keep too many files open (`is_crowded`)."""
    bypass_journals(turn, is_crowded)
    if is_crowded:
        release_journals(turn)


class Journals:
    """The commit journals of all log directories.

    `awaited`: some journals are not in use yet, or segments that a dead predecessor's journal names may
    still be unsynced.
    """

    def __init__(
        self, config: BrokerConfig, dirs: Sequence[LogDirectory], turn: AppendTurn, io_thread: IoThread
    ) -> None:
        self.awaited = False
        self._config = config
        self._dirs = dirs
        self._turn = turn
        self._io_thread = io_thread
        self._is_group = config.log_flush_policy == "group"
        self._in_use: set[int] = set()

    def take_over(self, say: Callable[[str], None], *, is_successor: bool) -> None:
        """Take over or prepare every journal, before any partition is opened.

        `is_successor`: this worker's earlier process has died while the broker ran. Raises FatalError.
        """
        for log_dir in self._dirs:
            if log_dir.failed:
                continue
            try:
                log_dir.take_over(say, is_successor=is_successor)
            except OSError as error:
                self._give_up(log_dir, error)
                continue
            if self._is_group:
                self._prepare(log_dir)
        self.use()

    def use(self) -> None:
        """Use the journals that have become ready since the last call."""
        for log_dir in self._dirs:
            found = log_dir.journal.file
            if found is not None and log_dir.number not in self._in_use and not log_dir.failed:
                self._put_to_use(log_dir, found)
            if log_dir.journal.inherited_is_synced:
                log_dir.journal.inherited_is_synced = False
                inherited_is_synced(self._turn, log_dir.number)
        self.awaited = self._is_group and any(
            log_dir.number not in self._in_use or log_dir.journal.is_inheriting for log_dir in self._dirs
        )

    def release(self) -> None:
        """Request a sync of the segments that journals name. Retry missing journals and failed syncs."""
        release_journals(self._turn)
        for log_dir in self._dirs:
            if not log_dir.failed and (log_dir.journal.is_missing or log_dir.journal.must_sync):
                self._prepare(log_dir)

    def empty(self, log_dir: LogDirectory) -> None:
        """Empty a directory's journal, before the mark of a clean stop is written.

        Otherwise, if Kafka used the directory next and crashed, mpbroker's next start would replay it.
        """
        if log_dir.failed:
            return
        try:
            log_dir.journal.empty()
        except OSError as error:
            _log.error("the commit journal in %s cannot be emptied: %s", log_dir.path, error)
            log_dir.failed = True

    def _put_to_use(self, log_dir: LogDirectory, journal: JournalFile) -> None:
        try:
            if not journal.write_directly():
                _log.info(
                    "%s is written by way of the page cache: its file system or disk has no direct writes in "
                    "blocks of %d bytes",
                    journal.path,
                    BLOCK_BYTES,
                )
                # A cold page would have to be read before a part of it is written.
                will_need = partial(os.posix_fadvise, journal.fd, 0, 0, os.POSIX_FADV_WILLNEED)
                self._io_thread.submit(will_need, log_dir.number)
        except OSError as error:
            self._give_up(log_dir, error)
            return
        self._in_use.add(log_dir.number)
        direct_bytes = self._config.log_journal_direct_bytes
        use_journal(self._turn, log_dir.number, journal, log_dir.journal.end, direct_bytes)

    def _prepare(self, log_dir: LogDirectory) -> None:
        try:
            log_dir.journal.prepare(self._config.log_journal_bytes, self._io_thread, log_dir.partitions)
        except OSError as error:
            self._give_up(log_dir, error)

    def _give_up(self, log_dir: LogDirectory, error: OSError) -> None:
        log_dir.failed = True
        self._turn.storage_failed(log_dir.number, error.errno or errno.EIO)
