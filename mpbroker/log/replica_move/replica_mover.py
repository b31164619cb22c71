"""Moves of partitions between log directories while they are served: the log worker's part.

(Kafka: ReplicaManager.alterReplicaLogDirs, ReplicaAlterLogDirsThread; KIP-113.) A thread copies in passes
(`replica_copier`). A pass ends at the offset that was the log end when the pass began. When few bytes remain,
the partition's produce requests wait; they are not refused, and other partitions' requests do not wait. The
rest is copied, the future replica replaces the current one (`future_replica` has the steps), the table names
the other directory, and the waiting batches are appended there. Readers continue in the files they have open,
and find new files through the table.

A move can be abandoned at any moment before it is decided: the current replica is unchanged until then. A
move is abandoned if the partition is deleted, its source or target directory fails, the source cannot be read
or is damaged, or a client orders the partition back. On a full disk the move waits, and reports that. A start
resumes unfinished moves.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from mpbroker.ipc import calls
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.metadata import METADATA_SLOT
from mpbroker.ipc.table import PartitionFlag
from mpbroker.log.append.relocation import resume_jobs
from mpbroker.log.directories import future_replica
from mpbroker.log.directories.log_directory import LogDirectory
from mpbroker.log.io.background_io import remove_tree
from mpbroker.log.io.pace import Pace
from mpbroker.log.manager.log_manager import LogManager
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.log.replica_move.replica_copier import (
    NICENESS,
    Abandoned,
    Copy,
    SourceChanged,
    SourceDamaged,
    TargetFailed,
    Wanted,
)
from mpbroker.protocol.errors import ErrorCode
from mpbroker.storage import names
from mpbroker.storage.checkpoints import topic_id_if_any
from mpbroker.storage.disk_errors import PASSING
from shm.counters import CounterPage

# The most bytes left for the last pass, while produces wait.
LITTLE_BYTES = 1 << 20
# After this much of a pass it is clear whether the copy is faster than the producers.
MUCH_BYTES = 64 << 20
# The longest time produces wait for the last pass; then the move is tried again.
PAUSED_MOST_S = 1.0
# Every running move is stepped in every round of the loop.
MOVES_AT_ONCE = 64
# The wait after a full disk, or a checkpoint that could not be written.
TRY_AGAIN_S = 5.0
_log = logging.getLogger("mpbroker.log.replica_move")
_Steps: TypeAlias = Generator[None, None, None]


class _Over(Exception):
    """Raised when the move is no longer wanted or possible."""


@dataclass(eq=False)
class Move:
    log: PartitionLog
    source: LogDirectory
    target: LogDirectory
    copy: Copy
    is_cancelled: bool = False
    # From here on it cannot be stopped.
    is_decided: bool = False
    # The old replica was renamed, for good.
    has_left: bool = False
    wanted: Wanted | None = None
    problem: str = ""


class ReplicaMover:
    """The moves of one log worker's partitions.

    `wake` is called in a thread when a copy's step ends, to wake the loop. `counters`: the counter pages of
    all log workers.
    """

    def __init__(
        self, manager: LogManager, wake: Callable[[], None], counters: Sequence[CounterPage]
    ) -> None:
        self._manager = manager
        self._counters = counters
        self._wake = wake
        self._moves: dict[PartitionLog, Move] = {}
        # Moves that have not started, and the steps of those that run.
        self._queue: deque[Move] = deque()
        self._running: list[_Steps] = []
        # The next target of partitions whose current move is decided but not over.
        self._next: dict[PartitionLog, LogDirectory] = {}
        # The move whose produces wait; one at a time.
        self._paused: Move | None = None
        # Changes of directories by the placer, for any move.
        self._placing: set[Future[None]] = set()
        self._is_stopping = False
        self._pace = Pace(self._bytes_per_s)
        threads = manager.config.num_replica_alter_log_dirs_threads or len(manager.dirs)
        self._copiers = ThreadPoolExecutor(threads, "log copier", give_way_to_all)
        # A pool of its own, so that the last pass never waits for a long copy: produces wait for it.
        self._placer = ThreadPoolExecutor(1, "log mover")
        self._count()

    def _count(self) -> None:
        """Publish the number of moves. The first call overwrites the number that a predecessor published."""
        self._counters[self._manager.worker.number].set(Counter.COUNT_PARTITIONS_MOVING, len(self._moves))

    def _bytes_per_s(self) -> float:
        """Return how fast this worker may copy: its equal share of the broker's limit. Runs in a thread."""
        moving = sum(page.get(Counter.COUNT_PARTITIONS_MOVING) > 0 for page in self._counters)
        return self._manager.config.replica_alter_log_dirs_io_max_bytes_per_second / max(moving, 1)

    # ---- orders ----

    def ordering(self, message: calls.MovePartitions) -> Generator[None, None, calls.MovesBegun]:
        """Begin the requested moves, one partition a step, because each partition takes several syncs."""
        errors = []
        for one in message.partitions:
            errors.append(self._ordered(one))
            yield
        return calls.MovesBegun(errors)

    def _ordered(self, one: calls.MovePartition) -> int:
        target = self._manager.dirs[one.log_dir]
        if target.failed:
            return ErrorCode.KAFKA_STORAGE_ERROR
        slot = self._manager.slot_of.get((one.topic_id, one.partition))
        if slot is None or slot == METADATA_SLOT:
            if slot is None:
                self._manager.directory_selection.prefer((one.topic, one.partition), one.log_dir)
            return (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if one.topic_id == bytes(16)
                else ErrorCode.REPLICA_NOT_AVAILABLE
            )
        log = self._manager.logs[slot]
        if log.state.flags != PartitionFlag.PARTITION_LIVE:
            return ErrorCode.KAFKA_STORAGE_ERROR
        move = self._moves.get(log)
        if move is not None and move.is_decided:
            # The new move begins once this one has arrived.
            self._next[log] = target
            return 0
        if move is not None and move.target is target:
            return 0
        if move is not None:
            self._cancel(move)
        if target.number == log.state.log_dir:
            return 0
        if any(log_dir.failed for log_dir in self._manager.dirs):
            # The partition may have an unseen future replica in the failed directory.
            return ErrorCode.KAFKA_STORAGE_ERROR
        return self._begun(log, target)

    def _begun(self, log: PartitionLog, target: LogDirectory) -> int:
        source, path = self._manager.dirs[log.state.log_dir], target.path / log.name
        if _is_there(path):
            _log.error("%s cannot move to %s: that directory exists already", log.directory, path)
            return ErrorCode.KAFKA_STORAGE_ERROR
        future = target.path / future_replica.new_name(log.topic, log.partition)
        steps: list[tuple[LogDirectory, Callable[[], None]]] = [
            (source, partial(future_replica.unmark, log.directory)),
            (target, partial(future_replica.make, future, log.topic_id)),
        ]
        for log_dir, step in steps:
            try:
                step()
            except OSError as error:
                _log.error("%s cannot move to %s: %s", log.directory, target.path, error)
                if error.errno not in PASSING:
                    self._manager.turn.storage_failed(log_dir.number, error.errno or 0)
                return ErrorCode.KAFKA_STORAGE_ERROR
        _log.info("%s: moving to %s", log.directory, target.path)
        self._begin(log, target, future)
        return 0

    def _begin(self, log: PartitionLog, target: LogDirectory, future: Path) -> None:
        source = self._manager.dirs[log.state.log_dir]
        move = Move(log, source, target, Copy(log.directory, future, self._pace))
        self._moves[log] = move
        self._count()
        log.is_moving = True
        self._queue.append(move)

    def _cancel(self, move: Move) -> None:
        """Abandon a move and remove its future replica."""
        _log.info("%s: its move to %s is cancelled", move.log.directory, move.target.path)
        move.is_cancelled = True
        self._end(move)
        self._set_aside(move.target, move.copy.future)

    def _set_aside(self, log_dir: LogDirectory, future: Path) -> None:
        try:
            doomed = future_replica.set_aside(future)
        except OSError as error:
            _log.error("%s cannot be removed: %s", future, error)
            return
        self._manager.io_thread.submit(partial(remove_tree, doomed), log_dir.number)

    def resume(self, topics: Iterable[str]) -> None:
        """Resume the moves that an earlier process began; remove future replicas that belong to no move.

        To be called when all partitions that can be opened are open. `topics`: all existing topics.
        """
        logs = {(log.topic, log.partition): log for log in self._manager.logs.values()}
        for log_dir, directory, parsed in list(future_replica.futures_in(self._manager.dirs)):
            log = logs.get((parsed.topic, parsed.partition))
            if log is None and parsed.topic in topics:
                continue
            if log is not None and log.state.flags != PartitionFlag.PARTITION_LIVE:
                continue
            is_ours = log is not None and topic_id_if_any(directory) == log.topic_id
            is_given_up = is_ours and log is not None and future_replica.has_stayed(log.directory)
            if log is None or not is_ours or is_given_up or log.state.log_dir == log_dir.number:
                _log.warning("%s is a future replica without a move; it is removed", directory)
                self._set_aside(log_dir, directory)
            elif log not in self._moves:
                _log.info("%s continues to move to %s", log.directory, log_dir.path)
                self._begin(log, log_dir, directory)
            elif self._moves[log].copy.future != directory:
                self._set_aside(log_dir, directory)

    def moves(self) -> calls.Moves:
        """Return the moves of partitions that are still in the old directory according to the table."""
        return calls.Moves(
            [
                calls.MovingPartition(
                    move.log.topic,
                    move.log.partition,
                    move.target.number,
                    str(move.copy.future),
                    max(0, move.log.state.log_end - max(move.copy.end, move.log.log_start)),
                )
                for move in self._moves.values()
                if move.log.state.log_dir != move.target.number
            ]
        )

    # ---- the loop ----

    def step(self) -> None:
        """Do one step of each move."""
        while self._queue and len(self._running) < MOVES_AT_ONCE:
            self._running.append(self._moving(self._queue.popleft()))
        for steps in list(self._running):
            try:
                next(steps)
            except StopIteration:
                self._running.remove(steps)

    def topic_goes(self) -> _Steps:
        """Yield until the renames that have begun are finished. The topic must already be unreachable."""
        placing = set(self._placing)
        while not all(one.done() for one in placing):
            self._manager.io_thread.is_awaited = True
            yield

    @property
    def is_at_rest(self) -> bool:
        return not self._running and not self._queue

    def stop(self) -> None:
        """Finish decided moves and stop all others, which the next start resumes."""
        self._is_stopping = True
        self._queue.clear()
        for move in self._moves.values():
            move.copy.cancel()

    def close(self) -> None:
        for pool in (self._copiers, self._placer):
            pool.shutdown(cancel_futures=True)

    # ---- one move ----

    def _moving(self, move: Move) -> _Steps:
        try:
            while move.log.is_swapping:
                # Wait for the cleaner's swap. It gets no other segment of a moving partition.
                self._check(move)
                yield
            while not (yield from self._tried(move)):
                again = time.monotonic() + TRY_AGAIN_S
                while time.monotonic() < again:
                    self._check(move)
                    yield
            yield from self._left(move)
        except _Over:
            pass
        finally:
            self._end(move)
        target = self._next.pop(move.log, None)
        is_wanted = move.is_decided and not self._is_stopping and self._manager.is_served(move.log)
        if target is not None and is_wanted and target.number != move.log.state.log_dir:
            self._begun(move.log, target)

    def _end(self, move: Move) -> None:
        move.copy.cancel()
        if self._moves.get(move.log) is move:
            del self._moves[move.log]
            self._count()
            move.log.is_moving = False
            if not move.is_decided:
                move.target.forget((move.log.topic, move.log.partition))

    def _has_failed(self, log_dir: LogDirectory) -> bool:
        """Return whether the directory failed. The native turn may know that before `log_dir` does."""
        return log_dir.failed or bool(self._manager.turn.failed_dirs >> log_dir.number & 1)

    def _check(self, move: Move) -> None:
        """Raise _Over if the move is unwanted or impossible now."""
        if move.is_cancelled or self._is_stopping or not self._manager.is_served(move.log):
            raise _Over
        if move.target.failed:
            _log.error("%s stays where it is: %s failed", move.log.directory, move.target.path)
            raise _Over

    def _tried(self, move: Move) -> Generator[None, None, bool]:
        """Copy until the partition is in the target. Return False if the move must be tried again later."""
        while True:
            written = move.copy.bytes_written
            try:
                if not (yield from self._passed(move)):
                    return False
                if self._left_bytes(move) > LITTLE_BYTES:
                    continue
                if not (yield from self._is_written_down(move)):
                    return False
                if (yield from self._arrived(move)):
                    return True
                self._check(move)
            except SourceChanged as reason:
                _log.info("%s: %s; copying again", move.log.directory, reason)
                # Retention deletes the segments being copied, more the longer we wait: continue at once
                # unless nothing was written.
                if move.copy.bytes_written == written:
                    return False

    def _left_bytes(self, move: Move) -> int:
        """Return the bytes appended since the last pass began; LITTLE_BYTES + 1 if the log has rolled."""
        state, wanted = move.log.state, move.wanted
        assert wanted is not None
        if state.segment_base != wanted.active:
            return LITTLE_BYTES + 1
        return state.size - wanted.size

    def _passed(self, move: Move) -> Generator[None, None, bool]:
        self._check(move)
        move.wanted = wanted = self._wanted(move.log)
        begun_at, end = max(move.copy.end, min([*wanted.sealed, wanted.active])), wanted.end
        much = move.copy.bytes_written + MUCH_BYTES
        copied = self._copiers.submit(move.copy.run, wanted)
        copied.add_done_callback(lambda _: self._wake())
        while not copied.done():
            self._check(move)
            if not copied.running():
                # Appends while other partitions are copied do not show the copy's speed.
                end = move.log.state.log_end
            elif move.copy.bytes_written >= much:
                self._judge_speed(move, begun_at, end)
            yield
        self._check(move)
        self._judge_speed(move, begun_at, end)
        return self._has_copied(move, copied)

    def _judge_speed(self, move: Move, begun_at: int, end: int) -> None:
        """Mark the copy late if the log grew at least half as fast as the pass copied.

        `begun_at` and `end`: end offsets of the copy and of the log when the pass began. A late copy stays
        late: it no longer pauses for other users of the disk, since its lag would grow again.
        """
        if 2 * (move.log.state.log_end - end) >= move.copy.end - begun_at > 0:
            move.copy.is_late = True

    def _wanted(self, log: PartitionLog, *, is_last: bool = False) -> Wanted:
        state = log.state
        sealed = [segment.base for segment in log.sealed]
        return Wanted(sealed, state.segment_base, state.size, state.log_end, list(log.epochs), is_last)

    def _has_copied(self, move: Move, copied: Future[None]) -> bool:
        """Return whether the pass succeeded. Raises _Over, or SourceChanged if a segment was deleted."""
        try:
            copied.result()
        except Abandoned as over:
            raise _Over from over
        except SourceChanged:
            raise
        except TargetFailed as failed:
            return self._waits_for(move, failed.error)
        except (SourceDamaged, OSError) as problem:
            _log.error("%s stays where it is, and does not move to %s: %s", *_places(move), problem)
            self._cancel(move)
            raise _Over from problem
        except Exception as problem:
            # Report a bug instead of dying of it: repeated deaths would stop the broker.
            _log.exception("%s stays where it is: the copier failed", move.log.directory)
            self._cancel(move)
            raise _Over from problem
        move.problem = ""
        return True

    def _waits_for(self, move: Move, error: OSError) -> bool:
        """Report a temporary error of the target, such as a full disk, and return False.

        False means that the move must be tried again later. Raises _Over if the future replica was removed,
        or if the error takes the target directory offline.
        """
        if error.errno == errno.ENOENT and not _is_there(move.copy.future):
            _log.error("%s stays where it is: %s was removed", move.log.directory, move.copy.future)
            raise _Over from error
        if error.errno not in PASSING:
            _log.error("%s stays where it is: %s: %s", move.log.directory, move.target.path, error)
            self._manager.turn.storage_failed(move.target.number, error.errno or 0)
            raise _Over from error
        if move.problem != (problem := os.strerror(error.errno or 0)):
            move.problem = problem
            text = "%s waits to move to %s: %s. It is served where it is; free some space, or move it back"
            _log.error(text, *_places(move), problem)
        return False

    def _is_written_down(self, move: Move) -> Generator[None, None, bool]:
        """Write the partition's offsets to the target's checkpoints; return whether they are on disk.

        The next start reads the log start from them, and skips journal records below the copy's end.
        """
        log, log_dir, io_thread = move.log, move.target, self._manager.io_thread
        key, end, start = (log.topic, log.partition), move.copy.end, log.log_start
        cleaned = move.source.known[names.CLEANER_OFFSETS].get(key)
        seen = min(end, log.state.high_watermark)
        offsets = {names.RECOVERY_POINTS: end, names.HIGH_WATERMARKS: seen, names.LOG_STARTS: start}
        if cleaned is not None:
            offsets[names.CLEANER_OFFSETS] = cleaned
        for name, offset in offsets.items():
            log_dir.checkpoint(name, {key: offset}, io_thread)
        yield from io_thread.catching_up()
        self._check(move)
        if all(log_dir.on_disk[name].get(key, 0) == offset for name, offset in offsets.items()):
            return True
        log_dir.write_again()
        return False

    # ---- its last moment ----

    def _arrived(self, move: Move) -> Generator[None, None, bool]:
        log = move.log
        while self._paused is not None or log.is_swapping:
            self._check(move)
            yield
        self._paused, log.is_swapping = move, True
        try:
            # From here on no other job uses its files.
            yield from self._manager.io_thread.catching_up()
            self._check(move)
            if self._left_bytes(move) > LITTLE_BYTES:
                return False
            log.is_paused = True
            log.state.pause()
            if not (yield from self._has_last(move)):
                return False
            return (yield from self._placed(move))
        finally:
            self._paused, log.is_swapping, log.is_paused = None, False, False
            log.state.resume()
            resume_jobs(self._manager.turn)

    def _has_last(self, move: Move) -> Generator[None, None, bool]:
        """Copy the rest while produce requests wait. Return whether it was done within PAUSED_MOST_S."""
        log, since = move.log, time.monotonic()
        while log.state.unsynced:
            self._check(move)
            if time.monotonic() > since + PAUSED_MOST_S:
                # The disk or the object store is slow. Produce requests do not wait for that here.
                return False
            yield
        start_on_disk = move.target.on_disk[names.LOG_STARTS].get((log.topic, log.partition), 0)
        if start_on_disk != log.log_start:
            return False
        copied = self._placer.submit(move.copy.run, self._wanted(log, is_last=True))
        copied.add_done_callback(lambda _: self._wake())
        while not copied.done():
            if log.is_paused and time.monotonic() > since + PAUSED_MOST_S:
                _log.warning("%s: %s is too slow now; the move is tried again", log.name, move.target.path)
                log.is_paused = False
                log.state.resume()
                resume_jobs(self._manager.turn)
            yield
        self._check(move)
        return self._has_copied(move, copied) and log.is_paused

    def _placed(self, move: Move) -> Generator[None, None, bool]:
        """Rename the future replica to its final name. Return False if the move must be tried again."""
        log, future = move.log, move.copy.future
        move.is_decided = True
        error = yield from self._done(partial(future_replica.place, future, move.target.path / log.name))
        if error is not None and _is_there(future):
            # The future replica still has its old name: nothing has happened.
            move.is_decided = False
            return self._waits_for(move, error)
        if not self._manager.is_here(log):
            # The topic was deleted, and both directories with it.
            raise _Over
        if error is not None and (yield from self._done(partial(future_replica.stay, log.directory))) is None:
            # The target's content on disk is unknown, but the current replica is unchanged.
            move.is_decided = False
            return self._waits_for(move, OSError(errno.EIO, f"its name could not be synced: {error}"))
        if not self._manager.is_here(log):
            raise _Over
        log.close_files()
        self._manager.moved(log, move.target)
        if error is not None:
            # A start decides which replica counts; until then neither may get appends.
            _log.error("%s: %s", move.target.path, error)
            self._manager.turn.storage_failed(move.target.number, error.errno or 0)
        elif not self._has_failed(move.source):
            yield from self._leaves(move)
        return True

    def _leaves(self, move: Move) -> Generator[None, None, bool]:
        """Rename the old replica for deletion. Return False if that must be tried again.

        Raises _Over if the topic was deleted: its directory's name may then belong to another topic.
        """
        if not self._manager.is_here(move.log):
            raise _Over
        doomed: list[Path] = []
        current = move.copy.source
        error = yield from self._done(lambda: doomed.append(future_replica.set_aside(current)))
        if error is None:
            move.has_left = True
            delay_ms = move.log.config.file_delete_delay_ms
            self._manager.removal.deletions.add(delay_ms, move.source.number, partial(remove_tree, doomed[0]))
        elif not self._manager.is_here(move.log):
            raise _Over
        elif error.errno not in PASSING:
            self._manager.turn.storage_failed(move.source.number, error.errno or 0)
        else:
            return False
        return True

    def _left(self, move: Move) -> _Steps:
        """Remove the old replica, with retries, after the partition is served from the target."""
        target = move.log.directory
        while not move.has_left and not self._has_failed(move.source) and not (yield from self._leaves(move)):
            again = time.monotonic() + TRY_AGAIN_S
            while time.monotonic() < again and not self._is_stopping:
                yield
            if self._is_stopping:
                # By the mark the next start removes it.
                return
        if move.has_left and not self._has_failed(move.target):
            yield from self._done(partial(future_replica.unmark, target))
        _log.info("%s has moved to %s", move.copy.source, move.target.path)

    def _done(self, job: Callable[[], object]) -> Generator[None, None, OSError | None]:
        """Do a job in the placer's thread and wait for it. Return its OSError, or None if it succeeded."""
        placing = self._placer.submit(_run, job)
        self._placing.add(placing)
        placing.add_done_callback(lambda _: self._wake())
        while not placing.done():
            yield
        self._placing.remove(placing)
        try:
            placing.result()
        except OSError as error:
            return error
        return None


def _run(job: Callable[[], object]) -> None:
    job()


def _is_there(path: Path) -> bool:
    """Return whether the path exists; False if its log directory cannot be read."""
    try:
        return path.exists()
    except OSError:
        return False


def _places(move: Move) -> tuple[Path, Path]:
    return move.log.directory, move.target.path


def give_way_to_all() -> None:
    """Raise the calling thread's niceness to NICENESS, unless it is higher already."""
    thread = threading.get_native_id()
    niceness = max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread))
    os.setpriority(os.PRIO_PROCESS, thread, niceness)
