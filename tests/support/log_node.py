"""A log process on directories that outlive it, stepped by hand: killed means nothing more is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.topology import LOG
from mpbroker.log.append.turn_journals import journal_ends
from mpbroker.log.process import LogProcess
from mpbroker.storage import journal
from mpbroker.storage.journal import JournalFile
from mpbroker.storage.names import segment_name
from tests.support.log_rig import Rig, end, ensure
from tests.support.log_writer import make_batch
from tests.support.polling import until
from tests.support.stepped_log import settle

OTHER_ID = bytes(range(1, 17))
SEGMENT = "00000000000000000000.log"
HIGH_WATERMARKS = "replication-offset-checkpoint"
STORAGE_ERROR = 56


def wait_for_io(process: LogProcess) -> None:
    until(lambda: process.io_thread.is_idle, "the I/O thread is idle")


class Node:
    """A log process on directories that outlive it."""

    def __init__(self, rig: Callable[..., Rig], tmp_path: Path, dirs: int = 1) -> None:
        self.make = rig
        self.dirs = [tmp_path / f"data{number}" for number in range(dirs)]
        for directory in self.dirs:
            directory.mkdir()
        self._process: LogProcess | None = None

    @property
    def process(self) -> LogProcess:
        assert self._process is not None
        return self._process

    def boot(self, **options: object) -> LogProcess:
        """The whole broker starts."""
        self.crash()
        names = tuple(str(directory) for directory in self.dirs)
        self.rig = self.make(self.dirs[0].name, log_dirs=names, **options)
        self._process = self.rig.in_process()
        return self._process

    def succeed(self) -> LogProcess:
        """Start a successor. Only the log process died, so memory stays."""
        self.crash()
        self.rig.memory.reset_rings_of(LOG)
        self.rig.bind()
        self._process = self.rig.in_process()
        return self._process

    def crash(self) -> None:
        if self._process is not None:
            end(self._process)
        self._process = None

    def stop(self) -> None:
        assert self.process._stop() == 0
        self._process = None

    def checkpoint(self) -> None:
        self.process.manager.checkpoints.write_high_watermarks()
        self.process.manager.checkpoints.write_recovery_points()
        self.process.manager.checkpoints.write_all_log_starts()
        wait_for_io(self.process)

    def open(self, topic: calls.EnsureTopic) -> list[calls.EnsuredPartition]:
        return self.process.manager.ensure(topic).partitions

    def produce(self, target: calls.EnsuredPartition, data: bytes, count: int = 1) -> list[int]:
        """The errors."""
        for _ in range(count):
            self.rig.job([((target.slot, target.slot_generation, 5), data)])
        settle(self.process)
        return [reply.results[0].error for reply in self.rig.replies()]

    def end_of(self, target: calls.EnsuredPartition) -> int:
        return self.rig.partition(target.slot).high_watermark

    def names(self, number: int = 0) -> list[str]:
        return sorted(e.name for e in self.dirs[number].iterdir() if e.is_dir())

    def offsets(self, name: str = HIGH_WATERMARKS, number: int = 0) -> list[str]:
        lines = (self.dirs[number] / name).read_text().splitlines()[2:]
        return [line for line in lines if not line.startswith("mpbroker:crc ")]


N = TypeVar("N", bound=Node)


class Journaled(Node):
    """A node whose journal is in use as soon as it has booted."""

    def boot(self, **options: object) -> LogProcess:
        process = super().boot(**options)
        wait_for_io(process)
        process.manager.journals.use()
        return process

    @property
    def path(self) -> Path:
        return self.dirs[0] / journal.NAME

    def ends(self, number: int = 0) -> tuple[int, int]:
        return journal_ends(self.process.turn, number)

    def segment(self, partition: int = 0, base: int = 0) -> Path:
        return self.dirs[0] / f"t-{partition}" / segment_name(base)

    def power_cut(self, partitions: int = 1) -> list[bytes]:
        """The segments lose everything; returns what they had."""
        self.crash()
        had = []
        for number in range(partitions):
            had.append(self.segment(number).read_bytes())
            os.truncate(self.segment(number), 0)
        return had


MakeNode = Callable[..., Node]
MakeJournaled = Callable[..., Journaled]


def nodes(kind: type[N], rig: Callable[..., Rig], tmp_path: Path) -> Iterator[Callable[..., N]]:
    """Make nodes for a fixture; all of them end with the test."""
    made: list[N] = []

    def build(dirs: int = 1) -> N:
        made.append(kind(rig, tmp_path, dirs))
        return made[-1]

    yield build
    for one in made:
        one.crash()


def again(*, new_from: int | None = 0) -> calls.EnsureTopic:
    """Another topic of the same name."""
    return calls.EnsureTopic("t", OTHER_ID, [0], {}, 5, new_from)


def flip_bit(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def fill(n: Journaled, partitions: int = 3, rounds: int = 4) -> None:
    targets = n.open(ensure(partitions))
    for i in range(rounds):
        for target in targets:
            assert n.produce(target, make_batch(1 + i)) == [0]


def noted_syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Inodes of what is synced by itself from now on."""
    synced: list[int] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    return synced


def records(path: Path) -> list[journal.Record]:
    with closing(JournalFile(path)) as found:
        return list(found.records())


def extents(path: Path) -> list[list[journal.Extent]]:
    return [record.extents for record in records(path)]
