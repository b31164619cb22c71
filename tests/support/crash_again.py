"""After a power cut: starts that are killed, and one that goes on with the work; run under the tracer, so
that the power can be cut again in any of them.

    TRACE_ROOT=DIRECTORY/again TRACE_FILE=… LD_PRELOAD=… python -m tests.support.crash_again DIRECTORY [KIND]

DIRECTORY/tasks is a pickle of `Task`s, KIND that of the workload (`crash_workload`). Each task has its
own directory. Marks are the workload's, and

    ["begun", number of the task, inode of its log directory]   its image is there, and durable
    ["ended"]
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import resource
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from mpbroker.log.io.file_system import FileSystem
from mpbroker.log.io.io_thread import THREAD_NAME
from mpbroker.log.manager import opening
from mpbroker.log.partition import durable_reads
from mpbroker.log.partition.durable_reads import EACH_FILE, FileSystemSync, Syncs
from mpbroker.log.recovery.log_loader import load
from mpbroker.protocol.topic_names import METADATA_TOPIC
from shm.word import Words
from tests.support.crash_checks import Recover, Task, recovered, recovered_both
from tests.support.crash_images import write_image
from tests.support.crash_workload import KINDS, Workload, mark

SYNCS = ("fsync", "fdatasync")
KILLED_AT = (*SYNCS, "pwrite", "write", "ftruncate", "unlink", "rename")


class Killed(BaseException):
    pass


class Spared:
    """What the test itself does is not killed, though a call of it looks the same."""

    depth = 0

    def __enter__(self) -> None:
        Spared.depth += 1

    def __exit__(self, *_: object) -> None:
        Spared.depth -= 1


@contextmanager
def killed(chance: random.Random) -> Iterator[None]:
    """What is in there ends, perhaps, before a call that changes files: mostly a sync, which would have made
    durable what was just done. What then still goes on changes none; but for the I/O thread, which is not
    killed.
    """
    real = {name: getattr(os, name) for name in KILLED_AT}
    how_likely = chance.choice((0.3, 0.1, 0.03))
    is_over = False

    def dying(name: str, call: Callable[..., object]) -> Callable[..., object]:
        share = how_likely if name in SYNCS else how_likely / 10

        def die(*arguments: object, **more: object) -> object:
            nonlocal is_over
            if threading.current_thread().name != THREAD_NAME and not Spared.depth:
                is_over = is_over or chance.random() < share
                if is_over:
                    raise Killed
            return call(*arguments, **more)

        return die

    try:
        for name, call in real.items():
            setattr(os, name, dying(name, call))
        yield
        if is_over:
            # A thread has met it.
            raise Killed
    finally:
        for name, call in real.items():
            setattr(os, name, call)


class Whole:
    """A file system that can be synced as one, as the tracer has it."""

    is_synced_at_once = True

    def __init__(self, path: Path) -> None:
        self._file_system = FileSystem(path)

    def has(self, _: int) -> bool:
        return True

    def sync(self) -> None:
        self._file_system.sync()


def at_once(path: Path) -> Syncs:
    return FileSystemSync(Whole(path), Words(memoryview(bytearray(8))), 0)


def each_file(_: Path) -> Syncs:
    return EACH_FILE


def start_killed(directory: Path, chance: random.Random, recover: Callable[..., object]) -> None:
    """Or not."""
    with contextlib.suppress(Killed), killed(chance):
        recover(directory, syncs_of=chance.choice((at_once, each_file)))


class Workers:
    """They open partitions of each log directory; the metadata is opened without them."""

    def __init__(self, syncs_of: Callable[[Path], Syncs]) -> None:
        self._syncs_of = syncs_of
        self._syncs: dict[Path, Syncs] = {}

    def renew(self) -> None:
        """Forget the syncs of the process that died."""
        self._syncs.clear()

    def load(self, directory: Path, *what: Any) -> object:
        if directory.name.startswith(METADATA_TOPIC):
            return load(directory, *what)
        if directory.parent not in self._syncs:
            self._syncs[directory.parent] = self._syncs_of(directory.parent)
        return load(directory, *what, syncs=self._syncs[directory.parent])


class GoingOn(Workload):
    """In front of a kind of workload: it begins with what the image has."""

    number: int
    task: Task
    chance: random.Random
    workers: Workers
    is_several: bool
    recover: Recover
    is_new = True
    is_replacing = False

    def make_node(self, directory: Path) -> Any:
        node = super().make_node(directory)
        data = directory / "data0"
        write_image(self.task.image, data)
        FileSystem(directory).sync()
        mark("begun", self.number, data.stat().st_ino)
        for _ in range(self.chance.choice((0, 1, 1, 2))):
            start_killed(data, self.chance, type(self).recover)
        return node

    def make_rig(self, name: str, **options: object) -> Any:
        with Spared():
            return super().make_rig(name, **options)

    def new_topic(self) -> None:
        # No batch is the same as one of before.
        self.batches = max(self.batches, self.number + 1 << 20)
        super().new_topic()
        self.is_replacing = False
        if self.is_new and self.task.topic:
            self.topic = msgspec.structs.replace(self.topic, topic_id=bytes.fromhex(self.task.topic))
            mark("topic", self.task.topic)
        # Checkpoints may name yet what went just before a kill; what is missing is told by who checks.
        self.topic = msgspec.structs.replace(self.topic, new_from=0)
        self.is_new = False

    def boot(self) -> None:
        self.workers.renew()
        super().boot()

    def open(self) -> None:
        self.workers.renew()
        super().open()

    def replace_topic(self) -> None:
        self.is_replacing = True
        super().replace_topic()

    def do_some(self, step: int) -> None:
        """Do a part of the work. In between the process may be killed, and another one continues."""
        if self.chance.random() < 0.6:
            super().do_some(step)
            return
        try:
            with killed(self.chance):
                if self.chance.random() < 0.2:
                    self.replace_topic()
                super().do_some(step)
        except Killed:
            self.go_on()

    def go_on(self) -> None:
        if self.is_replacing:
            mark("removed", self.topic.topic_id.hex())
            self.new_topic()
        # Which of several it was nobody knows.
        if self.is_several or self.chance.random() < 0.5:
            self.boot()
        else:
            self.node.succeed()
            self.open()


def going_on(kind: type[Workload], number: int, task: Task) -> type[GoingOn]:
    chance = random.Random(task.seed)
    workers = Workers(chance.choice((at_once, each_file)))
    opening.load = workers.load  # type: ignore[assignment]
    given = {
        "number": number,
        "task": task,
        "chance": chance,
        "workers": workers,
        "is_several": kind is KINDS["several"],
        "recover": recovered_both if kind is KINDS["moving"] else recovered,
    }
    return type("GoingOnWith", (GoingOn, kind), given)


def main() -> None:
    directory, kind = Path(sys.argv[1]), KINDS.get(sys.argv[-1], Workload)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    (directory / "again").mkdir()
    for number, task in enumerate(pickle.loads((directory / "tasks").read_bytes())):
        durable_reads.FEW = task.seed % 3
        own = directory / "again" / str(number)
        own.mkdir()
        with tempfile.TemporaryDirectory(dir="/dev/shm") as public:
            going_on(kind, number, task)(own, Path(public), task.seed).run(4 + task.seed % 9)
        mark("ended")


if __name__ == "__main__":
    main()
