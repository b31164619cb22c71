"""Removal of the directories of partitions that belong to deleted topics, or to no topic."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mpbroker.log.append.turn import AppendTurn
from mpbroker.log.directories.log_directory import LogDirectory
from mpbroker.log.io.background_io import remove_tree
from mpbroker.log.io.io_thread import IoThread
from mpbroker.log.manager.checkpointing import Checkpointing
from mpbroker.log.manager.open_partitions import OpenPartitions
from mpbroker.log.manager.slot_allocator import SlotAllocator, TakenAway
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.storage import names
from mpbroker.storage.checkpoints import PartitionMap, topic_id_if_any
from mpbroker.storage.disk_errors import PASSING
from mpbroker.storage.strict_stat import is_directory

_log = logging.getLogger("mpbroker.log")


# Names of a log directory that a step checks: a fraction of a millisecond.
NAMES_AT_ONCE = 256


class _Deletion(NamedTuple):
    """A deletion that is due at `due_s` on the monotonic clock."""

    due_s: float
    log_dir: int
    job: Callable[[], None]


class DelayedDeletions:
    """Deletions of unreachable files after file.delete.delay.ms, so that their last readers can finish.

    The I/O thread deletes the files; a failure takes their log directory offline. (Kafka: the tasks
    delete-file and kafka-delete-logs of LogManager's scheduler.)
    """

    def __init__(self, io_thread: IoThread) -> None:
        self._io_thread = io_thread
        self._waiting: list[_Deletion] = []
        self.next_due_s = math.inf

    def of(self, log: PartitionLog, job: Callable[[], None]) -> None:
        """Run `job`, which deletes files of the log, after the file.delete.delay.ms of the log's topic."""
        self.add(log.config.file_delete_delay_ms, log.state.log_dir, job)

    def add(self, delay_ms: int, log_dir: int, job: Callable[[], None]) -> None:
        due_s = time.monotonic() + delay_ms / 1000
        self._waiting.append(_Deletion(due_s, log_dir, job))
        self.next_due_s = min(self.next_due_s, due_s)

    def begin_due(self, now_s: float) -> None:
        if now_s < self.next_due_s:
            return
        due = [one for one in self._waiting if one.due_s <= now_s]
        self._waiting = [one for one in self._waiting if one.due_s > now_s]
        self.next_due_s = min((one.due_s for one in self._waiting), default=math.inf)
        for one in due:
            self._io_thread.submit(one.job, one.log_dir)


@dataclass
class _Topic:
    """An unreachable topic whose files are to be removed.

    `logs`: the partitions that this worker has open. `earlier`: those that a dead predecessor of this
    worker had open, and this worker has not.
    `before_renames`: steps to finish before the first directory is renamed. `number`: how many removals had
    begun, including this one.
    """

    name: str
    topic_id: bytes
    delay_ms: int
    logs: list[PartitionLog]
    earlier: list[TakenAway]
    before_renames: Iterable[None]
    number: int
    was_moving: bool
    steps: Iterator[None] = field(default=iter(()), init=False)


@dataclass
class _Listing:
    """Partition directories by topic name. `removals`: how many removals had begun before the listing."""

    removals: int
    directories: dict[str, list[tuple[LogDirectory, str, int]]] = field(default_factory=dict)
    failure: OSError | None = None


@dataclass(eq=False)
class Removal:
    """Renames directories of partitions that are no longer served; deletes files later (`deletions`).

    A topic may have thousands of partitions, so a removal is done in steps, between which the log appends.
    The slots of its partitions are free when its last directory is renamed. `_logs`: the worker's partitions
    by slot, as its LogManager keeps them. Directories that an earlier run renamed and did not delete are
    deleted when this object is made.
    """

    _dirs: Sequence[LogDirectory]
    _logs: Mapping[int, PartitionLog]
    _turn: AppendTurn
    _io_thread: IoThread
    _slots: SlotAllocator
    _checkpoints: Checkpointing
    _open_partitions: OpenPartitions
    _under_way: dict[bytes, _Topic] = field(default_factory=dict)  # by topic id
    _begun: int = 0
    _listing: _Listing | None = None  # serves all removals that had begun before it

    def __post_init__(self) -> None:
        self.deletions = DelayedDeletions(self._io_thread)
        self._queue_old_deletions()

    # ---- topics ----

    def begin(
        self,
        name: str,
        topic_id: bytes,
        delay_ms: int,
        logs: list[PartitionLog],
        earlier: list[TakenAway],
        before_renames: Iterable[None],
    ) -> None:
        """Register a deleted topic for `removing`. Its files are deleted `delay_ms` after their rename."""
        self._begun += 1
        was_moving = any(log.is_moving for log in logs)
        topic = _Topic(name, topic_id, delay_ms, logs, earlier, before_renames, self._begun, was_moving)
        topic.steps = self._steps(topic)
        self._under_way[topic_id] = topic

    def is_under_way(self, topic_id: bytes) -> bool:
        return topic_id in self._under_way

    def unfinished(self, name: str | None = None) -> list[bytes]:
        """Return the ids of the topics being removed; with `name`, only of those with that name."""
        return [one.topic_id for one in self._under_way.values() if name is None or one.name == name]

    def removing(self, topic_id: bytes) -> Generator[None, None, None]:
        """Do a removal's remaining steps, which several callers may share. Raises OSError at the end."""
        while (topic := self._under_way.get(topic_id)) is not None:
            try:
                next(topic.steps)
            except StopIteration:
                self._end(topic_id)
            except OSError:
                self._end(topic_id)
                raise
            else:
                yield

    def _end(self, topic_id: bytes) -> None:
        del self._under_way[topic_id]
        if not self._under_way:
            self._listing = None

    def _steps(self, topic: _Topic) -> Generator[None, None, None]:
        """Rename a topic's directories, close its files, forget its offsets, and free its slots.

        Renames come first: files are synced before they are closed, and a rename would wait for the sync.

        After a kill the slots still show the topic as deleted. By them a successor recognises the topic's
        directories that were not renamed (`SlotAllocator.deleted`).
        """
        yield from topic.before_renames
        if topic.was_moving:
            # A directory may have got another name since it was listed.
            self._listing = None
        for log in topic.logs:
            self._checkpoints.forget(log.state.table_slot)
            self._open_partitions.forget(log)
            yield
        numbers = {log.partition for log in topic.logs} | {one.number for one in topic.earlier}
        failure = yield from self._renaming(topic, numbers)
        for log in topic.logs:
            self._open_partitions.end(log)
            yield
        for number in numbers:
            # The name may belong to another topic by now: then its offsets stay.
            for log_dir in self._dirs:
                path = log_dir.path / names.partition_name(topic.name, number)
                if not log_dir.failed and not is_directory(path):
                    log_dir.forget((topic.name, number))
            yield
        for log in topic.logs:
            self._slots.give_back(log.state.table_slot, log.state.generation)
        for one in topic.earlier:
            self._slots.give_back(one.slot, one.generation)
        if failure is not None:
            raise failure

    def _renaming(self, topic: _Topic, numbers: set[int]) -> Generator[None, None, OSError | None]:
        """Rename the topic's directories; add their partitions to `numbers`. Return an error, if any."""
        logs = {log.partition: log for log in topic.logs}
        failures: dict[LogDirectory, OSError] = {}
        if self._listing is None or self._listing.removals < topic.number:
            self._listing = yield from self._listed()
        for log_dir, name, number in self._listing.directories.get(topic.name, ()):
            directory = log_dir.path / name
            try:
                if log_dir not in failures and self._is_of(topic, directory, logs.get(number)):
                    doomed = self._rename(directory, names.DELETE_SUFFIX)
                    self.deletions.add(topic.delay_ms, log_dir.number, partial(remove_tree, doomed))
                    numbers.add(number)
            except OSError as error:
                failures[log_dir] = error
                self._report(log_dir, error)
            yield
        return next(iter(failures.values()), self._listing.failure)

    @staticmethod
    def _is_of(topic: _Topic, directory: Path, log: PartitionLog | None) -> bool:
        """Return whether the directory has the topic's id, or has none but is the directory of `log`."""
        holder = topic_id_if_any(directory)
        if holder is None and log is not None:
            return log.directory == directory and is_directory(directory)
        return holder == topic.topic_id

    def _report(self, log_dir: LogDirectory, error: OSError) -> None:
        if error.errno not in PASSING:
            self._turn.storage_failed(log_dir.number, error.errno or errno.EIO)

    def _listed(self) -> Generator[None, None, _Listing]:
        """List this worker's directories of the topics being removed. Such topics get no new directories."""
        listing = _Listing(self._begun)
        wanted = {topic.name for topic in self._under_way.values()}
        for log_dir in self._dirs:
            try:
                there = log_dir.names()
            except OSError as error:
                listing.failure = error
                self._report(log_dir, error)
                continue
            for at, name in enumerate(there):
                if at % NAMES_AT_ONCE == 0:
                    yield
                if name.endswith((names.DELETE_SUFFIX, names.STRAY_SUFFIX)):
                    continue
                with contextlib.suppress(names.NotAPartition):
                    parsed = names.parse_partition(name)
                    if parsed.topic in wanted and log_dir.worker.owns(parsed.topic, parsed.partition):
                        found = listing.directories.setdefault(parsed.topic, [])
                        found.append((log_dir, name, parsed.partition))
        return listing

    def setting_strays_aside(self, topics: dict[str, bytes]) -> Generator[None, None, None]:
        """Rename partition directories without a topic, and forget their checkpointed offsets.

        To be called when every existing topic has been opened. `topics` has the topics' ids by name. Topics
        may be created and deleted between the steps.
        """
        known: PartitionMap[str] = PartitionMap()
        for at, (slot, log) in enumerate(list(self._logs.items())):
            known[log.topic, log.partition] = slot
            if at % NAMES_AT_ONCE == 0:
                yield
        for log_dir in self._dirs:
            unknown = []
            for at, (name, parsed) in enumerate(log_dir.own_partitions()):
                if not parsed.suffix and (parsed.topic, parsed.partition) not in known:
                    unknown.append((log_dir.path / name, (parsed.topic, parsed.partition)))
                if at % NAMES_AT_ONCE == 0:
                    yield
            strays: Counter[str] = Counter()
            for directory, key in unknown:
                strays[key[0]] += self._set_aside_if_stray(log_dir, directory, key, topics)
                yield
            for topic, count in sorted((+strays).items()):
                _log.warning(
                    "%s: %d partition(s) of %s belong to no topic and are renamed to …%s. Nobody reads them: "
                    "delete them when nothing is missed",
                    *(log_dir.path, count, topic, names.STRAY_SUFFIX),
                )
            for offsets in list(log_dir.known.values()):
                for at, key in enumerate(list(offsets)):
                    is_unknown = key not in known and key[0] not in topics
                    if is_unknown and not is_directory(log_dir.path / names.partition_name(*key)):
                        log_dir.forget(key)
                    if at % NAMES_AT_ONCE == 0:
                        yield

    def _set_aside_if_stray(
        self, log_dir: LogDirectory, directory: Path, key: tuple[str, int], topics: dict[str, bytes]
    ) -> bool:
        """Return whether it was a stray."""
        holder = topic_id_if_any(directory)
        is_open = any((log.topic_id, log.partition) == (holder, key[1]) for log in self._logs.values())
        if is_open or holder in self._under_way or not is_directory(directory):
            return False
        # A topic that was undeleted may have both a slot that is deleted and one that is live.
        if holder in self._slots.deleted and holder != topics.get(key[0]):
            # A predecessor was killed while it removed the topic.
            doomed = self._rename(directory, names.DELETE_SUFFIX)
            self.deletions.add(0, log_dir.number, partial(remove_tree, doomed))
            is_stray = False
        elif key[0] not in topics or holder not in (None, topics[key[0]]):
            self._rename(directory, names.STRAY_SUFFIX)
            is_stray = True
        else:
            return False
        log_dir.forget(key)
        return is_stray

    def set_aside(self, directory: Path) -> None:
        renamed = self._rename(directory, names.STRAY_SUFFIX)
        _log.warning("%s belongs to no topic and is renamed to %s", directory, renamed.name)

    def _rename(self, directory: Path, suffix: str) -> Path:
        parsed = names.parse_partition(directory.name)
        renamed = directory.with_name(names.renamed(parsed.topic, parsed.partition, uuid.uuid4().hex, suffix))
        return directory.rename(renamed)

    def _queue_old_deletions(self) -> None:
        for log_dir in self._dirs:
            for name, parsed in log_dir.own_partitions(names.DELETE_SUFFIX):
                self.deletions.add(0, log_dir.number, partial(remove_tree, log_dir.path / name))
                if not is_directory(log_dir.path / names.partition_name(parsed.topic, parsed.partition)):
                    # The last run ended before its checkpoints were written without this partition.
                    log_dir.forget((parsed.topic, parsed.partition))
