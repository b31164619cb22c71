"""After a power cut: starts that are killed, and one that goes on with the work; run under the tracer, so
that the power can be cut again in any of them.

    TRACE_ROOT=DIRECTORY/again TRACE_FILE=… LD_PRELOAD=… python -m tests.log.crash_again DIRECTORY [KIND]

DIRECTORY/tasks is a pickle of `Task`s, KIND that of the workload (`crash_workload`). Each task has its
own directory. Marks are the workload's, and

    ["begun", number of the task, inode of its log directory]   its image is there, and durable
    ["ended"]
"""

from __future__ import annotations

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

from mpbroker.log import device, manager
from mpbroker.log.device import EACH_FILE, AtOnce, Syncs
from mpbroker.log.file_system import FileSystem
from mpbroker.log.recovery import load
from mpbroker.protocol.topic_names import METADATA_TOPIC
from shm.word import Words
from tests.log.crash_checks import Recover, Task, recovered, recovered_both
from tests.log.crash_images import write_image
from tests.log.crash_workload import KINDS, Workload, mark

KILLED_AT = ("pwrite", "write", "fsync", "fdatasync", "ftruncate", "unlink", "rename")


class Killed(BaseException):
    pass


@contextmanager
def killed(left: int) -> Iterator[None]:
    """What is in there ends before the call with that number that changes files; what then still goes on
    changes none.
    """
    real = {name: getattr(os, name) for name in KILLED_AT}

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def counting(*arguments: object, **more: object) -> object:
            nonlocal left
            if threading.current_thread() is threading.main_thread():
                left -= 1
                if left < 0:
                    raise Killed
            return call(*arguments, **more)

        return counting

    try:
        for name, call in real.items():
            setattr(os, name, counted(call))
        yield
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
    return AtOnce(Whole(path), Words(memoryview(bytearray(8))), 0)


def each_file(_: Path) -> Syncs:
    return EACH_FILE


def start_killed(directory: Path, chance: random.Random, recover: Callable[..., object]) -> None:
    """At one of its first calls, or at none."""
    try:
        with killed(chance.randint(0, chance.choice((12, 60)))):
            recover(directory, syncs_of=chance.choice((at_once, each_file)))
    except Killed:
        pass


def going_on(kind: type[Workload], number: int, task: Task) -> type[Workload]:
    """That workload, with what the image has."""
    chance = random.Random(task.seed)
    recover: Recover = recovered_both if kind is KINDS["moving"] else recovered
    syncs_of = chance.choice((at_once, each_file))
    given: dict[Path, Syncs] = {}

    def load_by_worker(directory: Path, *what: Any) -> object:
        """As the recovery workers of that directory do; the metadata is opened without them."""
        if directory.name.startswith(METADATA_TOPIC):
            return load(directory, *what)
        if directory.parent not in given:
            given[directory.parent] = syncs_of(directory.parent)
        return load(directory, *what, syncs=given[directory.parent])

    manager.load = load_by_worker  # type: ignore[assignment]

    class GoingOn(kind):  # type: ignore[misc,valid-type]
        is_new = True

        def make_node(self, directory: Path) -> Any:
            node = super().make_node(directory)
            data = directory / "data0"
            write_image(task.image, data)
            FileSystem(directory).sync()
            mark("begun", number, data.stat().st_ino)
            for _ in range(chance.choice((0, 1, 1, 2))):
                start_killed(data, chance, recover)
            return node

        def new_topic(self) -> None:
            # No batch is the same as one of before.
            self.batches = max(self.batches, number + 1 << 20)
            super().new_topic()
            if self.is_new and task.topic:
                self.topic = msgspec.structs.replace(self.topic, topic_id=bytes.fromhex(task.topic))
                mark("topic", task.topic)
            # Checkpoints may name yet what went just before a kill; what is missing is told by who checks.
            self.topic = msgspec.structs.replace(self.topic, new_from=0)
            self.is_new = False

        def open(self) -> None:
            given.clear()
            if chance.random() < 0.3:
                try:
                    with killed(chance.randint(0, 12)):
                        super().open()
                except Killed:
                    given.clear()
                    (self.node.boot if kind is KINDS["several"] else self.node.succeed)()
            super().open()

    return GoingOn


def main() -> None:
    directory, kind = Path(sys.argv[1]), KINDS.get(sys.argv[-1], Workload)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    (directory / "again").mkdir()
    for number, task in enumerate(pickle.loads((directory / "tasks").read_bytes())):
        device.FEW = task.seed % 3
        own = directory / "again" / str(number)
        own.mkdir()
        with tempfile.TemporaryDirectory(dir="/dev/shm") as public:
            going_on(kind, number, task)(own, Path(public), task.seed).run(4 + task.seed % 9)
        mark("ended")


if __name__ == "__main__":
    main()
