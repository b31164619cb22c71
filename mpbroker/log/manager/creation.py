"""Sync the files of new partitions: one sync serves many partitions.

A request may create hundreds of partitions, and a sync takes a millisecond, or ten on a busy disk. Files are
created without a sync, and the I/O thread syncs them together. A partition is announced and appended to only
when it is on disk. After a power cut before the sync, the start finds a directory without a topic id and
creates the partition again.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mpbroker.ipc.disk_problems import room_advice
from mpbroker.log.directories.log_directory import LogDirectory
from mpbroker.log.io.io_thread import IoThread
from mpbroker.log.manager.refusals import room_of
from mpbroker.log.partition.durable_reads import FEW
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.storage import names
from mpbroker.storage.checkpoints import fsync_directory, opened, put_id_and_epochs
from mpbroker.storage.disk_errors import PASSING

# How long to wait after an error that passes.
RETRY_S = 1.0
_log = logging.getLogger("mpbroker.log")
_UNSUPPORTED = frozenset((errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP))
_TEXTS = (names.PARTITION_METADATA, names.LEADER_EPOCHS)
_EMPTY = tuple(
    names.segment_name(0, suffix)
    for suffix in (names.LOG_SUFFIX, names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX)
)
_FILES = frozenset((*_EMPTY, *_TEXTS, *(f"{name}.tmp" for name in _TEXTS)))


def is_unused(directory: Path) -> bool:
    """Return whether a directory has only files of a newly created partition, no records. Raises OSError."""
    with os.scandir(directory) as entries:
        return all(
            entry.name in _FILES and (entry.name not in _EMPTY or entry.stat().st_size == 0)
            for entry in entries
        )


@dataclass(eq=False)
class Creation:
    """The partitions whose files may not be on disk yet. One sync is under way at a time.

    `_logs`: the worker's partitions by slot, as its LogManager keeps them. `_failed` is called with the
    number of a log directory and an errno when a sync there fails permanently. `_delete_delay_ms`: the
    broker's default of file.delete.delay.ms.
    """

    _dirs: Sequence[LogDirectory]
    _logs: Mapping[int, PartitionLog]
    _io_thread: IoThread
    _failed: Callable[[int, int], None]
    _delete_delay_ms: int
    # Partitions that wait for the next sync, those of the last one that found no room, and those of the
    # one under way, `_again` among them.
    _waiting: list[PartitionLog] = field(default_factory=list, init=False)
    _again: list[PartitionLog] = field(default_factory=list, init=False)
    _syncing: list[PartitionLog] = field(default_factory=list, init=False)
    # How many of these each topic has, by its id.
    _unsynced: Counter[bytes] = field(default_factory=Counter, init=False)
    _is_under_way: bool = field(default=False, init=False)
    _retry_at: float = field(default=-math.inf, init=False)
    # Of the sync under way: what went wrong in which log directory, once it is over.
    _errors: list[tuple[int, OSError]] | None = field(default=None, init=False)

    def add(self, log: PartitionLog) -> None:
        """Have a new, empty partition synced."""
        self._waiting.append(log)
        self._unsynced[log.topic_id] += 1

    def is_unsynced(self, topic_id: bytes) -> bool:
        """Return whether a topic has partitions in working log directories that may not be on disk."""
        return topic_id in self._unsynced

    def begin_sync(self) -> None:
        """Have the I/O thread sync the waiting partitions, unless a sync is under way."""
        if self._is_under_way or time.monotonic() < self._retry_at or not (self._waiting or self._again):
            return
        # The files of those removed meanwhile are not written again: their names may be others' by now.
        self._again = self._here(self._again)
        self._syncing, self._waiting = [*self._again, *self._waiting], []
        self._unsynced = Counter(log.topic_id for log in self._syncing)
        self._is_under_way = True
        self._io_thread.submit(self._sync, 0)

    def finish_sync(self) -> None:
        """Handle the result of a sync that has ended, if any. After a temporary error, sync again later."""
        if self._errors is None:
            return
        errors, self._errors, self._is_under_way = self._errors, None, False
        short = set()
        for number, error in errors:
            if error.errno in PASSING:
                path = self._dirs[number].path
                _log.error(
                    "%s: new partitions are not on disk yet: %s. The sync is retried every second%s",
                    path,
                    error.strerror,
                    room_advice(error.errno or 0, room_of([path]), self._delete_delay_ms),
                )
                self._retry_at = time.monotonic() + RETRY_S
                short.add(number)
            else:
                self._failed(number, error.errno or errno.EIO)
        self._again = self._here(log for log in self._syncing if log.state.log_dir in short)
        self._unsynced -= Counter(log.topic_id for log in self._syncing)
        self._unsynced += Counter(log.topic_id for log in self._again)
        self._syncing = []

    def topic_goes(self, topic_id: bytes) -> Generator[None, None, None]:
        """Yield until no sync of the topic is under way. The topic must already be unreachable."""
        if any(log.topic_id == topic_id for log in self._syncing):
            while self._is_under_way and self._errors is None:
                self._io_thread.is_awaited = True
                yield

    def _here(self, logs: Iterable[PartitionLog]) -> list[PartitionLog]:
        """Return the partitions in `logs` that have not been removed."""
        return [log for log in logs if self._logs.get(log.state.table_slot) is log]

    def finish(self) -> list[tuple[int, OSError]]:
        """Sync all remaining partitions in the calling thread; return (log directory, error) of failures."""
        if self._syncing:
            # The sync under way is over, or was never begun.
            self._again = self._syncing
        self._syncing = [*self._again, *self._waiting]
        if self._syncing:
            self._sync()
        errors, self._errors, self._is_under_way = self._errors or [], None, False
        self._waiting, self._again, self._syncing = [], [], []
        self._unsynced.clear()
        return errors

    def _sync(self) -> None:
        errors = []
        for log_dir in self._dirs:
            logs = [log for log in self._syncing if log.state.log_dir == log_dir.number]
            try:
                for log in self._again:
                    if log.state.log_dir == log_dir.number and not log_dir.failed:
                        _write_again(log)
                if logs and not log_dir.failed and not _synced_at_once(log_dir, logs):
                    for log in logs:
                        _sync_files(log.path)
                    fsync_directory(log_dir.path)
            except OSError as error:
                errors.append((log_dir.number, error))
        self._errors = errors


def _write_again(log: PartitionLog) -> None:
    """Write topic id and epochs again: the fsync after a failed one writes nothing. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        put_id_and_epochs(log.directory, log.topic_id, log.epochs)


def _synced_at_once(log_dir: LogDirectory, logs: Sequence[PartitionLog]) -> bool:
    """Sync the whole file system if that is possible and faster; return whether it was done."""
    whole = log_dir.file_system
    if len(logs) <= FEW or whole is None or not whole.is_synced_at_once:
        return False
    try:
        if not all(whole.has(log.path) for log in logs):
            return False
        whole.sync()
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            # Unwritten pages are marked as clean: no later sync would report them.
            raise
        _log.warning("the file system of %s cannot be synced as a whole: %s", log_dir.path, error.strerror)
        return False
    return True


def _sync_files(directory: str) -> None:
    """Sync a partition's text files and directory. Ignore a partition that was removed meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        for name in (*_TEXTS, ""):
            with opened(f"{directory}/{name}") as fd:
                os.fsync(fd)
