"""A partition's directory, opened to append: create, roll, rename, close (Kafka: UnifiedLog, LocalLog)."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mpbroker.config.topic_config import TopicConfig
from mpbroker.log.partition.prepared_segment import Begun, Prepared
from mpbroker.log.partition.state import PartitionState
from mpbroker.storage import names, scan, transaction_index
from mpbroker.storage.checkpoints import fsync_directory, opened, put_id_and_epochs, write_all
from mpbroker.storage.index import offset_floor
from mpbroker.storage.leader_epochs import FIRST, Epochs, trimmed
from mpbroker.storage.producer_state import Producers
from mpbroker.storage.remote_segments import NO_SEGMENTS
from mpbroker.storage.segments import offsets_of, segments_of

_log = logging.getLogger("mpbroker.log")
_WRITE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_NEVER = (1 << 63) - 1
# Files of a segment, and the producer snapshot before it. The log file comes first: it makes the segment.
SEGMENT_FILES = (
    names.LOG_SUFFIX,
    names.INDEX_SUFFIX,
    names.TIME_INDEX_SUFFIX,
    names.TXN_INDEX_SUFFIX,
    names.SNAPSHOT_SUFFIX,
)


class SyncFailed(OSError):
    """Raised when a sync has failed; the sync must not be repeated.

    The next sync would report success, and the data of the page cache may exist nowhere else.
    """


def sync(fd: int) -> None:
    """Sync a file. Raises SyncFailed."""
    try:
        os.fsync(fd)
    except OSError as error:
        raise SyncFailed(errno.EIO, f"a sync failed: {error.strerror}") from error


def sync_if_there(path: Path | str, directory: int | None = None) -> None:
    """Sync a file if it exists; `path` is relative to the fd `directory`. Raises SyncFailed, OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return
    try:
        sync(fd)
    finally:
        os.close(fd)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def remove_segment(directory: Path, base: int) -> None:
    """Remove all files of a segment, also the producer snapshot of its base offset. Raises OSError."""
    for suffix in SEGMENT_FILES:
        (directory / names.segment_name(base, suffix)).unlink(missing_ok=True)


def open_files(directory: Path | str, base: int, *, fresh: bool) -> tuple[int, int, int]:
    """Open .log, .index and .timeindex, emptied if `fresh`; return their fds.

    Raises OSError. Then no file is open, and with `fresh` the files are removed: later appends may go to the
    previous segment, but readers would search the empty files for those records.
    """
    fds: list[int] = []
    flags = _WRITE | (os.O_TRUNC if fresh else 0)
    stem = f"{directory}/{names.segment_name(base, '')}"
    paths = (stem + names.LOG_SUFFIX, stem + names.INDEX_SUFFIX, stem + names.TIME_INDEX_SUFFIX)
    try:
        for path in paths:
            fds.append(os.open(path, flags, 0o644))
    except OSError:
        for fd, path in zip(fds, paths, strict=False):
            os.close(fd)
            if fresh:
                Path(path).unlink()
        raise
    return fds[0], fds[1], fds[2]


@dataclass
class Sealed:
    """A segment that gets no more appends. `size` and timestamps are -1 until it is measured."""

    base: int
    size: int = -1
    largest_ms: int = -1
    first_ms: int = -1  # largest timestamp of the first append; -1: unknown or none


class Segment(NamedTuple):
    """A segment. `end`: its last offset + 1. `largest_ms`: its largest timestamp, or mtime if it has none."""

    base: int
    end: int
    size: int
    largest_ms: int
    is_active: bool = False


_NO_SNAPSHOT = (-1, 0)
_NOTHING: Mapping[str, str] = {}


class PartitionLog:
    """A partition's directory and its open files. The log worker's native turn appends to `state`.

    There are thousands of these, most of them dormant: equal values are shared to save memory.
    """

    __slots__ = (
        "_parent",
        "_renamed",
        "config",
        "epochs",
        "is_moving",
        "is_paused",
        "is_swapping",
        "log_start",
        "overrides",
        "partition",
        "prepared",
        "recovery_point",
        "remote",
        "remote_version",
        "sealed",
        "settled_end",
        "snapshot_at",
        "state",
        "topic",
        "topic_id",
    )

    def __init__(
        self, directory: Path | str, topic: str, partition: int, topic_id: bytes, config: TopicConfig
    ) -> None:
        self.topic, self.partition, self.topic_id = topic, partition, topic_id
        self._set_directory(os.fspath(directory))
        self.config = config
        # The topic's own settings; the broker's hold for all others.
        self.overrides: Mapping[str, str] = _NOTHING
        self.state = PartitionState()
        self.log_start = self.recovery_point = 0
        # Segments before the active one, and (epoch, start offset) pairs; both ascending.
        self.sealed: Sequence[Sealed] = ()
        self.epochs: Epochs = FIRST
        # The segments that the object store has, and the version in the partition's word when they were read.
        self.remote = NO_SEGMENTS
        self.remote_version = 0
        # Some sealed segments are being replaced by cleaned ones: none may be deleted meanwhile.
        self.is_swapping = False
        # The partition moves to another log directory; paused, at the end of a move, it takes no appends.
        self.is_moving = self.is_paused = False
        # The log end at which a clean stop would leave the files unchanged; -1: none so far.
        self.settled_end = -1
        # (segment base, size) at the last snapshot between two rolls.
        self.snapshot_at = _NO_SNAPSHOT
        # Unnamed files for the next segment.
        self.prepared: Prepared | None = None

    @property
    def path(self) -> str:
        """Return `directory` as a string, which takes less time to make than a Path."""
        return self._parent + (self._renamed or self.name)

    @property
    def directory(self) -> Path:
        return Path(self.path)

    @directory.setter
    def directory(self, directory: Path) -> None:
        self._set_directory(os.fspath(directory))

    def _set_directory(self, directory: str) -> None:
        parent, slash, name = directory.rpartition("/")
        # The same string for all partitions of a log directory.
        self._parent = sys.intern(parent + slash)
        self._renamed = name if name != self.name else None

    @property
    def local_start(self) -> int:
        """Return the first offset of the first local segment. The log of a tiered partition starts before."""
        return self.sealed[0].base if self.sealed else self.state.segment_base

    @property
    def name(self) -> str:
        return names.partition_name(self.topic, self.partition)

    @classmethod
    def create(
        cls, directory: Path, topic: str, partition: int, topic_id: bytes, config: TopicConfig
    ) -> PartitionLog:
        """Create an empty partition, not yet durable. On OSError none of its files remain."""
        directory.mkdir()
        log = cls(directory, topic, partition, topic_id, config)
        log.apply_config(config)
        try:
            put_id_and_epochs(directory, topic_id, log.epochs, synced=False)
            log.open_fresh_segment(0)
            log.settled_end = 0
        except OSError:
            log.close_files()
            shutil.rmtree(directory)
            raise
        return log

    def apply_config(self, config: TopicConfig) -> None:
        """Use a topic's settings from now on, with a new random jitter of `segment.ms`."""
        self.config = config
        segment_ms = config.segment_ms
        if "compact" in config.cleanup_policy:
            segment_ms = min(segment_ms, config.max_compaction_lag_ms)
        jitter_ms = min(config.segment_jitter_ms, segment_ms)
        self.state.configure(
            config.segment_bytes,
            segment_ms - (random.randrange(jitter_ms) if jitter_ms else 0),
            config.index_interval_bytes,
            config.segment_index_bytes,
            config.message_timestamp_type == "LogAppendTime",
            config.flush_messages,
            config.flush_ms,
        )

    def open_fresh_segment(self, base: int) -> None:
        """Begin a segment, emptying leftover files with its base offset. Raises OSError."""
        fds = open_files(self.directory, base, fresh=True)
        self.state.open_segment(base, *fds, wall_ms())

    def roll(self) -> list[int]:
        """Begin a segment at the log end; return fds to sync and close. Raises OSError with no change."""
        state = self.state
        self.wake()
        base, largest_ms = state.log_end, self.largest_ms()
        aborted = self.open_aborted()
        try:
            begun = self._begun_at(base)
        except OSError:
            for fd in aborted:
                os.close(fd)
            raise
        self.finish_segment()
        ended = Sealed(state.segment_base, state.size, largest_ms, state.first_timestamp)
        self.sealed = [*self.sealed, ended]
        old = [state.fd, *state.index_fds]
        state.open_segment(base, *begun.segment, wall_ms())
        self.apply_config(self.config)
        return [*old, *aborted, *begun.to_sync]

    def finish_segment(self) -> None:
        """Write the final time index entry, and log an error if an index refused entries."""
        self.state.finish_segment()
        for suffix, found in zip(
            (names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX), self.state.take_refused(), strict=True
        ):
            refused, entries, offset = found
            if refused:
                _log.error(
                    "%s/%s: %d entries were refused, not above the last of its %d, offset %d. Readers walk "
                    "the segment there; stop the broker and delete the file: it is rebuilt",
                    self.path,
                    names.segment_name(self.state.segment_base, suffix),
                    refused,
                    entries,
                    offset,
                )

    def _begun_at(self, base: int) -> Begun:
        """Create the next segment's files and a producer snapshot of its base offset. Raises OSError."""
        prepared, self.prepared = self.prepared, None
        if prepared is not None and prepared.directory == self.directory:
            begun = prepared.begin(base, self.state.producers.snapshot())
            if begun is not None:
                return begun
        to_sync = [self._write_snapshot(base)]
        try:
            to_sync.append(os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            return Begun(open_files(self.directory, base, fresh=True), to_sync)
        except OSError:
            for fd in to_sync:
                os.close(fd)
            raise

    def largest_ms(self) -> int:
        """Return the active segment's largest timestamp; its file's mtime if it has none. Raises OSError."""
        if self.state.max_timestamp >= 0:
            return self.state.max_timestamp
        active = self.directory / names.segment_name(self.state.segment_base)
        return active.stat().st_mtime_ns // 1_000_000

    def move_start(self, offset: int) -> None:
        """Move the log start. Once the new start is published, nothing below it can be read."""
        self.log_start = self.state.log_start = offset
        self.state.raise_stable(offset)
        self.epochs = trimmed(self.epochs, offset, self.state.log_end)

    def _write_snapshot(self, offset: int) -> int:
        """Write the current producers as the snapshot of `offset`; return the fd to sync. Raises OSError."""
        path = self.directory / names.segment_name(offset, names.SNAPSHOT_SUFFIX)
        fd = os.open(path, _WRITE | os.O_TRUNC, 0o644)
        try:
            write_all(fd, self.state.producers.snapshot())
        except OSError:
            os.close(fd)
            path.unlink()
            raise
        return fd

    def drop_old_snapshots(self) -> None:
        """Remove all snapshots except the newest and those at a segment's base offset. Raises OSError."""
        bases = set(segments_of(self.directory))
        for offset in offsets_of(self.directory, names.SNAPSHOT_SUFFIX)[:-1]:
            if offset not in bases:
                # The I/O thread may remove it, too (`mpbroker.log.partition.producer_snapshots`).
                (self.directory / names.segment_name(offset, names.SNAPSHOT_SUFFIX)).unlink(missing_ok=True)

    def snapshot_and_sync(self) -> None:
        """Sync the active segment and write a snapshot at the log end, durably. Raises OSError."""
        self.sync_files()
        self.add_last_snapshot()

    def add_last_snapshot(self) -> None:
        """Write a durable snapshot at the log end and move the recovery point there. Raises OSError.

        The active segment must have been synced.
        """
        fd = self._write_snapshot(self.state.log_end)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        fsync_directory(self.directory)
        self.drop_old_snapshots()
        self.recovery_point = self.state.log_end

    def sync_files(self) -> None:
        """Sync the files of the active segment. Raises OSError."""
        for fd in (self.state.fd, *self.state.index_fds):
            os.fsync(fd)
        self.sync_aborted()

    # ---- transactions (Kafka: ProducerStateManager, UnifiedLog.maybeIncrementFirstUnstableOffset) ----

    def load_transactions(self, *, has_aborted: bool) -> None:
        """Set the first open transaction from the producers, and the last aborted one from the indexes.

        `has_aborted`: there may be aborted transactions. Raises OSError.
        """
        first = self.state.producers.first_open()
        if first >= 0:
            self._hold_back(first)
        for base in reversed(offsets_of(self.directory, names.TXN_INDEX_SUFFIX) if has_aborted else ()):
            try:
                aborted = transaction_index.read_aborted(self._aborted_path(base))
            except transaction_index.TransactionIndexCorrupt as error:
                # With this end read_committed fetches read the index, and are refused.
                _log.error("%s: committed records cannot be distinguished: %s", self.directory, error)
                self.state.aborted_end = _NEVER
                return
            if aborted:
                self.state.aborted_end = aborted[-1].last_offset + 1
                return

    def begun(self, offset: int, position: int) -> None:
        """Hold the last stable offset at a batch's `offset`, unless an open transaction already holds it."""
        if self.state.first_unstable < 0:
            self.state.hold_back(offset, self.state.segment_base, position)

    def ended(self) -> None:
        """Advance the last stable offset after the end of a transaction. Raises OSError."""
        first = self.state.producers.first_open()
        if first < 0:
            self.state.let_go()
        elif first > self.state.first_unstable:
            self._hold_back(first)

    def add_aborted(self, entry: transaction_index.AbortedTransaction) -> None:
        """Append `entry` to the active segment's `.txnindex`. Raises OSError with nothing changed."""
        transaction_index.add_aborted(self._aborted_path(self.state.segment_base), entry)
        self.state.aborted_end = entry.last_offset + 1

    def _hold_back(self, first: int) -> None:
        offset = max(first, self.log_start)
        base = max(base for base in segments_of(self.directory) if base <= offset)
        with opened(self.directory / names.segment_name(base)) as fd:
            size = os.fstat(fd).st_size
            start = self._position_before(base, offset)
            found = scan.find_offset(fd, start, size, offset)
        # Without a batch there nothing is left of the transaction, and nothing follows it.
        self.state.hold_back(offset, base, found.position if found is not None else size)

    def _position_before(self, base: int, offset: int) -> int:
        try:
            fd = os.open(
                self.directory / names.segment_name(base, names.INDEX_SUFFIX), os.O_RDONLY | os.O_CLOEXEC
            )
        except FileNotFoundError:
            return 0
        try:
            return offset_floor(fd, base, offset)[1]
        finally:
            os.close(fd)

    def _aborted_path(self, base: int) -> Path:
        return self.directory / names.segment_name(base, names.TXN_INDEX_SUFFIX)

    def open_aborted(self) -> list[int]:
        """Open the active segment's `.txnindex`, if it has entries. Return [its fd] or []. Raises OSError."""
        if self.state.aborted_end <= self.state.segment_base:
            return []
        try:
            return [os.open(self._aborted_path(self.state.segment_base), os.O_RDWR | os.O_CLOEXEC)]
        except FileNotFoundError:
            return []

    def sync_aborted(self) -> None:
        """Sync the active segment's `.txnindex`, if it has one. Raises OSError."""
        sync_if_there(self._aborted_path(self.state.segment_base))

    # ----

    def close_cleanly(self) -> None:
        """Close the partition as Kafka does at a clean stop. Raises OSError."""
        if not self.is_settled:
            self.wake()
            self.settle()
        self.close_files()

    @property
    def is_settled(self) -> bool:
        """Return whether a clean stop would leave the files unchanged."""
        return self.settled_end == self.state.log_end

    def settle(self) -> None:
        """Bring the files into the state of a clean stop; appends may follow. Raises OSError."""
        self.finish_segment()
        self.snapshot_and_sync()
        self.settled_end = self.state.log_end

    # Steps of `close_cleanly` for many partitions, synced in between (`mpbroker.log.recovery.clean_stop`).

    def end_files(self) -> None:
        """Finish the active segment and close its files. Raises OSError."""
        self.wake()
        self.finish_segment()
        self.close_files()

    def write_last_snapshot(self) -> None:
        """Write a snapshot at the log end, to be synced by the caller. Raises OSError."""
        os.close(self._write_snapshot(self.state.log_end))

    def note_settled(self) -> None:
        """Note that all files are on disk, and remove old snapshots. Raises OSError."""
        self.drop_old_snapshots()
        self.recovery_point = self.settled_end = self.state.log_end

    def wake(self) -> None:
        """Open the active segment again, if it is not open. Raises OSError."""
        if self.state.fd < 0:
            self.state.reopen(*open_files(self.directory, self.state.segment_base, fresh=False))

    def close_files(self) -> None:
        for fd in (self.state.fd, *self.state.index_fds):
            if fd >= 0:
                os.close(fd)
        self.state.forget_files()


def remove_leftovers(directory: Path) -> None:
    """Remove files of unfinished deletions and cleanings, and indexes without a segment (Kafka: LogLoader).

    An unfinished swap has to be finished before (`mpbroker.log.partition.segment_swap`). Raises OSError.
    """
    bases = set(segments_of(directory))
    for entry in directory.iterdir():
        if entry.name == f"{names.REMOTE_SEGMENTS}.tmp":
            # The tier process may be writing it at this moment.
            continue
        if entry.name.endswith((names.DELETED_FILE_SUFFIX, names.CLEANED_FILE_SUFFIX, ".tmp")):
            entry.unlink()
        for suffix in names.INDEX_SUFFIXES:
            base = names.parse_segment(entry.name, suffix)
            if base is not None and base not in bases:
                entry.unlink()


def blank_producers(log: PartitionLog) -> Producers:
    """Replace the log's producers with an empty table, for a replay, and return the table."""
    log.state.replace_producers(Producers())
    return log.state.producers
