"""A log.dirs entry in the log process: whether it works, its state after the last run, its checkpoints.

(Kafka: OffsetCheckpointFile, LogManager.) A checkpoint keeps the offsets of every partition that it has ever
named. A partition that is damaged, or not open yet, keeps its known offsets. Only `forget`
removes them, when the partition's files are deleted. Without its offsets, a damaged partition would be cut at
the next start as if it had no durable records. With the offsets of a deleted partition, a new topic of the
same name would seem to lack records.

With several log workers, each has its own journal in the directory, and its own lines of the checkpoints. A
worker that writes a checkpoint copies the other workers' lines, under a lock. The first worker recovers the
state that all workers of the last run left, before the other workers begin.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mpbroker.ipc.process import FatalError
from mpbroker.ipc.topology import CLEAN_DIRS, IS_TAKEN_OVER
from mpbroker.log.directories.journal_file import MAKING_SUFFIX, DirJournal, damaged
from mpbroker.log.directories.journal_replay import replay
from mpbroker.log.directories.reserve import Reserve
from mpbroker.log.io.file_system import FileSystem
from mpbroker.log.io.io_thread import IoThread
from mpbroker.protocol.topic_names import TopicPartition
from mpbroker.storage import journal, names
from mpbroker.storage.checkpoints import (
    CheckpointCorrupt,
    Offsets,
    alone_with,
    fsync_directory,
    read_offsets,
    write_offsets,
    write_whole,
)
from mpbroker.storage.directory_layout import directories_in, take_clean_shutdown
from mpbroker.storage.journal import JournalDamaged, JournalFile
from mpbroker.storage.names import NotAPartition, PartitionName, log_worker_of, parse_partition
from mpbroker.storage.strict_stat import is_there
from shm.word import Words

CHECKPOINTS = (names.RECOVERY_POINTS, names.HIGH_WATERMARKS, names.LOG_STARTS, names.CLEANER_OFFSETS)
_log = logging.getLogger("mpbroker.log")


def _read_checkpoint(path: Path) -> Offsets | None:
    """Read a checkpoint; log a warning and return None if it cannot be read. Recovery then checks more."""
    try:
        return read_offsets(path)
    except (CheckpointCorrupt, OSError) as error:
        _log.warning("%s is ignored: %s", path, error)
        return None


def _file_system_of(path: Path) -> FileSystem | None:
    """Open the file system. Return None on an error; the first operation in `path` will raise the error."""
    try:
        return FileSystem(path)
    except OSError as error:
        _log.warning("%s cannot be opened: %s", path, error)
        return None


@dataclass(frozen=True)
class LogWorker:
    """The number of a log worker, and how many there are."""

    number: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.number == 0

    @property
    def is_alone(self) -> bool:
        return self.count == 1

    def owns(self, topic: str, partition: int) -> bool:
        return self.is_alone or log_worker_of(topic, partition, self.count) == self.number


ALONE = LogWorker()


class LogDirectory:
    """A log directory in the log process.

    `known`: the content of the next checkpoints. `on_disk`: the content that the checkpoint files have for
    certain. A directory that `failed` before this process began is not touched.
    """

    def __init__(
        self,
        number: int,
        path: Path,
        *,
        group: bool,
        failed: bool,
        worker: LogWorker = ALONE,
        reserve_bytes: int = 0,
    ) -> None:
        self.number = number
        self.path = path
        self.failed = failed
        self.worker = worker
        self.clean = False
        # Bytes that journals restored to segments.
        self.restored_bytes = 0
        # Opened before anything is written there: its next sync reports what fails from then on.
        self.file_system = None if failed else _file_system_of(path)
        self.reserve = Reserve(path, 0 if failed else reserve_bytes)
        own_journal = path / journal.name_of(worker.number)
        self.journal = DirJournal(number, own_journal, is_wanted=group and not failed)
        read = {name: Offsets() if failed else _read_checkpoint(path / name) for name in CHECKPOINTS}
        self._unreadable = [name for name, offsets in read.items() if offsets is None]
        self._lacks_points = names.RECOVERY_POINTS in self._unreadable
        # Offsets of all partitions, as the last run left them.
        self._points = read[names.RECOVERY_POINTS] or Offsets()
        self._cleaned = read[names.CLEANER_OFFSETS] or Offsets()
        self.known = {name: self._own(offsets or Offsets()) for name, offsets in read.items()}
        self.on_disk = {name: offsets.copy() for name, offsets in self.known.items()}
        # Partitions were forgotten since the checkpoints were written.
        self.is_stale = False
        self._group = group
        self._submitted: dict[str, Offsets] = {}
        # Checkpoints that the I/O thread is going to write, or is writing.
        self._on_their_way: list[Offsets] = []
        self._strangers: set[str] = set()
        self._is_marked = False

    @property
    def kept_bytes(self) -> int:
        """Return the size in bytes of this log worker's journal and reserve."""
        return self.journal.size_bytes + self.reserve.held_bytes

    def _own(self, offsets: Offsets) -> Offsets:
        if self.worker.is_alone:
            return offsets.copy()
        return Offsets({key: offset for key, offset in offsets.items() if self.worker.owns(*key)})

    def take_over(self, say: Callable[[str], None], *, is_successor: bool = False) -> None:
        """Recover the state that the last run left.

        Replay the journals into the segments, remove the mark of a clean stop, and sync the names of
        partitions, also of those that were being created or moved here when that run was killed.

        The journals of all workers of that run are replayed and emptied, however many there were. So no
        journal has an old record when a worker begins to append. After a clean stop, of mpbroker or Kafka,
        the journals' records are ignored. If only this worker's process died (`is_successor`), the segments
        are complete, and its journal is continued.

        Raises OSError, FatalError.
        """
        self._apply_flush_policy()
        if is_successor:
            self.journal.inherit()
            if self.worker.is_first:
                # A mark that is there must not stay: a crash from now on must be seen.
                self.clean = take_clean_shutdown(self.path)
            fsync_directory(self.path)
            return
        is_clean = is_there(self.path / names.CLEAN_SHUTDOWN)
        for name in sorted(os.listdir(self.path)):  # noqa: PTH208 - thousands, and only their names
            if journal.worker_of(name.removesuffix(MAKING_SUFFIX)) is None:
                continue
            path = self.path / name
            if name.endswith(MAKING_SUFFIX):
                path.unlink()
            elif (found := self._read_journal(path, is_clean=is_clean)) is not None:
                self._empty(found, is_clean=is_clean, say=say)
        if not self.worker.is_alone:
            self._settle_checkpoints()
        self.clean = take_clean_shutdown(self.path)
        fsync_directory(self.path)

    def _read_journal(self, path: Path, *, is_clean: bool) -> JournalFile | None:
        try:
            return JournalFile(path)
        except JournalDamaged as problem:
            if not is_clean:
                raise damaged(problem) from problem
            path.unlink()
            return None

    def _empty(self, found: JournalFile, *, is_clean: bool, say: Callable[[str], None]) -> None:
        if not is_clean:
            try:
                replayed = replay(found, self.partitions(), self._points_for(found), say, self.file_system)
            except JournalDamaged as problem:
                raise damaged(problem) from problem
            self.restored_bytes += replayed.restored_bytes
            if replayed.restored_bytes:
                _log.warning(
                    "%s: %d bytes were written back into segments that lacked them",
                    found.path,
                    replayed.restored_bytes,
                )
            durable = self.known[names.HIGH_WATERMARKS]
            for key, end in replayed.ends.items():
                if self.worker.owns(*key):
                    durable[key] = max(end, durable.get(key, 0))
        found.reset()
        number = journal.worker_of(found.path.name)
        if self._group and number == self.worker.number:
            self.journal.file = found
            return
        found.close()
        if not self._group or number is None or number >= self.worker.count:
            found.path.unlink()
            fsync_directory(self.path)

    def _points_for(self, found: JournalFile) -> Mapping[TopicPartition, int]:
        """Return, for each partition, the offset below which the journal's records are not written back.

        This is the recovery point. Without recovery points it is the offset up to which the partition was
        compacted: compacted segments must not be overwritten with the original records. Raises FatalError.
        """
        is_known = not self._lacks_points and (self._points or is_there(self.path / names.RECOVERY_POINTS))
        if is_known or next(found.records(), None) is None:
            return self._points
        if names.CLEANER_OFFSETS in self._unreadable:
            raise FatalError(
                f"{self.path / names.RECOVERY_POINTS} and {names.CLEANER_OFFSETS} there cannot be read, "
                f"and without one of them {found.path} may be written over segments that were compacted "
                "since. Restore a file; or, if no topic here is compacted, delete both; or delete the "
                "journal: then partitions that lack records of it stay offline"
            )
        return self._cleaned

    def _apply_flush_policy(self) -> None:
        """With group commit, use recovery points in place of high watermarks that may not be durable."""
        mark = self.path / names.DURABLE_MARK
        self._is_marked = is_there(mark)
        if self._group and not self._is_marked:
            self.known[names.HIGH_WATERMARKS] = self.known[names.RECOVERY_POINTS].copy()
        elif self._is_marked and not self._group:
            mark.unlink()
            fsync_directory(self.path)

    def _settle_checkpoints(self) -> None:
        """Prepare the checkpoints before other workers write their lines.

        Unreadable files are emptied, since a worker reads the others' lines before it writes. With group
        commit, high watermarks that may not be durable are replaced by recovery points, for all workers.
        """
        for name in self._unreadable:
            write_offsets(self.path / name, {})
        if self._group and not self._is_marked:
            write_offsets(self.path / names.HIGH_WATERMARKS, self._points)
            write_whole(self.path / names.DURABLE_MARK, b"")
            self._is_marked = True

    def durable(self, key: TopicPartition) -> int:
        """Return the offset below which all of the partition survives a crash of the machine."""
        recovery_point = self.known[names.RECOVERY_POINTS].get(key, 0)
        if not self._group:
            return recovery_point
        return max(recovery_point, self.known[names.HIGH_WATERMARKS].get(key, 0))

    def forget(self, key: TopicPartition) -> None:
        """Remove a partition whose files are deleted from `known`. Set `is_stale` if `known` has changed."""
        for offsets in self.known.values():
            if offsets.pop(key, None) is not None:
                self.is_stale = True

    def forget_cleaned(self, key: TopicPartition) -> None:
        """Remove a partition that is no longer compacted from the compaction checkpoint."""
        if self.known[names.CLEANER_OFFSETS].pop(key, None) is not None:
            self.is_stale = True

    def is_on_disk(self, key: TopicPartition) -> bool:
        """Return whether a checkpoint names the partition, or may do so after a crash."""
        # The order matters: an entry written meanwhile is in both.
        return any(key in offsets for offsets in [*self._on_their_way, *self.on_disk.values()])

    def checkpoint(self, name: str, offsets: Mapping[TopicPartition, int], io_thread: IoThread) -> None:
        """Update the checkpoint `name` with `offsets`; have the I/O thread write it if it has changed."""
        known = self.known[name]
        known.update(offsets)
        if self.failed:
            return
        if name == names.LOG_STARTS:
            known = Offsets({key: offset for key, offset in known.items() if offset > 0})
        if self._submitted.get(name) != known:
            offsets = self._submitted[name] = known.copy()
            self._on_their_way.append(offsets)
            io_thread.submit(partial(self._write_next, name, offsets), self.number)

    def write_stale(self, io_thread: IoThread) -> None:
        """Write the checkpoints without the partitions that were forgotten."""
        self.is_stale = False
        for name in CHECKPOINTS:
            self.checkpoint(name, {}, io_thread)

    def _write_next(self, name: str, offsets: Offsets) -> None:
        """Write the checkpoint `name`, in the I/O thread, which writes in the order of submission."""
        try:
            self._write(name, offsets)
        finally:
            self._on_their_way.pop(0)

    def _write(self, name: str, offsets: Offsets) -> None:
        if name == names.RECOVERY_POINTS and self.journal.is_unsynced:
            # No recovery point moves before that is synced, or a replay would leave it out. Forget that the
            # points were submitted, so that they are written again.
            self._submitted.pop(name, None)
            if self._lacks_points:
                return
            was = self.on_disk[name]
            offsets = Offsets({key: min(offset, was.get(key, 0)) for key, offset in offsets.items()})
        self.reserve.lend(partial(self._write_lines, name, offsets))
        self.on_disk[name] = offsets
        if name == names.HIGH_WATERMARKS and self._group and not self._is_marked:
            self.reserve.lend(partial(write_whole, self.path / names.DURABLE_MARK, b""))
            self._is_marked = True

    def _write_lines(self, name: str, offsets: Offsets) -> None:
        if self.worker.is_alone:
            write_offsets(self.path / name, offsets)
            return
        with alone_with(self.path):
            write_offsets(self.path / name, self._of_others(name) | dict(offsets))

    def _of_others(self, name: str) -> dict[TopicPartition, int]:
        """Return other workers' offsets in checkpoint `name`. Raises OSError, also if the file is corrupt."""
        try:
            there = read_offsets(self.path / name)
        except CheckpointCorrupt as problem:
            raise OSError(errno.EIO, f"damaged while the broker runs: {problem}") from problem
        return {key: offset for key, offset in there.items() if not self.worker.owns(*key)}

    def write_again(self) -> None:
        """Make `checkpoint` write even unchanged offsets the next time: the last write may have failed."""
        self._submitted.clear()

    def partitions(self) -> Iterator[tuple[Path, PartitionName]]:
        """Yield (path, name) of the partitions' directories, including those to be deleted."""
        return ((self.path / name, parsed) for name, parsed in self._names())

    def own_partitions(self, suffix: str = "") -> Iterator[tuple[str, PartitionName]]:
        """Yield (name, parsed name) of this worker's partition directories whose names end with `suffix`."""
        for name, parsed in self._names(suffix):
            if self.worker.owns(parsed.topic, parsed.partition):
                yield name, parsed

    def names(self) -> list[str]:
        """List all names in the directory at this moment. Raises OSError."""
        return [] if self.failed else os.listdir(self.path)  # noqa: PTH208 - thousands, and only their names

    def _names(self, suffix: str = "") -> Iterator[tuple[str, PartitionName]]:
        for name in [] if self.failed else directories_in(self.path):
            if not name.endswith(suffix):
                continue
            try:
                parsed = parse_partition(name)
            except NotAPartition:
                if self.worker.is_first and name not in self._strangers:
                    self._strangers.add(name)
                    _log.warning(
                        "%s is not the directory of a partition (<topic>-<number>). Move it out of %s: "
                        "the broker cannot restart with it",
                        self.path / name,
                        self.path,
                    )
                continue
            yield name, parsed


class StartupState:
    """Results of the first log worker's take-over, for the other workers and for successors.

    The first worker alone recovers the state of the last run (`LogDirectory.take_over`); the others begin
    after that. `words`, the shared words `taken_over`, outlive the first worker's process, but not the
    broker. So a worker that finds them set is a successor, or began after a complete take-over. If the first
    worker is killed before it has set them, its successor repeats the take-over: no append was possible
    until then.
    """

    def __init__(self, words: Words) -> None:
        self._words = words

    @property
    def is_done(self) -> bool:
        return self._words.load(IS_TAKEN_OVER) != 0

    def done(self, log_dirs: Iterable[LogDirectory]) -> None:
        clean = sum(1 << log_dir.number for log_dir in log_dirs if log_dir.clean)
        self._words.store(CLEAN_DIRS, clean)
        self._words.store(IS_TAKEN_OVER, 1)

    def was_clean(self, log_dir: LogDirectory) -> bool:
        """Return whether the last run closed the directory cleanly."""
        return bool(self._words.load(CLEAN_DIRS) >> log_dir.number & 1)
