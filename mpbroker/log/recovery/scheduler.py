"""Open the partitions when the broker starts, with workers if there are many, and publish the progress.

The coordinator names the topics. As soon as a topic is named, its partitions are queued for the workers of
their log directories (`workers`). The results are taken in the order of the topics. For the progress, all
partitions in the log directories are counted first. In a long start, the bytes to check are counted, too.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from mpbroker.config.topic_config import TopicConfig
from mpbroker.ipc.calls import EnsureTopic
from mpbroker.ipc.progress import Progress, write_progress
from mpbroker.log.directories.log_directory import ALONE, LogDirectory, LogWorker
from mpbroker.log.recovery.log_loader import Known
from mpbroker.log.recovery.partition_files import bytes_after
from mpbroker.log.recovery.workers import Key, OpenJob, RecoveredPartition, Recovery
from mpbroker.storage import names
from mpbroker.storage.checkpoints import PartitionMap
from shm.word import Words

REPORT_EVERY_S = 0.1
# A start that is over by then needs no forecast, and a survey would make it longer.
SURVEY_AFTER_S = 5.0
# Time for the survey at each report: workers wait for the log process, too.
SURVEY_S = 0.02
_log = logging.getLogger("mpbroker.log.recovery")
# How long the loop may neglect everything else while there are no clients yet, and while there are.
STAY_S, STAY_WITH_CLIENTS_S = 0.005, 0.0005
# Partitions given to workers and not taken back: more than enough for all of them. At the upper limit, more
# are given only below the lower one, many together.
GIVEN_MOST, GIVEN_FEW = 512, 384


class ByWorker(NamedTuple):
    log_dir: int
    recovered: RecoveredPartition


@dataclass
class _Found:
    """The partitions found in one log directory."""

    partitions: int = 0
    done: int = 0
    # Bytes checked by the log process itself.
    checked_bytes: int = 0
    # All bytes to check; 0: none, or not surveyed.
    bytes_to_check: int = 0


class RecoveryScheduler:
    def __init__(self, recovery: Recovery, words: Words, worker: LogWorker = ALONE) -> None:
        self._recovery = recovery
        self._words = words
        self._worker = worker
        self._found: list[_Found] = []
        # Partitions that workers may open, and their log directory: those whose name is in one directory
        # alone.
        self._dir_numbers: PartitionMap[str] = PartitionMap()
        self._dirs: Sequence[LogDirectory] = ()
        # Topics whose partitions are being given to workers, the first one first.
        self._to_begin: deque[tuple[bytes, Generator[None, None, None]]] = deque()
        # The rest of the survey.
        self._to_survey: Iterator[None] = iter(())
        self._started = time.monotonic()
        self._report_at = 0.0
        self._goes_on = True
        self._is_successor = False

    def found(self, dirs: Sequence[LogDirectory], *, is_successor: bool) -> None:
        """Find and count the partitions in the recovered log directories. Call this before `begin`."""
        self._dirs = dirs
        self._is_successor = is_successor
        twice = set()
        for log_dir in dirs:
            found = _Found()
            self._found.append(found)
            for _, name in log_dir.own_partitions():
                if name.suffix:
                    continue
                found.partitions += 1
                # A partition in two directories is left to the log process, which reports it.
                key = (name.topic, name.partition)
                if key in self._dir_numbers:
                    twice.add(key)
                self._dir_numbers[key] = log_dir.number
        for one in twice:
            del self._dir_numbers[one]
        self._to_survey = self._surveying()
        self.report()

    def _surveying(self) -> Iterator[None]:
        """Count the bytes that workers are going to check. Yield after each partition."""
        for log_dir, found in zip(self._dirs, self._found, strict=True):
            if log_dir.clean or self._is_successor or not self._recovery.takes(log_dir.number):
                continue
            points = log_dir.known[names.RECOVERY_POINTS]
            total = 0
            for directory, name in log_dir.own_partitions():
                if not name.suffix:
                    # Opening the partition reports what cannot be read now.
                    with suppress(OSError):
                        point = points.get((name.topic, name.partition), 0)
                        total += bytes_after(f"{log_dir.path}/{directory}", point)
                yield
            found.bytes_to_check = total

    def _survey_on(self) -> None:
        leave_at = time.monotonic() + SURVEY_S
        for _ in self._to_survey:
            if time.monotonic() >= leave_at:
                return

    @property
    def stay_s(self) -> float:
        """Return how long partitions may be opened before the loop does other work, in s."""
        is_start = self._goes_on and not self._is_successor and self._recovery.given
        return STAY_S if is_start else STAY_WITH_CLIENTS_S

    def begin(
        self,
        topic: EnsureTopic,
        partitions: Iterable[int],
        config: TopicConfig,
        known_of: Callable[[LogDirectory, int], Known],
    ) -> None:
        """Give the topic's unopened `partitions` to workers, a few at a time: waiting jobs take memory."""
        self._to_begin.append((topic.topic_id, self._beginning(topic, partitions, config, known_of)))
        self._begin_some()

    def _beginning(
        self,
        topic: EnsureTopic,
        partitions: Iterable[int],
        config: TopicConfig,
        known_of: Callable[[LogDirectory, int], Known],
    ) -> Generator[None, None, None]:
        for number in partitions:
            dir_number = self._dir_numbers.get((topic.name, number))
            if dir_number is not None and self._recovery.takes(dir_number):
                log_dir = self._dirs[dir_number]
                known = known_of(log_dir, number)
                directory = f"{log_dir.path}/{names.partition_name(topic.name, number)}"
                job = OpenJob(directory, topic.name, number, topic.topic_id, config, known)
                self._recovery.submit(log_dir.number, job)
                yield

    def _begin_some(self, key: Key | None = None) -> None:
        """Give workers more partitions, up to GIVEN_MOST, unless they still have more than GIVEN_FEW.

        If `key` is a partition of the first waiting topic, give at least those up to `key`.
        """
        before = self._recovery.given
        if before > GIVEN_FEW and (key is None or self._recovery.log_dir_of(key) is not None):
            return
        while self._to_begin:
            topic_id, steps = self._to_begin[0]
            is_next = key is not None and key[0] == topic_id and self._recovery.log_dir_of(key) is None
            if not is_next and self._recovery.given >= GIVEN_MOST:
                break
            if next(steps, self) is self:
                self._to_begin.popleft()
        if self._recovery.given != before:
            self._recovery.hand_out()

    def result(self, key: Key) -> Generator[None, None, ByWorker | None]:
        """Return a worker's result or raise its error. Return None if no worker opens the partition."""
        self._begin_some(key)
        number = self._recovery.log_dir_of(key)
        if number is None:
            return None
        leave_at = time.monotonic() + STAY_S
        while True:
            try:
                found = self._recovery.take(key)
            except LookupError:
                return None
            if isinstance(found, RecoveredPartition):
                return ByWorker(number, found)
            if found is not None:
                raise found
            self._begin_some()
            self._recovery.step()
            self.report()
            if time.monotonic() >= leave_at:
                leave_at = time.monotonic() + STAY_S
                yield

    def count(self, number: int) -> None:
        """Count one more opened partition of log directory `number`, and report the progress."""
        if self._goes_on and number < len(self._found):
            self._found[number].done += 1
            self.report()

    def checked(self, number: int) -> Callable[[int], None]:
        """Return a callback that counts the bytes that the log process checks in log directory `number`."""

        def add(count: int) -> None:
            self._found[number].checked_bytes += count

        return add

    def report(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if now < self._report_at and not at_once:
            return
        self._report_at = now + REPORT_EVERY_S
        if self._goes_on and now >= self._started + SURVEY_AFTER_S:
            self._survey_on()
        for number, found in enumerate(self._found):
            pool = self._recovery.pools[number]
            progress = Progress(
                number,
                self._goes_on and found.done < found.partitions,
                found.partitions,
                found.done,
                found.bytes_to_check,
                pool.checked_bytes,
                now - self._started,
            )
            write_progress(self._words, self._worker.number, progress)

    def end(self) -> None:
        """Close the workers and stop reporting progress. Call this when all topics are open, or at a stop."""
        if self._goes_on and not self._is_successor:
            self._say_what_was_unclean()
        self._recovery.close()
        self._to_begin.clear()
        self._dir_numbers = PartitionMap()
        self._goes_on = False
        self.report(at_once=True)

    def _say_what_was_unclean(self) -> None:
        for log_dir, found in zip(self._dirs, self._found, strict=True):
            if log_dir.clean or log_dir.failed or not found.partitions:
                continue
            checked_bytes = found.checked_bytes + self._recovery.pools[log_dir.number].checked_bytes
            _log.info(
                "%s: it was not closed cleanly; %d of %d partitions were checked, %.1f MB read, %d bytes "
                "restored from the commit journal, in %.0f ms",
                log_dir.path,
                min(found.done, found.partitions),
                found.partitions,
                checked_bytes / 1e6,
                log_dir.restored_bytes,
                (time.monotonic() - self._started) * 1000,
            )
