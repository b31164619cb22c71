"""Sizes of log directories and partitions, for the metrics (Kafka: gauges of UnifiedLog and LogManager).

From time to time all partitions are measured, a few of them between two rounds of the log worker. A
partition's size is the size of its segments, as in DescribeLogDirs. Indexes and files that are to be deleted
do not count.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial

from mpbroker.ipc.log_sizes import DirSizes, PartitionSizes
from mpbroker.log.directories.log_directory import LogDirectory
from mpbroker.log.manager.log_manager import LogManager
from mpbroker.log.manager.measuring import MEASURED_AT_ONCE, Measuring

# Metrics should be fresh, but measuring thousands of partitions takes a while.
MEASURE_EVERY_S, MEASURE_EVERY_S_MOST = 2.0, 30.0
SHARE_OF_TIME = 0.01
_log = logging.getLogger("mpbroker.log")


@dataclass(eq=False)
class SizeMetrics:
    _manager: LogManager
    _measuring: Measuring
    _dirs: DirSizes
    _partitions: PartitionSizes
    _waits: bool = False

    def __post_init__(self) -> None:
        worker = self._manager.worker
        for log_dir in self._manager.dirs:
            if worker.is_first:
                self._introduce(log_dir, failed=log_dir.failed)
            self._dirs.put_wait(log_dir.number, worker.number, 0)
            # A predecessor's refusals end with it; the error of an offline directory stays.
            if not log_dir.failed:
                self.put_error(log_dir.number, 0)

    def dir_failed(self, number: int, error: int) -> None:
        self.put_error(number, error)
        if self._manager.worker.is_first:
            self._introduce(self._manager.dirs[number], failed=True)

    def put_error(self, number: int, error: int) -> None:
        """Publish the errno because of which a directory refuses produce requests; 0 if it accepts them."""
        self._dirs.put_error(number, self._manager.worker.number, error)

    def put_wait(self, since_ns: int) -> None:
        """Publish the time at which a slow sync began (monotonic, in ns); 0 if none is under way."""
        if since_ns or self._waits:
            self._waits = bool(since_ns)
            for log_dir in self._manager.dirs:
                self._dirs.put_wait(log_dir.number, self._manager.worker.number, since_ns)

    def _introduce(self, log_dir: LogDirectory, *, failed: bool) -> None:
        workers = self._manager.worker.count
        self._dirs.introduce(log_dir.number, os.fspath(log_dir.path), workers, failed=failed)

    @staticmethod
    def rest_s(took_s: float) -> float:
        """Return the time until the next measurement, in s, after one that took `took_s`."""
        return min(max(MEASURE_EVERY_S, took_s / SHARE_OF_TIME), MEASURE_EVERY_S_MOST)

    def measuring(self) -> Generator[None, None, None]:
        """Measure every partition once, and publish the sizes."""
        manager = self._manager
        sums = [0 for _ in manager.dirs]
        slots = list(manager.logs)
        for at in range(0, len(slots), MEASURED_AT_ONCE):
            some = slots[at : at + MEASURED_AT_ONCE]
            yield from self._measuring.until_measured(self._measuring.open_logs(some))
            for log in self._measuring.open_logs(some):
                state, number = log.state, log.state.log_dir
                size = state.size + sum(max(segment.size, 0) for segment in log.sealed)
                self._partitions.put(state.table_slot, state.generation, len(log.sealed) + 1, size)
                sums[number] += size
            yield
        for log_dir in manager.dirs:
            self._dirs.put_size(log_dir.number, manager.worker.number, sums[log_dir.number])
            self._dirs.put_kept(log_dir.number, manager.worker.number, log_dir.kept_bytes)
            if manager.worker.is_first and not log_dir.failed:
                manager.io_thread.submit(partial(self._measure_volume, log_dir), log_dir.number)

    def _measure_volume(self, log_dir: LogDirectory) -> None:
        """Publish the volume's size and free space. Runs in the I/O thread: a disk may be slow."""
        try:
            system = os.statvfs(log_dir.path)
        except OSError as error:
            # If the directory matters, other operations there fail as well and report it.
            _log.warning("the room in %s is not known: %s", log_dir.path, error.strerror)
            return
        self._dirs.put_volume(
            log_dir.number, system.f_blocks * system.f_frsize, system.f_bavail * system.f_frsize
        )
