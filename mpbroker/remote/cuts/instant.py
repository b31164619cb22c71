"""The instant of a cut: what all files are while every process but the tier and the supervisor is stopped.

The supervisor stops the processes (`mpbroker.supervisor.pause`). So files are as after a kill of all of them:
a transaction, an offset of a group and the records that it is about are of one moment. In the pause files are
listed and opened; their bytes are read later. They stay what they are: a file grows at its end, or is
replaced by another one, or is deleted, while this process has it open.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from mpbroker.ipc.control_client import ControlClient, ControlError
from mpbroker.ipc.metadata import METADATA_SLOT
from mpbroker.ipc.table import PartitionFlag, unpack_partition
from mpbroker.ipc.topology import slots_given
from mpbroker.protocol.topic_names import METADATA_TOPIC, METADATA_TOPIC_ID
from mpbroker.remote.cuts.bundles import UNSURE_NS, Opened, is_same
from mpbroker.remote.cuts.files import (
    Found,
    Listed,
    Look,
    Row,
    find_file,
    is_partition,
    list_directory,
    list_partition,
)
from mpbroker.remote.cuts.manifest import CutFile, CutPartition
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.storage.checkpoints import CheckpointCorrupt, opened, read_topic_id
from mpbroker.storage.names import parse_partition, partition_name
from shm.clock import wall_ms
from shm.table import SlotBusy, SlotTable

PAUSE: Final = "pause-for-cut"
# What this process has open besides the files of a cut.
_OTHER_FILES: Final = 512


class CutSkipped(Exception):
    """Raised where this cut cannot be made now, and the next one may be; the message says why."""


class Instant(NamedTuple):
    """All files as they were in the pause, and the open ones that are still to be read.

    `paused_s`: how long the processes were stopped, `taken_ms` the time in the middle of it. `Shipped` up to
    number `shipped` are in these files; those above it are in entries above `since`.
    """

    taken_ms: int
    paused_s: float
    look: Look
    opened: list[Opened]
    shipped: int = 0
    since: int = 0

    def close(self) -> None:
        """Close the files. Idempotent."""
        while self.opened:
            os.close(self.opened.pop().fd)


class Rows:
    """The rows of all partitions in the table. `names()` are topics' names by their ids."""

    def __init__(self, table: SlotTable, log_workers: int, names: Callable[[], Mapping[bytes, str]]) -> None:
        self._table = table
        self._log_workers = log_workers
        self._names = names

    def all(self) -> dict[str, Row]:
        """Return the rows of open partitions, by their directories."""
        found = {}
        names = {**self._names(), METADATA_TOPIC_ID: METADATA_TOPIC}
        for slot in (METADATA_SLOT, *slots_given(self._table, self._log_workers)):
            payload = self.payload(slot)
            if payload is None:
                continue
            now = unpack_partition(payload)
            name = names.get(now.topic_id)
            if name is not None and now.flags & PartitionFlag.PARTITION_LIVE:
                path = f"{now.log_dir}/{partition_name(name, now.partition)}"
                found[path] = Row(slot, payload, now.topic_id, now.partition)
        return found

    def payload(self, slot: int) -> bytes | None:
        """Return a row's bytes; None if its writer was stopped while it wrote them."""
        try:
            return self._table.read(slot)
        except SlotBusy:
            return None


class Broker:
    """Looks at the log directories of a running broker. `failed()` is a bit set of those that have failed."""

    def __init__(self, log_dirs: Sequence[Path], rows: Rows, failed: Callable[[], int] = int) -> None:
        self.log_dirs = log_dirs
        self._rows = rows
        self._failed = failed

    def look(self, state: RemoteState, former: Look) -> Look:
        """List all files while they change. Partitions without appends since `former` are as they were.

        Compaction may have replaced their segments. The former ones have the same records, for who reads them
        up to the same offset. Raises OSError.
        """
        rows = self._rows.all()
        beside: list[Found] = []
        partitions: dict[str, str] = {}
        names, offline = self._names()
        for number, some in names.items():
            files, directories = list_directory(number, self.log_dirs[number], some)
            beside += files
            partitions |= directories
        topics = {topic for topic, _ in state.segments}
        listed = {}
        for path, directory in partitions.items():
            one, row = former.partitions.get(path), rows.get(path)
            if one is not None and row is not None and one.row == row:
                end = _end_of(state, (row.topic_id, row.partition), row)
                if end == (one.remote.remote_end if one.remote is not None else 0):
                    listed[path] = one
                    continue
            before = _changed_ns(directory)
            remote = _remote_of(state, path, directory, row) if topics else None
            files = list_partition(path, directory, remote)
            # A listing may miss what is renamed meanwhile.
            is_whole = time.time_ns() - before > UNSURE_NS and _changed_ns(directory) == before
            listed[path] = Listed(row if is_whole else None, remote, files)
        return Look(beside, listed, rows, offline)

    def rows(self) -> Look:
        """Look at the rows alone."""
        return Look([], {}, self._rows.all())

    def look_at_rest(
        self, state: RemoteState, former: Look, settled: Container[str], *, is_closed: bool = False
    ) -> Look:
        """List all files while nothing changes. What is in `settled` need not be listed again.

        `settled`: partitions all of whose files the store has. `is_closed`: nobody has the directories open.
        Raises OSError.
        """
        beside: list[Found] = []
        listed = {}
        rows = {}
        names, offline = self._names()
        for number, some in names.items():
            for name in some:
                path = f"{number}/{name}"
                one, before = former.partitions.get(path), former.rows.get(path)
                row = self._now(before)
                if before is not None:
                    # While a row is being written, its former content is still true.
                    rows[path] = row or before
                if one is not None and row is not None and path in settled and one.row == row:
                    listed[path] = one
                elif is_partition(directory := f"{self.log_dirs[number]}/{name}"):
                    remote = _remote_of(state, path, directory, row or before) if state.segments else None
                    listed[path] = Listed(None, remote, list_partition(path, directory, remote))
                elif (found := find_file(path, directory, is_closed=is_closed)) is not None:
                    beside.append(found)
        return Look(beside, listed, rows, offline)

    def _now(self, row: Row | None) -> Row | None:
        """Return the row as it is now; None if it is being written."""
        payload = None if row is None else self._rows.payload(row.slot)
        return None if row is None or payload is None else row._replace(payload=payload)

    def _names(self) -> tuple[dict[int, list[str]], frozenset[int]]:
        """Return what is in each log directory, and the numbers of those that are offline."""
        found, failed = {}, self._failed()
        for number, log_dir in enumerate(self.log_dirs):
            with suppress(OSError):
                if not failed >> number & 1:
                    found[number] = os.listdir(log_dir)  # noqa: PTH208 - all processes wait
        return found, frozenset(range(len(self.log_dirs))) - found.keys()


def take_instant(
    control: ControlClient,
    broker: Broker,
    state: RemoteState,
    known: Mapping[str, CutFile],
    former: Look,
    shipped: Callable[[], tuple[int, int]] = lambda: (0, 0),
) -> Instant:
    """Have the processes stopped, look at all files, and open those that are not as `known`.

    `former` is a look that was taken just before. `shipped()` returns `Instant.shipped` and `since`. Raises
    CutSkipped, OSError.
    """
    files: list[Opened] = []
    settled = {
        path
        for path, one in former.partitions.items()
        if all(is_same(known.get(file.path), file) for file in one.files)
    }
    try:
        with control.connected() as ask:
            reply = ask(PAUSE)
            if not reply["paused"]:
                raise CutSkipped(str(reply["why"]))
            taken_ms, mark = wall_ms(), shipped()
            look = broker.look_at_rest(state, former, settled)
            open_changed(look, former, known, files)
            try:
                paused_s = float(ask("resume")["held_s"])
            except ControlError as error:
                raise CutSkipped(f"the pause did not last until all files were open: {error}") from error
            return Instant(taken_ms, paused_s, look, files, *mark)
    except ControlError as error:
        _close(files)
        raise CutSkipped(str(error)) from error
    except BaseException:
        _close(files)
        raise


def instant_at_rest(
    broker: Broker,
    state: RemoteState,
    known: Mapping[str, CutFile],
    shipped: Callable[[], tuple[int, int]] = lambda: (0, 0),
    *,
    is_closed: bool = False,
) -> Instant:
    """Look at all files while nobody changes partitions: before a start or after a stop of the others.

    `is_closed`: it is after the stop. Raises CutSkipped, OSError.
    """
    files: list[Opened] = []
    nothing = broker.rows()
    mark = shipped()
    try:
        look = broker.look_at_rest(state, nothing, (), is_closed=is_closed)
        open_changed(look, nothing, known, files)
    except BaseException:
        _close(files)
        raise
    return Instant(wall_ms(), 0.0, look, files, *mark)


@contextmanager
def opened_files(files: Iterable[Found]) -> Iterator[list[Opened]]:
    """Open files while their writers run; those that are gone are left out. Raises OSError."""
    with ExitStack() as stack:
        there = []
        for one in files:
            with suppress(FileNotFoundError):
                fd = stack.enter_context(opened(one.real_path))
                now = os.fstat(fd)
                as_opened = one._replace(size=now.st_size, inode=now.st_ino, changed_ns=now.st_ctime_ns)
                there.append(Opened(as_opened, fd))
        yield there


def open_changed(look: Look, former: Look, known: Mapping[str, CutFile], files: list[Opened]) -> None:
    """Open the files that are not as `known`. A partition that is as in `former` has none.

    Raises CutSkipped, OSError.
    """
    listed = (one.files for path, one in look.partitions.items() if one is not former.partitions.get(path))
    changed = [
        one for some in (look.beside, *listed) for one in some if not is_same(known.get(one.path), one)
    ]
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OTHER_FILES
    if len(changed) > limit:
        raise CutSkipped(f"{len(changed)} files have changed, the limit on open files allows {limit}")
    for one in changed:
        files.append(Opened(one, os.open(one.real_path, os.O_RDONLY | os.O_CLOEXEC)))


def _close(files: Sequence[Opened]) -> None:
    for one in files:
        os.close(one.fd)


def _remote_of(state: RemoteState, path: str, directory: str, row: Row | None) -> CutPartition | None:
    """Return what the ledger has of the partition in a directory, by the directory's `partition.metadata`."""
    try:
        topic_id = read_topic_id(directory)
    except (FileNotFoundError, NotADirectoryError, CheckpointCorrupt):
        return None
    key = topic_id or b"", parse_partition(path.partition("/")[2]).partition
    end = _end_of(state, key, row)
    return CutPartition(path, *key, end) if end else None


def _end_of(state: RemoteState, key: tuple[bytes, int], row: Row | None) -> int:
    """Return where the segments in the ledger end; 0 if they are to be removed, so that no cut names them.

    `row` is that of the partition, if it is open.
    """
    if row is not None:
        now = unpack_partition(row.payload)
        if (now.topic_id, now.partition) == key and now.flags & PartitionFlag.PARTITION_REMOTE_DELETED:
            return 0
    segments = state.segments_of(*key)
    return segments[-1].end if segments else 0


def _changed_ns(directory: str) -> int:
    try:
        return Path(directory).stat().st_mtime_ns
    except FileNotFoundError:
        return -1
