"""Workers that open partitions for the log process: several for each log directory, forked at its start.

(Kafka: LogManager.loadLogs, num.recovery.threads.per.data.dir.) A worker calls `log_loader.load` and returns
plain values (`RecoveredPartition`). The log process alone owns the partition from then on; the worker has
closed the partition's files.

Any worker may take any partition, so the death of a worker only takes time: its jobs are given to another
worker. After some failed tries, or if no worker is left, the log process does a job itself. Opening a
partition twice has the same result, even if the first time was interrupted. A worker that hangs is killed
(`ipc.hangs`).

A directory with few entries gets no workers: a fork would take longer. Workers end at once when the log
process does. Each worker locks a byte of the directory's `.lock`. A successor of the log process waits for
these locks, so that no worker still truncates files that the successor has opened.
"""

from __future__ import annotations

import fcntl
import logging
import math
import mmap
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from mpbroker.config.topic_config import TopicConfig
from mpbroker.ipc.hangs import HEAVY_TIMEOUTS, TICK_S, Patience, Pulse, Verdict, look_at
from mpbroker.ipc.process import die_with_parent
from mpbroker.ipc.titles import entitle
from mpbroker.log.io.file_system import FileSystem
from mpbroker.log.partition.durable_reads import EACH_FILE, FileSystemSync, Syncs
from mpbroker.log.partition.partition_log import PartitionLog, Sealed
from mpbroker.log.recovery.log_loader import Known, PartitionDamaged, load
from mpbroker.storage.checkpoints import CheckpointCorrupt, opened, read_topic_id
from mpbroker.storage.leader_epochs import shared
from mpbroker.storage.names import CLEAN_SHUTDOWN, LOCK
from mpbroker.storage.remote_segments import RemoteSegments
from shm.word import Words

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# Entries of a log directory from which on workers pay off: trusted partitions open fast, checked ones do not.
CLEAN_LEAST, UNCLEAN_LEAST = 200, 20
# Jobs in a message: most take less time than the message. A worker with this few left gets more, so that it
# need not wait; where many jobs wait, a third of a message.
SENT_AT_ONCE = 64
FEW_LEFT = 8
TRIES = 2
# A worker that takes longer reports at once, with everything done before.
REPORT_AFTER_S = 0.005
WAIT_MS = 2
Key = tuple[bytes, int]
Failure = PartitionDamaged | CheckpointCorrupt | OSError
Result: TypeAlias = "RecoveredPartition | None"
_log = logging.getLogger("mpbroker.log.recovery")


class RecoveredPartition(NamedTuple):
    """The state of an opened partition, which a recovery worker sends to the log process.

    The recovery worker closes the files and makes the state (`of`). The log process applies it (`adopt`).
    """

    state: tuple[int, ...]
    producers: bytes
    log_start: int
    recovery_point: int
    settled_end: int
    sealed: list[int]
    epochs: list[tuple[int, int]]
    remote: RemoteSegments

    @classmethod
    def of(cls, log: PartitionLog) -> RecoveredPartition:
        """Close the log's files and return its state. (The log worker opens files when it needs them.)"""
        log.close_files()
        return cls(
            log.state.carried(),
            log.state.producers.carried(),
            log.log_start,
            log.recovery_point,
            log.settled_end,
            [segment.base for segment in log.sealed],
            list(log.epochs),
            log.remote,
        )

    def adopt(self, log: PartitionLog) -> None:
        """Give the state to `log`, none of whose files is open."""
        log.apply_config(log.config)
        log.state.carry(self.state)
        log.state.producers.carry(self.producers)
        log.log_start = self.log_start
        log.recovery_point, log.settled_end = self.recovery_point, self.settled_end
        log.sealed = [Sealed(base) for base in self.sealed] or ()
        log.epochs = shared(self.epochs)
        log.remote = self.remote


class OpenJob(msgspec.Struct, frozen=True):
    """A partition to be opened. `run` returns None if the directory belongs to another topic."""

    directory: str
    topic: str
    partition: int
    topic_id: bytes
    config: TopicConfig
    known: Known
    # An earlier try may have cut the log without syncing that.
    is_first_try: bool = True

    @property
    def key(self) -> Key:
        return self.topic_id, self.partition

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    def run(self, count: Callable[[int], None], syncs: Syncs) -> RecoveredPartition | None:
        if read_topic_id(self.directory, self.topic_id) != self.topic_id:
            return None
        log = load(
            self.directory,
            self.topic,
            self.partition,
            self.topic_id,
            self.config,
            self.known,
            _unsaid,
            count,
            syncs if self.is_first_try else EACH_FILE,
        )
        return RecoveredPartition.of(log)

    def again(self) -> OpenJob:
        return msgspec.structs.replace(self, is_first_try=False)


def _unsaid(text: str) -> None:
    """Ignore the text: the log process reports the progress of all workers."""


@dataclass(eq=False)
class Worker:
    pid: int
    channel: Connection
    number: int
    under_way: dict[Key, OpenJob] = field(default_factory=dict)
    # Jobs it has reported; it may have done more.
    reported: int = 0
    pulse: Pulse = field(default_factory=Pulse)


@dataclass(eq=False)
class RecoveryPool:
    """The workers of one log directory. Without a worker, the log process opens the partitions itself."""

    path: Path
    workers: list[Worker] = field(default_factory=list)
    waiting: deque[OpenJob] = field(default_factory=deque)
    tries: dict[Key, int] = field(default_factory=dict)
    # Jobs given up on, which the log process does.
    left_over: set[Key] = field(default_factory=set)
    done: dict[Key, RecoveredPartition | Failure] = field(default_factory=dict)
    # A word per worker, which alone writes it: bytes checked, and jobs done.
    checked: Words | None = None
    jobs_done: Words | None = None
    # A word per worker: whether it has synced the file system.
    synced: Words | None = None
    forked: int = 0

    @property
    def checked_bytes(self) -> int:
        """The bytes checked by all workers of the pool, also by dead ones."""
        if self.checked is None:
            return 0
        return sum(self.checked.load(number) for number in range(self.forked))

    def submit(self, job: OpenJob) -> None:
        self.waiting.append(job)

    def hand_out(self) -> None:
        """Send waiting jobs to the workers.

        Send no more than fits into a channel: a busy worker must not block the log process. If few jobs wait,
        leave some of them for the other workers, since each job may take long.
        """
        while self.waiting and self.workers:
            worker = min(self.workers, key=lambda one: len(one.under_way))
            if len(worker.under_way) > max(FEW_LEFT, min(len(self.waiting), SENT_AT_ONCE) // 3):
                return
            share = min(SENT_AT_ONCE, -(-len(self.waiting) // (2 * len(self.workers))))
            jobs = [self.waiting.popleft() for _ in range(share)]
            worker.under_way.update((job.key, job) for job in jobs)
            try:
                worker.channel.send(jobs)
            except OSError:
                self._lost(worker)
        if not self.workers:
            self.left_over.update(job.key for job in self.waiting)
            self.waiting.clear()

    def receive(self, worker: Worker) -> None:
        """Take the worker's results, or note its death."""
        try:
            reported: list[tuple[Key, Result | Failure]] = worker.channel.recv()
        except (EOFError, OSError):
            self._lost(worker)
            return
        worker.reported += len(reported)
        for key, result in reported:
            del worker.under_way[key]
            if result is None:
                self.left_over.add(key)
            else:
                self.done[key] = result

    def _lost(self, worker: Worker) -> None:
        self.workers.remove(worker)
        worker.channel.close()
        _, status = os.waitpid(worker.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        jobs = list(worker.under_way.values())
        # It may have died after doing the first ones and before reporting them.
        culprit = jobs[min(self._done_by(worker) - worker.reported, len(jobs) - 1)] if jobs else None
        _log.error(
            "a recovery worker of %s (pid %d) %s%s",
            self.path,
            worker.pid,
            how,
            f" while it was at {culprit.name}; its partitions are retried" if culprit is not None else "",
        )
        for job in jobs:
            self.tries[job.key] = self.tries.get(job.key, 0) + (job is culprit)
            if self.tries[job.key] < TRIES:
                self.waiting.append(job.again())
            else:
                self.left_over.add(job.key)

    def _done_by(self, worker: Worker) -> int:
        return self.jobs_done.load(worker.number) if self.jobs_done is not None else 0

    def kill_hanging(self, limit_ticks: int) -> None:
        """Kill hanging workers; called once a tick. Their jobs are retried when their channels end."""
        for worker in self.workers:
            if not worker.under_way or self.checked is None:
                worker.pulse = Pulse()
                continue
            signs = self.checked.load(worker.number) + self._done_by(worker)
            probe = partial(look_at, worker.pid)
            if worker.pulse.judge(signs, limit_ticks, math.inf, probe) is Verdict.HANGS:
                _log.error(
                    "a recovery worker of %s (pid %d) has not moved for %d s: it is killed",
                    self.path,
                    worker.pid,
                    worker.pulse.silent_ticks * TICK_S,
                )
                os.kill(worker.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the workers, some of which may hang. Call this when all partitions are open."""
        for worker in self.workers:
            worker.channel.close()
            os.kill(worker.pid, signal.SIGKILL)
            os.waitpid(worker.pid, 0)
        self.workers.clear()


def fork_pools(paths: Sequence[Path], threads: int, failed_dirs: int, lane: int) -> list[RecoveryPool]:
    """Fork the workers of each log directory and return a pool for each.

    Call it while the process has one thread. `lane`: which byte of `.lock` these workers lock; a successor of
    this log process waits until that byte is unlocked (`outlive`). Raises OSError.
    """
    pools = []
    for number, path in enumerate(paths):
        pool = RecoveryPool(path)
        pools.append(pool)
        if failed_dirs >> number & 1:
            continue
        try:
            outlive(path, lane)
            least = CLEAN_LEAST if (path / CLEAN_SHUTDOWN).exists() else UNCLEAN_LEAST
            is_small = len(os.listdir(path)) < least  # noqa: PTH208 - only how many
        except OSError:
            # The next reader of the directory reports the error.
            continue
        if is_small:
            continue
        pool.checked, pool.jobs_done, pool.forked = _words(threads), _words(threads), threads
        pool.synced = _words(threads)
        for worker in range(threads):
            _fork(pool, pools, worker, lane)
    return pools


def _words(count: int) -> Words:
    return Words(memoryview(mmap.mmap(-1, 8 * count)))


def outlive(path: Path, lane: int) -> None:
    """Wait until the workers of a dead predecessor have ended and unlocked byte `lane`. Raises OSError."""
    with opened(path / LOCK, os.O_RDWR | os.O_CREAT) as fd:
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, lane)


def _fork(pool: RecoveryPool, pools: list[RecoveryPool], number: int, lane: int) -> None:
    from multiprocessing.connection import Pipe

    ours, theirs = Pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            ours.close()
            for other in pools:
                for worker in other.workers:
                    worker.channel.close()
            _run(pool, theirs, number, parent, lane)
            code = 0
        except BaseException:  # noqa: BLE001 - the fork exits in any case
            _log.exception("a recovery worker of %s failed", pool.path)
        finally:
            os._exit(code)
    theirs.close()
    pool.workers.append(Worker(pid, ours, number))


def _run(pool: RecoveryPool, channel: Connection, number: int, parent: int, lane: int) -> None:
    """Serve as a worker until the log process closes its end of the channel."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with_parent(parent, signal.SIGKILL)
    entitle(f"recovery {number} {pool.path}")
    lock = os.open(pool.path / LOCK, os.O_RDWR | os.O_CLOEXEC)
    fcntl.lockf(lock, fcntl.LOCK_SH, 1, lane)
    checked, jobs_done = pool.checked, pool.jobs_done
    assert checked is not None
    assert jobs_done is not None
    assert pool.synced is not None
    syncs = FileSystemSync(FileSystem(pool.path), pool.synced, number)

    def count(size: int) -> None:
        checked.store(number, checked.load(number) + size)

    done = 0
    while True:
        try:
            jobs: list[OpenJob] = channel.recv()
        except EOFError:
            return
        to_report: list[tuple[Key, Result | Failure]] = []
        report_at = time.monotonic() + REPORT_AFTER_S
        for job in jobs:
            to_report.append((job.key, _outcome(job, count, syncs)))
            done += 1
            jobs_done.store(number, done)
            if time.monotonic() >= report_at:
                channel.send(to_report)
                to_report, report_at = [], time.monotonic() + REPORT_AFTER_S
        if to_report:
            channel.send(to_report)


def _outcome(job: OpenJob, count: Callable[[int], None], syncs: Syncs) -> Result | Failure:
    try:
        return job.run(count, syncs)
    except (PartitionDamaged, CheckpointCorrupt, OSError) as failure:
        return failure


class Recovery:
    """The pools of all log directories. The log process submits jobs to them and takes the results."""

    def __init__(self, pools: Sequence[RecoveryPool], hang_timeout_s: float = 30.0) -> None:
        """`hang_timeout_s`: handler.hang.timeout.ms in seconds."""
        self.pools = pools
        self._limit_ticks = max(1, round(HEAVY_TIMEOUTS * hang_timeout_s / TICK_S))
        self._tick = Patience(TICK_S)
        # The log directory of each job given to workers.
        self._given: dict[Key, int] = {}
        # Jobs given before. One that failed, such as for lack of a descriptor, may be given again.
        self._given_before: set[Key] = set()

    def takes(self, number: int) -> bool:
        """Return whether workers open the partitions of log directory `number`."""
        return number < len(self.pools) and bool(self.pools[number].workers)

    def submit(self, number: int, job: OpenJob) -> None:
        """Queue a job for `hand_out`, unless the partition already has a job whose result was not taken."""
        key = job.key
        if key not in self._given:
            self._given[key] = number
            self.pools[number].submit(job.again() if key in self._given_before else job)
            self._given_before.add(key)

    def hand_out(self) -> None:
        """Send waiting jobs to the workers, several at a time."""
        for pool in self.pools:
            if pool.waiting:
                pool.hand_out()

    def log_dir_of(self, key: Key) -> int | None:
        """Return the log directory of a partition given to workers, or None."""
        return self._given.get(key)

    @property
    def given(self) -> int:
        """The number of submitted jobs whose results were not taken yet."""
        return len(self._given)

    def step(self) -> None:
        """Take results and send waiting jobs; sleep briefly if there is no result."""
        poll = select.poll()
        channels: dict[int, tuple[RecoveryPool, Worker]] = {}
        for pool in self.pools:
            for worker in pool.workers:
                channels[worker.channel.fileno()] = pool, worker
                poll.register(worker.channel, select.POLLIN)
        for channel, _ in poll.poll(WAIT_MS):
            pool, worker = channels[channel]
            pool.receive(worker)
        self.hand_out()
        if self._tick.is_over():
            self._tick.renew()
            for pool in self.pools:
                pool.kill_hanging(self._limit_ticks)

    def take(self, key: Key) -> RecoveredPartition | Failure | None:
        """Return a partition's result, None before it is done.

        Raises LookupError if no worker could open the partition: the log process must open it.
        """
        pool = self.pools[self._given[key]]
        if key in pool.left_over:
            pool.left_over.discard(key)
            del self._given[key]
            raise LookupError(key)
        found = pool.done.pop(key, None)
        if found is not None:
            del self._given[key]
        return found

    def close(self) -> None:
        for pool in self.pools:
            pool.close()
        self._given_before.clear()
