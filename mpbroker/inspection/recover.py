"""`mpbroker log recover`: recovers log directories as a broker's start does, then closes them cleanly.

It runs the code of a start and a stop, which writes journals into segments (`log.directories`), opens
partitions (`log.recovery.log_loader`) with their topics' settings from the metadata, and closes them. (Kafka
has no such tool; its LogManager.loadLogs recovers only at a start.) A dry run works on a copy, with hard
links to the segments that no recovery changes.
"""

from __future__ import annotations

import logging
import os
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import TopicConfig, TopicConfigError, resolve
from mpbroker.coordinator.metadata.replay import replay
from mpbroker.coordinator.metadata.state import MetadataState
from mpbroker.inspection.directory import locked
from mpbroker.ipc import log_levels
from mpbroker.ipc.process import FatalError
from mpbroker.log.directories.log_directory import LogDirectory
from mpbroker.log.io.io_thread import IoThread
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.log.recovery.log_loader import Known, PartitionDamaged, load
from mpbroker.protocol.topic_names import METADATA_TOPIC, METADATA_TOPIC_ID, TopicPartition
from mpbroker.storage import names
from mpbroker.storage.checkpoints import (
    CheckpointCorrupt,
    Offsets,
    read_offsets,
    read_topic_id,
)
from mpbroker.storage.directory_layout import write_clean_shutdown
from mpbroker.storage.directory_lock import is_in_use, restricted_new_files
from mpbroker.storage.segments import segments_of
from mpbroker.storage.strict_stat import is_there

METADATA: TopicPartition = (METADATA_TOPIC, 0)
Say = Callable[[str], None]
_log = logging.getLogger("mpbroker")


class CannotRecover(Exception):
    """Raised when a recovery is refused. The message has the reason and advice."""


class Change(msgspec.Struct):
    """A changed file. `what` is `cut`, `made`, `removed` or `written`."""

    file: str
    what: str
    bytes_before: int
    bytes_after: int

    @property
    def is_derived(self) -> bool:
        """Return whether the file is derived from records, and is rebuilt if it does not match them."""
        return self.file.endswith((*names.INDEX_SUFFIXES, names.SNAPSHOT_SUFFIX, names.LEADER_EPOCHS))


class Recovered(msgspec.Struct):
    """The recovery of a partition. `problem`: why the partition was not recovered."""

    topic: str
    partition: int
    log_start: int = -1
    log_end: int = -1
    problem: str = ""
    changes: list[Change] = msgspec.field(default_factory=list)


class Report(msgspec.Struct):
    """The recovery of a log directory. `notes`: the warnings that a broker would have logged."""

    path: str
    was_stopped_in_order: bool
    partitions: list[Recovered]
    changes: list[Change]
    notes: list[str]


class _Seen(NamedTuple):
    size: int
    mtime_ns: int
    inode: int


def recover(paths: Sequence[Path], say: Say, *, is_dry: bool) -> list[Report]:
    """Recover all directories of one broker together. Raises CannotRecover, FatalError, OSError."""
    with _locked(paths):
        if not is_dry:
            return _recovered(paths, paths, say)
        with _copies(paths, say) as copies:
            return _recovered(copies, paths, say)


@contextmanager
def _locked(paths: Sequence[Path]) -> Iterator[None]:
    for path in paths:
        if not is_there(path / names.META_PROPERTIES):
            raise CannotRecover(f"{path} has no {names.META_PROPERTIES}: name a directory of log.dirs")
        if is_in_use(path):
            raise CannotRecover(
                f"a broker has {path} open. Stop it first; it recovers by itself at its start"
            )
    with locked(paths), restricted_new_files():
        yield


# ---- a start and a stop


class _Run:
    def __init__(self, paths: Sequence[Path], say: Say) -> None:
        self.say = say
        self.config = BrokerConfig(log_dirs=tuple(map(str, paths)))
        self.dirs = [
            LogDirectory(number, path, group=_is_group(path), failed=False)
            for number, path in enumerate(paths)
        ]
        self.done: list[dict[TopicPartition, Recovered]] = [{} for _ in paths]
        self.ends: list[dict[TopicPartition, PartitionLog]] = [{} for _ in paths]
        self.metadata: MetadataState | None = None

    def run(self) -> None:
        """Recover all partitions as at a start, then close them as at a stop. Raises FatalError, OSError."""
        for log_dir in self.dirs:
            log_dir.take_over(self.say)
        everything = [
            (log_dir, directory, (parsed.topic, parsed.partition))
            for log_dir in self.dirs
            for directory, parsed in sorted(log_dir.partitions())
            if not parsed.suffix
        ]
        # Recover the metadata first: the other partitions are recovered by its settings.
        for log_dir, directory, key in sorted(everything, key=lambda one: one[2] != METADATA):
            self.say(f"{directory.name}")
            self.done[log_dir.number][key] = self._one(log_dir, directory, key)
        self._close()

    def _one(self, log_dir: LogDirectory, directory: Path, key: TopicPartition) -> Recovered:
        try:
            topic_id = read_topic_id(directory)
            if topic_id is None and key == METADATA:
                topic_id = METADATA_TOPIC_ID
            log = load(
                directory,
                *key,
                topic_id or bytes(16),
                self._config_of(topic_id),
                self._known(log_dir, key),
                self.say,
            )
            self.ends[log_dir.number][key] = log
            if key == METADATA:
                self._read_metadata(log_dir, log)
            log.close_cleanly()
        except (PartitionDamaged, CheckpointCorrupt, OSError) as problem:
            return Recovered(*key, problem=str(problem))
        return Recovered(*key, log.log_start, log.state.log_end)

    def _known(self, log_dir: LogDirectory, key: TopicPartition) -> Known:
        return Known(
            clean=log_dir.clean,
            recovery_point=log_dir.known[names.RECOVERY_POINTS].get(key, 0),
            durable=log_dir.durable(key),
            log_start=log_dir.known[names.LOG_STARTS].get(key, 0),
            producer_expiration_ms=self.config.producer_id_expiration_ms,
        )

    def _config_of(self, topic_id: bytes | None) -> TopicConfig:
        topic = self.metadata.topics.get(topic_id or b"") if self.metadata is not None else None
        try:
            return resolve(self.config, topic.configs if topic is not None else {})
        except TopicConfigError as error:
            _log.warning("%s: %s", topic.name if topic is not None else "", error)
            return resolve(self.config, {})

    def _read_metadata(self, log_dir: LogDirectory, log: PartitionLog) -> None:
        """Read topics' settings from the metadata log. If it cannot be read, warn and use the defaults."""
        log.state.describe(0, METADATA_TOPIC_ID, 0, 1, 0, 0, log_dir.number, log.log_start)
        log.state.all_is_durable(log.state.log_end)
        try:
            self.metadata = replay(self.config.log_dirs, log.state.published)[0]
        except FatalError as error:
            _log.warning(
                "the settings of topics are not known, and those of a new broker are taken: %s", error
            )

    def _close(self) -> None:
        """Write checkpoints and mark clean stops as LogManager.close_cleanly does. Raises OSError."""
        io_thread, ships = IoThread(), _ships(self.dirs[0].path)
        for log_dir in self.dirs:
            logs = self.ends[log_dir.number].items()
            good = {key: log for key, log in logs if not self.done[log_dir.number][key].problem}
            ends = {key: log.state.log_end for key, log in good.items()}
            log_dir.checkpoint(names.RECOVERY_POINTS, ends, io_thread)
            if ships:
                # Readers of the files must not see what the object store may lack.
                marks = log_dir.known[names.HIGH_WATERMARKS]
                ends = {key: min(end, marks.get(key, 0)) for key, end in ends.items()}
            log_dir.checkpoint(names.HIGH_WATERMARKS, ends, io_thread)
            log_dir.checkpoint(names.LOG_STARTS, {key: log.log_start for key, log in good.items()}, io_thread)
        io_thread.close()
        for _, problem in io_thread.failures():
            raise problem
        for log_dir in self.dirs:
            log_dir.journal.empty()
            if not any(one.problem for one in self.done[log_dir.number].values()):
                write_clean_shutdown(log_dir.path)


def _is_group(path: Path) -> bool:
    """Return whether the last broker on `path` made high watermarks durable (log.flush.policy=group)."""
    return is_there(path / names.DURABLE_MARK) or any(path.glob("mpbroker.journal*"))


class _Owner(msgspec.Struct):
    """The field of the owner's file that `_ships` reads (`mpbroker.remote.ledger.owner`)."""

    acks: str = ""


def _ships(path: Path) -> bool:
    """Return whether the last broker acknowledged only what was in its object store, too."""
    try:
        return msgspec.json.decode((path / names.REMOTE_OWNER).read_bytes(), type=_Owner).acks == "ledger"
    except FileNotFoundError:
        return False
    except msgspec.DecodeError:
        return True


# ---- the reports


def _recovered(paths: Sequence[Path], called: Sequence[Path], say: Say) -> list[Report]:
    """Recover `paths` and report them under the names in `called`, by which the operator knows them."""

    def in_their_words(text: str) -> str:
        for path, name in zip(paths, called, strict=True):
            text = text.replace(str(path), str(name))
        return text

    before = [_files(path) for path in paths]
    clean = [names.CLEAN_SHUTDOWN in seen for seen in before]
    with _listening() as notes:
        run = _Run(paths, lambda text: say(in_their_words(text)))
        try:
            run.run()
        except FatalError as error:
            raise FatalError(in_their_words(str(error)), error.status) from error
    rest_of_notes = [in_their_words(note) for note in notes]
    reports = []
    for number, (path, name) in enumerate(zip(paths, called, strict=True)):
        changes = _changes(before[number], _files(path))
        partitions = [run.done[number][key] for key in sorted(run.done[number])]
        for one in partitions:
            own = f"{names.partition_name(one.topic, one.partition)}/"
            one.changes = [change for change in changes if change.file.startswith(own)]
            one.problem = in_their_words(one.problem)
        rest = [change for change in changes if "/" not in change.file]
        mine = [note for note in rest_of_notes if str(name) in note or number == 0]
        reports.append(Report(str(name), clean[number], partitions, rest, mine))
        rest_of_notes = [note for note in rest_of_notes if note not in mine]
    return reports


@contextmanager
def _listening() -> Iterator[list[str]]:
    """Collect the warnings of all loggers (most come from `mpbroker.log`) instead of printing them."""
    notes: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            notes.append(record.getMessage())

    everything = logging.getLogger(log_levels.ALL)
    listener, propagates = Listener(logging.WARNING), everything.propagate
    everything.addHandler(listener)
    everything.propagate = False
    try:
        yield notes
    finally:
        everything.removeHandler(listener)
        everything.propagate = propagates


def _files(path: Path) -> dict[str, _Seen]:
    """Return the files of a log directory and of its partitions, by their paths relative to the directory."""
    found = {}
    for directory in (path, *_partitions(path)):
        for entry in directory.iterdir():
            if entry.is_file():
                status = entry.stat()
                seen = _Seen(status.st_size, status.st_mtime_ns, status.st_ino)
                found[str(entry.relative_to(path))] = seen
    return found


def _partitions(path: Path) -> list[Path]:
    found = []
    for entry in path.iterdir():
        try:
            names.parse_partition(entry.name)
        except names.NotAPartition:
            continue
        if entry.is_dir():
            found.append(entry)
    return sorted(found)


def _changes(before: dict[str, _Seen], after: dict[str, _Seen]) -> list[Change]:
    found = []
    for file in sorted(before.keys() | after.keys()):
        old, new = before.get(file), after.get(file)
        if old == new or file == names.LOCK:
            continue
        if old is None or new is None:
            what = "made" if old is None else "removed"
        else:
            is_shorter = file.endswith(names.LOG_SUFFIX) and new.size < old.size
            what = "cut" if is_shorter else "written"
        found.append(Change(file, what, old.size if old else 0, new.size if new else 0))
    return found


# ---- a dry run


@contextmanager
def _copies(paths: Sequence[Path], say: Say) -> Iterator[list[Path]]:
    """Yield copies of the directories, each inside its original; remove them at the end. Raises OSError."""
    made: list[Path] = []
    try:
        for path in paths:
            copy = path / names.DRY_RUN
            shutil.rmtree(copy, ignore_errors=True)
            copy.mkdir()
            made.append(copy)
            say(f"copying what a recovery of {path} may write to")
            _copy(path, copy)
        yield made
    finally:
        for copy in made:
            shutil.rmtree(copy)


def _copy(path: Path, copy: Path) -> None:
    try:
        points = read_offsets(path / names.RECOVERY_POINTS)
    except CheckpointCorrupt:
        points = Offsets()
    is_clean = is_there(path / names.CLEAN_SHUTDOWN)
    for entry in path.iterdir():
        if entry.is_file():
            shutil.copy2(entry, copy)
    for directory in _partitions(path):
        parsed = names.parse_partition(directory.name)
        bases = segments_of(directory)
        point = points.get((parsed.topic, parsed.partition), 0)
        first = len(bases) - 1 if is_clean else max(bisect_right(bases, point) - 1, 0)
        shared = {names.segment_name(base) for base in bases[:first]}
        target = copy / directory.name
        target.mkdir()
        for entry in directory.iterdir():
            if entry.name in shared:
                os.link(entry, target / entry.name)
            elif entry.is_file():
                shutil.copy2(entry, target)
