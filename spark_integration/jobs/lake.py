"""The directory of an archive: runs of Parquet files that become visible whole, or not at all.

    <archive>/
      data -> _generations/0000000003     what readers see: spark.read.parquet("<archive>/data")
      _generations/0000000003/
        run=0000000012/_archive.json      which offsets of which topic the run has
        run=0000000012/topic=…/date=…/*.parquet
      _making/                            runs being written; emptied when the next job begins
      _lock

A run is added by renaming its directory, with its state inside it, into the generation: that is one step, so
data and state never disagree. A compaction makes another generation, of links to the files that stay and of
the new ones, and renames the link `data`. Readers see either generation. Run numbers are never used twice:
a reader that lists directories while the link changes may fail with a missing file, and never mixes two
generations. The generation before stays until the next compaction, for queries that began on its real path.

Knows nothing of Spark. Needs a file system that the driver and the executors see as the same directory.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from spark_integration.jobs.frame import JobError

DATA = "data"
GENERATIONS = "_generations"
MAKING = "_making"
LOCK = "_lock"
STATE = "_archive.json"
FORMAT = 1
_RUN = "run="
_DIGITS = 10
_HIDDEN = ("_", ".")

Log = tuple[str, str | None, int]
"""A partition of one topic: name, id (None if the broker has no ids) and number."""


class Span(msgspec.Struct, frozen=True):
    """The offsets [start, end) of a partition that a run covers, and the run's number of records in them."""

    topic: str
    topic_id: str | None
    partition: int
    start: int
    end: int
    records: int

    @property
    def log(self) -> Log:
        return self.topic, self.topic_id, self.partition


class State(msgspec.Struct, frozen=True):
    """The content of a run's `_archive.json`. `is_compacted`: the run was made of other runs."""

    format: int
    run: int
    spans: tuple[Span, ...]
    is_compacted: bool = False

    @property
    def records(self) -> int:
        return sum(span.records for span in self.spans)


class Run(msgspec.Struct, frozen=True):
    """A run that readers see."""

    path: Path
    state: State

    def files(self) -> list[Path]:
        """Return the run's data files, sorted."""
        return sorted(visible_files(self.path))


class Lake:
    """An archive that only this process may change; made by `opened`. Readers are given the path `data`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / DATA
        self._making = path / MAKING

    def runs(self) -> list[Run]:
        """Return the runs that readers see, oldest first. Raises JobError, OSError."""
        found = [_run(path) for path in self.data.iterdir() if path.name.startswith(_RUN)]
        return sorted(found, key=lambda run: run.state.run)

    def ends(self) -> dict[Log, int]:
        """Return, for each log in the runs, the offset at which the next run continues."""
        ends: dict[Log, int] = {}
        for run in self.runs():
            for span in run.state.spans:
                ends[span.log] = max(span.end, ends.get(span.log, 0))
        return ends

    def new_place(self) -> Path:
        """Make a directory that readers do not see, for a run to be written into."""
        place = self._making / uuid.uuid4().hex
        place.mkdir()
        return place

    def drop(self, place: Path) -> None:
        """Remove a directory that `new_place` made and `commit` did not take."""
        shutil.rmtree(place, ignore_errors=True)

    def commit(self, place: Path, spans: Sequence[Span]) -> Run:
        """Make a run of the files in the place; durable on return."""
        number = self._next_number()
        _finish(place, State(FORMAT, number, tuple(spans)))
        final = self.data / _run_name(number)
        place.rename(final)
        sync(self.data)
        return _run(final)

    def replace(self, old: Sequence[Run], place: Path) -> Run:
        """Replace the `old` runs by one run, made of the files in `place`; durable on return.

        All other runs stay: the new generation gets hard links to their files.
        """
        number = self._next_number()
        spans = joined([span for run in old for span in run.state.spans])
        _finish(place, State(FORMAT, number, spans, is_compacted=True))
        generation = self.new_place()
        replaced = {run.path.name for run in old}
        for run in self.runs():
            if run.path.name not in replaced:
                _link_tree(run.path, generation / run.path.name)
        place.rename(generation / _run_name(number))
        sync(generation)
        before = self._current()
        final = self.path / GENERATIONS / _number_name(int(before.name) + 1)
        generation.rename(final)
        sync(final.parent)
        self._point_to(final)
        for other in (self.path / GENERATIONS).iterdir():
            if other.name not in (before.name, final.name):
                shutil.rmtree(other)
        return _run(self.data / _run_name(number))

    def begin(self) -> None:
        """Make the directories, and remove the leftovers of a job that was killed. Raises JobError."""
        generations = self.path / GENERATIONS
        self._check_link(generations)
        generations.mkdir(exist_ok=True)
        # The JVM of a killed job may still write there for a moment; then something stays.
        shutil.rmtree(self._making, ignore_errors=True)
        self._making.mkdir(exist_ok=True)
        if not self.data.is_symlink():
            first = generations / _number_name(0)
            first.mkdir(exist_ok=True)
            sync(generations)
            self._point_to(first)
        current = int(self._current().name)
        for other in generations.iterdir():
            if int(other.name) > current:
                shutil.rmtree(other)

    def _check_link(self, generations: Path) -> None:
        """Raise JobError if there are runs but no link `data`, since `begin` could then delete the runs."""
        if self.data.is_symlink() or not generations.exists():
            return
        found = sorted(one.name for one in generations.iterdir() if any(one.iterdir()))
        if found:
            raise JobError(
                f"{self.data} is not the symbolic link to one of {generations}, perhaps after a copy without "
                f"links. If {found[-1]} is whole, remove {DATA} if it exists and make the link again: "
                f"ln -s {GENERATIONS}/{found[-1]} {self.data}"
            )

    def _current(self) -> Path:
        return self.path / self.data.readlink()

    def _point_to(self, generation: Path) -> None:
        link = self._making / uuid.uuid4().hex
        link.symlink_to(generation.relative_to(self.path))
        link.rename(self.data)
        sync(self.path)

    def _next_number(self) -> int:
        return max((run.state.run for run in self.runs()), default=-1) + 1


@contextmanager
def opened(path: Path) -> Iterator[Lake]:
    """Lock the archive, and make it if it is not there. Raises JobError, OSError."""
    _check_is_ours(path)
    path.mkdir(parents=True, exist_ok=True)
    with locked(path, LOCK):
        lake = Lake(path)
        lake.begin()
        yield lake


@contextmanager
def locked(path: Path, name: str) -> Iterator[None]:
    """Hold the lock on the file `name` in `path`. Raises JobError if another process holds the lock.

    If a process is killed, the kernel frees its lock.
    """
    with (path / name).open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise JobError(
                f"{path} is being written by another job ({lock.read().strip() or 'which has just begun'}). "
                "Wait until it has ended, or stop it"
            ) from None
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}")
        lock.flush()
        yield


def joined(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return one span for each log, from its first offset to its last."""
    found: dict[Log, Span] = {}
    for span in spans:
        other = found.get(span.log, span)
        records = span.records + (other.records if span.log in found else 0)
        found[span.log] = Span(*span.log, min(span.start, other.start), max(span.end, other.end), records)
    return tuple(found[log] for log in sorted(found, key=repr))


def visible_files(path: Path) -> list[Path]:
    """Return the files below `path` that Spark reads. It ignores files and directories named `_*` or `.*`."""
    found = []
    for parent, directories, names in os.walk(path):
        directories[:] = [name for name in directories if not name.startswith(_HIDDEN)]
        found += [Path(parent, name) for name in names if not name.startswith(_HIDDEN)]
    return found


def sync(path: Path) -> None:
    """Sync a file or a directory: its content is on disk on return."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _check_is_ours(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise JobError(f"{path} is not a directory. Name one for the archive, it may be a new one")
    if path.is_dir() and any(path.iterdir()) and not (path / LOCK).exists():
        raise JobError(f"{path} has files, but is not an archive. Name an empty or a new directory")


def _finish(place: Path, state: State) -> None:
    """Write the state next to the data files, and sync all files."""
    for hidden in place.rglob(".*.crc"):
        # Hadoop's own checksums, which would not follow a hard link to a data file.
        hidden.unlink()
    (place / STATE).write_bytes(msgspec.json.format(msgspec.json.encode(state)))
    sync_tree(place)


def sync_tree(place: Path) -> None:
    """Sync all files and directories below the place."""
    for parent, _, names in os.walk(place, topdown=False):
        for name in names:
            sync(Path(parent, name))
        sync(Path(parent))


def _run(path: Path) -> Run:
    try:
        state = msgspec.json.decode((path / STATE).read_bytes(), type=State)
    except (FileNotFoundError, msgspec.DecodeError) as error:
        raise JobError(
            f"{path} has no readable {STATE} ({error}): it is not a run of an archive. Move it out of there"
        ) from error
    if state.format != FORMAT:
        raise JobError(f"{path / STATE} has format {state.format}, this version knows {FORMAT} only")
    return Run(path, state)


def _link_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=os.link)
    for parent, _, _ in os.walk(target, topdown=False):
        sync(Path(parent))


def _number_name(number: int) -> str:
    return f"{number:0{_DIGITS}d}"


def _run_name(number: int) -> str:
    return f"{_RUN}{_number_name(number)}"
