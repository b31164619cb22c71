"""The instant of a cut: what all files are while every process but the tier and the supervisor is stopped.

The supervisor stops the processes (`mpbroker.supervisor.pause`). So files are as after a kill of all of them:
a transaction, an offset of a group and the records that it is about are of one moment. In the pause files are
listed and opened; their bytes are read later. They stay what they are: a file grows at its end, or is
replaced by another one, or is deleted, while this process has it open.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from mpbroker.ipc.control_client import ControlClient, ControlError
from mpbroker.ipc.table import PartitionFlag, read_partition
from mpbroker.ipc.topology import slots_given
from mpbroker.remote.cuts.bundles import Opened, is_same
from mpbroker.remote.cuts.files import Found, FoundFiles, find_files
from mpbroker.remote.cuts.manifest import CutFile, CutPartition
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.storage.checkpoints import CheckpointCorrupt, opened, read_topic_id
from shm.clock import wall_ms
from shm.table import SlotBusy, SlotTable

PAUSE: Final = "pause-for-cut"
# What this process has open besides the files of a cut.
_OTHER_FILES: Final = 512
_STATES: Final = PartitionFlag.PARTITION_LIVE | PartitionFlag.PARTITION_OFFLINE


class CutSkipped(Exception):
    """Raised where this cut cannot be made now, and the next one may be; the message says why."""


class Instant(NamedTuple):
    """What was found: all files, those to be read, and which partitions have segments in the ledger.

    `paused_s`: how long the processes were stopped, `taken_ms` the time in the middle of it.
    """

    taken_ms: int
    paused_s: float
    found: FoundFiles
    opened: list[Opened]
    remote: list[CutPartition]

    def close(self) -> None:
        """Close the files. Idempotent."""
        while self.opened:
            os.close(self.opened.pop().fd)


class Broker:
    """Where the broker's files are, and what knows of them. `names()` are topics' names by their ids."""

    def __init__(
        self,
        log_dirs: Sequence[Path],
        table: SlotTable,
        log_workers: int,
        names: Callable[[], Mapping[bytes, str]],
    ) -> None:
        self.log_dirs = log_dirs
        self._table = table
        self._log_workers = log_workers
        self._names = names

    def remote(self, state: RemoteState) -> Iterator[CutPartition]:
        """Yield the partitions with segments in the ledger, as their directories are now."""
        left = {key: segments for key, segments in list(state.segments.items()) if segments}
        names = self._names()
        for slot in slots_given(self._table, self._log_workers) if left else ():
            try:
                now = read_partition(self._table, slot)
            except SlotBusy:
                # Its writer was stopped meanwhile. Its directory says the same.
                continue
            name = names.get(now.topic_id)
            key = now.topic_id, now.partition
            if name is not None and now.flags & _STATES and key in left:
                end = left.pop(key)[-1].end
                yield CutPartition(f"{now.log_dir}/{name}-{now.partition}", *key, end)
        for key, segments in left.items():
            for number, log_dir in enumerate(self.log_dirs):
                name = f"{segments[-1].topic}-{key[1]}"
                if _id_in(log_dir / name) == key[0]:
                    yield CutPartition(f"{number}/{name}", *key, segments[-1].end)

    def look(self, state: RemoteState) -> tuple[FoundFiles, list[CutPartition]]:
        """List the files of a cut, and which partitions have segments in the ledger. Raises OSError."""
        remote = list(self.remote(state))
        return find_files(self.log_dirs, {one.directory: one.remote_end for one in remote}), remote


def take_instant(
    control: ControlClient, broker: Broker, state: RemoteState, known: Mapping[str, CutFile]
) -> Instant:
    """Have the processes stopped, look at all files, and open those that are not as `known`.

    Raises CutSkipped, OSError.
    """
    files: list[Opened] = []
    try:
        with control.connected() as ask:
            reply = ask(PAUSE)
            if not reply["paused"]:
                raise CutSkipped(str(reply["why"]))
            taken_ms = wall_ms()
            found, remote = broker.look(state)
            _open_changed(found, known, files)
            paused_s = float(ask("resume")["held_s"])
            return Instant(taken_ms, paused_s, found, files, remote)
    except ControlError as error:
        _close(files)
        raise CutSkipped(str(error)) from error
    except BaseException:
        _close(files)
        raise


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


def _open_changed(found: FoundFiles, known: Mapping[str, CutFile], files: list[Opened]) -> None:
    changed = [one for one in found.files.values() if not is_same(known.get(one.path), one)]
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OTHER_FILES
    if len(changed) > limit:
        raise CutSkipped(f"{len(changed)} files have changed, the limit on open files allows {limit}")
    for one in changed:
        files.append(Opened(one, os.open(one.real_path, os.O_RDONLY | os.O_CLOEXEC)))


def _close(files: Sequence[Opened]) -> None:
    for one in files:
        os.close(one.fd)


def _id_in(directory: Path) -> bytes | None:
    try:
        return read_topic_id(directory)
    except (FileNotFoundError, NotADirectoryError, CheckpointCorrupt):
        return None
