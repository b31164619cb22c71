"""Checkpoints of a log worker's partitions, and their recovery points (Kafka: LogManager)."""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mpbroker.log.append.turn import AppendTurn
from mpbroker.log.directories.journal_set import Journals
from mpbroker.log.directories.log_directory import LogDirectory
from mpbroker.log.io.io_thread import IoThread
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.storage import names
from mpbroker.storage.checkpoints import Offsets


@dataclass(eq=False)
class Checkpointing:
    """Writes offsets of a log worker's partitions to the checkpoints of their log directories.

    `_logs`: the worker's partitions by slot, as its LogManager keeps them. `_group`: True if appends are not
    acknowledged before their commit round is on disk. `_say` sets the process's status. The I/O thread writes
    checkpoints; a method that submits one returns at once.
    """

    _dirs: Sequence[LogDirectory]
    _logs: Mapping[int, PartitionLog]
    _turn: AppendTurn
    _journals: Journals
    _io_thread: IoThread
    _say: Callable[[str], None]
    _group: bool
    # While it returns True, what is on this disk may not be in the object store, which is to have it first.
    marks_wait: Callable[[], bool] = field(default_factory=lambda: _never, init=False)
    # By slot: the commit round that syncs the segment the last roll sealed, and the base of the new one.
    _rolled: dict[int, tuple[int, int]] = field(default_factory=dict, init=False)

    def rolled(self, log: PartitionLog) -> None:
        """Note that the log has just rolled: the coming commit round syncs the files of the old segment."""
        self._rolled[log.state.table_slot] = (self._turn.coming_commit_round(), log.state.segment_base)

    def recovery_point(self, log: PartitionLog) -> int:
        """Advance the recovery point as far as syncs allow, and return it.

        All records below it are in synced segments. A start trusts segments that end at or below it, and
        their transaction indexes too. A sync of a segment does not sync its transaction index; only a roll
        does.
        """
        commit_round, base = self._rolled.get(log.state.table_slot, (0, 0))
        if self._turn.commit_rounds >= commit_round:
            synced = log.state.synced if self._group else 0
            if synced == log.state.log_end and log.state.aborted_end > log.state.segment_base:
                # The next segment may begin at `synced`: then this one would be trusted with an unsynced
                # transaction index.
                synced -= 1
            log.recovery_point = max(log.recovery_point, base, synced)
        return log.recovery_point

    def forget(self, slot: int) -> None:
        """Forget the last roll of a partition that is removed or has new files."""
        self._rolled.pop(slot, None)

    def write_high_watermarks(self) -> None:
        if not self.marks_wait():
            self._write(names.HIGH_WATERMARKS, lambda log: log.state.high_watermark)

    def write_recovery_points(self) -> None:
        """Checkpoint the recovery points. Request syncs of the segments whose records are in journals."""
        self._journals.release()
        self._write(names.RECOVERY_POINTS, self.recovery_point)

    def write_all_log_starts(self) -> None:
        self._write(names.LOG_STARTS, lambda log: log.log_start)

    def write_log_starts(self, logs: Iterable[PartitionLog]) -> None:
        """Have the I/O thread write the log start offsets of `logs`, except in failed log directories."""
        moved: dict[int, Offsets] = {}
        for log in logs:
            moved.setdefault(log.state.log_dir, Offsets())[log.topic, log.partition] = log.log_start
        for number, offsets in moved.items():
            self._dirs[number].checkpoint(names.LOG_STARTS, offsets, self._io_thread)

    def log_start_on_disk(self, log: PartitionLog) -> int:
        """Return the log start offset in the checkpoint on disk; 0 if the directory failed."""
        log_dir = self._dirs[log.state.log_dir]
        return 0 if log_dir.failed else log_dir.on_disk[names.LOG_STARTS].get((log.topic, log.partition), 0)

    def write_stale(self) -> None:
        """If the I/O thread is idle, rewrite the checkpoints that still name removed partitions."""
        if not self._io_thread.is_idle:
            return
        for log_dir in self._dirs:
            if log_dir.is_stale and not log_dir.failed:
                log_dir.write_stale(self._io_thread)

    def forgotten(
        self, log_dirs: Iterable[LogDirectory], key: tuple[str, int]
    ) -> Generator[None, None, None]:
        """Forget the offsets of a deleted partition with the name `key`, in memory and on disk.

        Yield until no checkpoint has the offsets, because a start after a crash must not find them. Raises
        OSError (EAGAIN) if a checkpoint could not be written.
        """
        for log_dir in log_dirs:
            log_dir.forget(key)
        naming = [log_dir for log_dir in log_dirs if not log_dir.failed and log_dir.is_on_disk(key)]
        if not naming:
            return
        for log_dir in naming:
            log_dir.write_stale(self._io_thread)
        self._say(f"waiting until no checkpoint names {names.partition_name(*key)}, which was deleted")
        yield from self._io_thread.catching_up()
        for log_dir in naming:
            if log_dir.is_on_disk(key) and not log_dir.failed:
                log_dir.write_again()
                raise OSError(errno.EAGAIN, f"the checkpoints in {log_dir.path} could not be written")

    def write_at_the_end(self) -> None:
        """Write all checkpoints after the last append, when all files are closed."""
        # Rounds that wait for the object store may be left: readers of the files stop at the high watermark.
        self.write_high_watermarks()
        self._write(names.RECOVERY_POINTS, lambda log: log.state.log_end)
        self._write(names.LOG_STARTS, lambda log: log.log_start)

    def _write(self, name: str, offset_of: Callable[[PartitionLog], int]) -> None:
        offsets = [Offsets() for _ in self._dirs]
        for log in self._logs.values():
            if not log.state.is_offline:
                offsets[log.state.log_dir][log.topic, log.partition] = offset_of(log)
        for log_dir in self._dirs:
            log_dir.checkpoint(name, offsets[log_dir.number], self._io_thread)


def _never() -> bool:
    return False
