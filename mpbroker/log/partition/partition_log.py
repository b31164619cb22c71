"""One partition's directory, opened to append: create, roll, rename, close (Kafka: UnifiedLog, LocalLog)."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from mpbroker.config.topic_config import TopicConfig
from mpbroker.log.format import scan
from mpbroker.log.format.checkpoints import fsync_directory, put_id_and_epochs, write_all
from mpbroker.log.format.index import offset_floor
from mpbroker.log.format.leader_epochs import FIRST, Epochs, trimmed
from mpbroker.log.format.names import (
    CLEANED_FILE_SUFFIX,
    DELETED_FILE_SUFFIX,
    INDEX_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    parse_segment,
    partition_name,
    segment_name,
)
from mpbroker.log.format.producer_state import Producers
from mpbroker.log.format.segments import Sealed
from mpbroker.log.format.transaction_index import (
    AbortedTransaction,
    TransactionIndexCorrupt,
    add_aborted,
    read_aborted,
)
from mpbroker.log.partition.prepared_segment import Begun, Prepared
from mpbroker.log.partition.state import PartitionState

_log = logging.getLogger("mpbroker")
_WRITE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_NEVER = (1 << 63) - 1
# Of a segment, and of the state of producers before it; what makes it one comes first.
SEGMENT_FILES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)


class SyncFailed(OSError):
    """Whatever the reason, it is final: the next sync would say that all is well, and what is found in the
    page cache may be nowhere else.
    """


def sync(fd: int) -> None:
    """Raises SyncFailed."""
    try:
        os.fsync(fd)
    except OSError as error:
        raise SyncFailed(errno.EIO, f"a sync failed: {error.strerror}") from error


def sync_if_there(path: Path | str, directory: int | None = None) -> None:
    """What is in a segment's `.txnindex`, which few have; below a directory that is open. Raises OSError."""
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


def segments_of(directory: Path) -> list[int]:
    """The base offsets of all segments, ascending."""
    return offsets_of(directory, LOG_SUFFIX)


def offsets_of(directory: Path, suffix: str) -> list[int]:
    found = (parse_segment(entry.name, suffix) for entry in directory.iterdir())
    return sorted(offset for offset in found if offset is not None)


def remove_segment(directory: Path, base: int) -> None:
    """All files of a segment, and the snapshot of the state before it."""
    for suffix in SEGMENT_FILES:
        (directory / segment_name(base, suffix)).unlink(missing_ok=True)


def open_files(directory: Path | str, base: int, *, fresh: bool) -> tuple[int, int, int]:
    """Fds of .log, .index and .timeindex; emptied if `fresh`. Raises OSError with nothing left open, and no
    fresh file left behind: readers would look in an empty segment for what went into the one before it.
    """
    fds: list[int] = []
    flags = _WRITE | (os.O_TRUNC if fresh else 0)
    stem = f"{directory}/{segment_name(base, '')}"
    paths = (stem + LOG_SUFFIX, stem + INDEX_SUFFIX, stem + TIME_INDEX_SUFFIX)
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


_NO_SNAPSHOT = (-1, 0)
_NOTHING: Mapping[str, str] = {}


class PartitionLog:
    """The directory and what is open in it. `state` is what the turn appends to.

    There are thousands of them, of which most rest: what they say alike they have in common.
    """

    __slots__ = (
        "_home",
        "_renamed",
        "config",
        "epochs",
        "is_held",
        "is_moving",
        "is_swapping",
        "log_start",
        "overrides",
        "partition",
        "prepared",
        "recovery_point",
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
        # What the topic says itself; for all else the broker's settings hold.
        self.overrides: Mapping[str, str] = _NOTHING
        self.state = PartitionState()
        self.log_start = self.recovery_point = 0
        # All segments before the active one, ascending; (epoch, start offset) pairs.
        self.sealed: Sequence[Sealed] = ()
        self.epochs: Epochs = FIRST
        # Some of them are being replaced by what the cleaner made of them: none may be deleted meanwhile.
        self.is_swapping = False
        # It is on its way to another log directory; in its last moment there nothing is appended.
        self.is_moving = self.is_held = False
        # The log end at which a clean stop would leave the files just as they are; -1: at none so far.
        self.settled_end = -1
        # Which segment and how much of it the last snapshot between two rolls was of.
        self.snapshot_at = _NO_SNAPSHOT
        # For its next segment.
        self.prepared: Prepared | None = None

    @property
    def path(self) -> str:
        """`directory`, for what is done to thousands."""
        return self._home + (self._renamed or self.name)

    @property
    def directory(self) -> Path:
        return Path(self.path)

    @directory.setter
    def directory(self, directory: Path) -> None:
        self._set_directory(os.fspath(directory))

    def _set_directory(self, directory: str) -> None:
        home, slash, name = directory.rpartition("/")
        # The same string for all partitions of a log directory.
        self._home = sys.intern(home + slash)
        self._renamed = name if name != self.name else None

    @property
    def name(self) -> str:
        return partition_name(self.topic, self.partition)

    @classmethod
    def create(
        cls, directory: Path, topic: str, partition: int, topic_id: bytes, config: TopicConfig
    ) -> PartitionLog:
        """A new, empty partition, durable when this returns. Raises OSError with nothing left of it."""
        directory.mkdir()
        log = cls(directory, topic, partition, topic_id, config)
        log.apply_config(config)
        try:
            put_id_and_epochs(directory, topic_id, log.epochs)
            log.open_fresh_segment(0)
            fsync_directory(directory)
            fsync_directory(directory.parent)
            log.settled_end = 0
        except OSError:
            log.close_files()
            shutil.rmtree(directory)
            raise
        return log

    def apply_config(self, config: TopicConfig) -> None:
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
        """What is left of an earlier segment of this base is emptied. Raises OSError."""
        fds = open_files(self.directory, base, fresh=True)
        self.state.open_segment(base, *fds, wall_ms())

    def roll(self) -> list[int]:
        """Begins a new segment at the log end. Returns fds to sync and close: old files, snapshot, directory.

        Raises OSError; the old segment is then still the active one.
        """
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
        """Its final entry; and what must not be, that its indexes refused some, is told."""
        self.state.finish_segment()
        for suffix, found in zip((INDEX_SUFFIX, TIME_INDEX_SUFFIX), self.state.take_refused(), strict=True):
            refused, entries, offset = found
            if refused:
                _log.error(
                    "%s/%s: %d entries were refused, not above the last of its %d, offset %d. Readers walk "
                    "the segment there; stop the broker and delete the file: it is made anew",
                    self.path,
                    segment_name(self.state.segment_base, suffix),
                    refused,
                    entries,
                    offset,
                )

    def _begun_at(self, base: int) -> Begun:
        """The files of the next segment, and the snapshot before it. Raises OSError."""
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
        """Of the active segment's timestamps; without any, of its last write. Raises OSError."""
        if self.state.max_timestamp >= 0:
            return self.state.max_timestamp
        active = self.directory / segment_name(self.state.segment_base)
        return active.stat().st_mtime_ns // 1_000_000

    def move_start(self, offset: int) -> None:
        """What lies below is gone for everybody, as soon as that is published."""
        self.log_start = self.state.log_start = offset
        self.state.raise_stable(offset)
        self.epochs = trimmed(self.epochs, offset, self.state.log_end)

    def _write_snapshot(self, offset: int) -> int:
        """The producers as they are before `offset`; the fd is to be synced. Raises OSError."""
        path = self.directory / segment_name(offset, SNAPSHOT_SUFFIX)
        fd = os.open(path, _WRITE | os.O_TRUNC, 0o644)
        try:
            write_all(fd, self.state.producers.snapshot())
        except OSError:
            os.close(fd)
            path.unlink()
            raise
        return fd

    def drop_old_snapshots(self) -> None:
        """Kept are those of segments that exist, and the newest."""
        bases = set(segments_of(self.directory))
        for offset in offsets_of(self.directory, SNAPSHOT_SUFFIX)[:-1]:
            if offset not in bases:
                # The helper may be at the same (`mpbroker.log.partition.producer_snapshots`).
                (self.directory / segment_name(offset, SNAPSHOT_SUFFIX)).unlink(missing_ok=True)

    def snapshot_and_sync(self) -> None:
        """Everything on disk, with a snapshot at the log end. Raises OSError."""
        self.sync_files()
        self.add_last_snapshot()

    def add_last_snapshot(self) -> None:
        """A snapshot at the log end, of files that are on disk. Raises OSError."""
        fd = self._write_snapshot(self.state.log_end)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        fsync_directory(self.directory)
        self.drop_old_snapshots()
        self.recovery_point = self.state.log_end

    def sync_files(self) -> None:
        """The active segment's. Raises OSError."""
        for fd in (self.state.fd, *self.state.index_fds):
            os.fsync(fd)
        self.sync_aborted()

    # ---- transactions (Kafka: ProducerStateManager, UnifiedLog.maybeIncrementFirstUnstableOffset) ----

    def load_transactions(self, *, has_aborted: bool) -> None:
        """Those that are open, as the producers say, and where the last marker of an aborted one lies, if any
        may. Raises OSError.
        """
        first = self.state.producers.first_open()
        if first >= 0:
            self._hold_back(first)
        for base in reversed(offsets_of(self.directory, TXN_INDEX_SUFFIX) if has_aborted else ()):
            try:
                aborted = read_aborted(self._aborted_path(base))
            except TransactionIndexCorrupt as error:
                # Whoever reads what is committed has to look there, and hears of it.
                _log.error("%s: committed records cannot be told from others: %s", self.directory, error)
                self.state.aborted_end = _NEVER
                return
            if aborted:
                self.state.aborted_end = aborted[-1].last_offset + 1
                return

    def begun(self, offset: int, position: int) -> None:
        """A batch of a transaction is about to be noted, here in the active segment."""
        if self.state.held_back < 0:
            self.state.hold_back(offset, self.state.segment_base, position)

    def ended(self) -> None:
        """A transaction is not open any more. Raises OSError."""
        first = self.state.producers.first_open()
        if first < 0:
            self.state.let_go()
        elif first > self.state.held_back:
            self._hold_back(first)

    def add_aborted(self, entry: AbortedTransaction) -> None:
        """Whose marker is in the active segment. Raises OSError with nothing changed."""
        add_aborted(self._aborted_path(self.state.segment_base), entry)
        self.state.aborted_end = entry.last_offset + 1

    def _hold_back(self, first: int) -> None:
        offset = max(first, self.log_start)
        base = max(base for base in segments_of(self.directory) if base <= offset)
        fd = os.open(self.directory / segment_name(base), os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            start = self._position_before(base, offset)
            found = scan.find_offset(fd, start, size, offset)
        finally:
            os.close(fd)
        # Without a batch there: nothing is left of the transaction, and nothing came behind it.
        self.state.hold_back(offset, base, found.position if found is not None else size)

    def _position_before(self, base: int, offset: int) -> int:
        try:
            fd = os.open(self.directory / segment_name(base, INDEX_SUFFIX), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return 0
        try:
            return offset_floor(fd, base, offset)[1]
        finally:
            os.close(fd)

    def _aborted_path(self, base: int) -> Path:
        return self.directory / segment_name(base, TXN_INDEX_SUFFIX)

    def open_aborted(self) -> list[int]:
        """The active segment's, if a marker in it says so. Raises OSError."""
        if self.state.aborted_end <= self.state.segment_base:
            return []
        try:
            return [os.open(self._aborted_path(self.state.segment_base), os.O_RDWR | os.O_CLOEXEC)]
        except FileNotFoundError:
            return []

    def sync_aborted(self) -> None:
        """The active segment's, if it has one. Raises OSError."""
        sync_if_there(self._aborted_path(self.state.segment_base))

    # ----

    def close_cleanly(self) -> None:
        """What Kafka leaves behind at a clean stop. Raises OSError."""
        if not self.is_settled:
            self.wake()
            self.settle()
        self.close_files()

    @property
    def is_settled(self) -> bool:
        """Whether a clean stop would leave its files just as they are."""
        return self.settled_end == self.state.log_end

    def settle(self) -> None:
        """The files as a clean stop leaves them; appending may go on. Raises OSError."""
        self.finish_segment()
        self.snapshot_and_sync()
        self.settled_end = self.state.log_end

    # The same for many at once, who are synced between these steps (`mpbroker.log.recovery.clean_stop`).

    def end_files(self) -> None:
        """Raises OSError."""
        self.wake()
        self.finish_segment()
        self.close_files()

    def write_last_snapshot(self) -> None:
        """Raises OSError."""
        os.close(self._write_snapshot(self.state.log_end))

    def note_settled(self) -> None:
        """All of it is on disk: what is older goes. Raises OSError."""
        self.drop_old_snapshots()
        self.recovery_point = self.settled_end = self.state.log_end

    def wake(self) -> None:
        """Opens the active segment again, if it is not open. Raises OSError."""
        if self.state.fd < 0:
            self.state.reopen(*open_files(self.directory, self.state.segment_base, fresh=False))

    def close_files(self) -> None:
        for fd in (self.state.fd, *self.state.index_fds):
            if fd >= 0:
                os.close(fd)
        self.state.forget_files()


def remove_leftovers(directory: Path) -> None:
    """What an interrupted deletion or cleaning left, and indexes without their segment (Kafka: LogLoader).

    A swap that had begun is finished first (`mpbroker.log.partition.segment_swap`).
    """
    bases = set(segments_of(directory))
    for entry in directory.iterdir():
        if entry.name.endswith((DELETED_FILE_SUFFIX, CLEANED_FILE_SUFFIX, ".tmp")):
            entry.unlink()
        for suffix in INDEX_SUFFIXES:
            base = parse_segment(entry.name, suffix)
            if base is not None and base not in bases:
                entry.unlink()


def blank_producers(log: PartitionLog) -> Producers:
    """Forgets all producers, for a replay."""
    log.state.replace_producers(Producers())
    return log.state.producers
