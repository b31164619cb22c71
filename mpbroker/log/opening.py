"""What a start finds is opened by workers where there is much of it, and somebody can see how far that is.

The coordinator names the topics; what their partitions need is given to the workers of the log directory as
soon as it does (`pool`), and taken from them when it is their turn. How much there is in all is known from
the names in the log directories, and from a survey of what is to be checked.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mpbroker.config.topic_config import TopicConfig
from mpbroker.ipc.calls import EnsureTopic
from mpbroker.ipc.progress import Progress, write_progress
from mpbroker.log import names
from mpbroker.log.home import LogDir
from mpbroker.log.pool import Key, OpenJob, Recovery
from mpbroker.log.recovery import Known, Opened
from shm.word import Words

REPORT_EVERY_S = 0.1
# So long the loop may look at nothing else: there are no clients yet.
STAY_S = 0.005
# Partitions that workers have or wait for them: more than enough for all of them.
GIVEN_MOST = 256


class ByWorker(NamedTuple):
    log_dir: int
    opened: Opened


@dataclass
class _Found:
    """In one log directory."""

    partitions: int = 0
    done: int = 0


class Opening:
    def __init__(self, recovery: Recovery, words: Words, worker: names.LogWorker = names.ALONE) -> None:
        self._recovery = recovery
        self._words = words
        self._worker = worker
        self._found: list[_Found] = []
        # Partitions that workers may open: those whose name is in one log directory alone.
        self._homes: dict[str, LogDir] = {}
        # Topics whose partitions are being given to workers, the first one first.
        self._to_begin: deque[tuple[bytes, Generator[None, None, None]]] = deque()
        self._started = time.monotonic()
        self._report_at = 0.0
        self._goes_on = True

    def found(self, dirs: Sequence[LogDir], *, is_successor: bool) -> None:
        """The log directories are in order, and their partitions may be opened."""
        twice = set()
        for home in dirs:
            found = _Found()
            self._found.append(found)
            takes = self._recovery.takes(home.number)
            points = home.known[names.RECOVERY_POINTS]
            wanted = []
            for path, name in home.own_partitions():
                if name.suffix:
                    continue
                found.partitions += 1
                if not takes:
                    continue
                if path.name in self._homes:
                    twice.add(path.name)
                self._homes[path.name] = home
                if not home.clean and not is_successor:
                    wanted.append((path.name, points.get((name.topic, name.partition), 0)))
            if wanted:
                self._recovery.survey(home.number, wanted)
        for one in twice:
            del self._homes[one]
        self.report()

    def begin(
        self,
        topic: EnsureTopic,
        partitions: Iterable[int],
        config: TopicConfig,
        known_of: Callable[[LogDir, int], Known],
    ) -> None:
        """What workers can open is given to them, a few at a time: what waits for them takes memory.
        `partitions`: those that are not open by then.
        """
        self._to_begin.append((topic.topic_id, self._beginning(topic, partitions, config, known_of)))
        self._begin_some()

    def _beginning(
        self,
        topic: EnsureTopic,
        partitions: Iterable[int],
        config: TopicConfig,
        known_of: Callable[[LogDir, int], Known],
    ) -> Generator[None, None, None]:
        for number in partitions:
            home = self._homes.get(names.partition_name(topic.name, number))
            if home is not None and self._recovery.takes(home.number):
                directory = os.fspath(home.path / names.partition_name(topic.name, number))
                known = known_of(home, number)
                job = OpenJob(directory, topic.name, number, topic.topic_id, config, known)
                self._recovery.submit(home.number, job)
                yield

    def _begin_some(self, key: Key | None = None) -> None:
        """Those that were named first; until that partition has been given, or enough wait."""
        while self._to_begin:
            topic_id, steps = self._to_begin[0]
            is_next = key is not None and key[0] == topic_id and self._recovery.home_of(key) is None
            if not is_next and self._recovery.given >= GIVEN_MOST:
                return
            if next(steps, self) is self:
                self._to_begin.popleft()

    def result(self, key: Key) -> Generator[None, None, ByWorker | None]:
        """What a worker has opened; None: the log process is to do it.

        Raises PartitionDamaged, CheckpointCorrupt, OSError as the worker found it.
        """
        self._begin_some(key)
        log_dir = self._recovery.home_of(key)
        if log_dir is None:
            return None
        leave_at = time.monotonic() + STAY_S
        while True:
            try:
                found = self._recovery.take(key)
            except LookupError:
                return None
            if isinstance(found, Opened):
                return ByWorker(log_dir, found)
            if found is not None:
                raise found
            self._begin_some()
            self._recovery.step()
            self.report()
            if time.monotonic() >= leave_at:
                leave_at = time.monotonic() + STAY_S
                yield

    def count(self, log_dir: int) -> None:
        """One more is open."""
        if self._goes_on and log_dir < len(self._found):
            self._found[log_dir].done += 1
            self.report()

    def report(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if now < self._report_at and not at_once:
            return
        self._report_at = now + REPORT_EVERY_S
        for number, found in enumerate(self._found):
            pool = self._recovery.pools[number]
            progress = Progress(
                number,
                self._goes_on and found.done < found.partitions,
                found.partitions,
                found.done,
                pool.bytes_to_check if not pool.surveys else 0,
                pool.checked_bytes,
                now - self._started,
            )
            write_progress(self._words, self._worker.number, progress)

    def end(self) -> None:
        """Everything that has a topic is open."""
        self._recovery.close()
        self._to_begin.clear()
        self._homes.clear()
        self._goes_on = False
        self.report(at_once=True)
