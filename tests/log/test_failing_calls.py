"""A call that fails beside reads, writes and syncs: cutting, looking, renaming.

It takes the log directory with it that it was made in, and neither the log worker nor another directory.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.table import PartitionFlag
from mpbroker.log.process import LogProcess
from mpbroker.storage import names
from tests.support.full_disk import failing_with, files_take
from tests.support.log_moves import order
from tests.support.log_node import STORAGE_ERROR, MakeNode, Node, wait_for_io
from tests.support.log_rig import TOPIC_ID, ensure
from tests.support.log_writer import make_batch
from tests.support.stepped_log import settle


def fail(name: str, below: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fail that call of `os` for everything below the directory. Returns the paths that it was made for."""
    real, asked = getattr(os, name), []

    def call(path: Any, *arguments: Any, **more: Any) -> Any:
        at = str(Path(f"/proc/self/fd/{path}").readlink()) if isinstance(path, int) else os.fspath(path)
        if at.startswith(str(below)):
            asked.append(at)
            raise OSError(errno.EIO, os.strerror(errno.EIO), at)
        return real(path, *arguments, **more)

    monkeypatch.setattr(os, name, call)
    return asked


@contextmanager
def failing(name: str, below: Path) -> Iterator[None]:
    """Fail that call there, and check that it is made."""
    with pytest.MonkeyPatch.context() as disk:
        asked = fail(name, below, disk)
        yield
        assert asked


def two_dirs(
    node: MakeNode, *, cleanup_policy: str = "delete"
) -> tuple[Node, LogProcess, list[calls.EnsuredPartition]]:
    """-> a broker, and its partitions in the first log directory and in the second one."""
    made = node(2)
    process = made.boot()
    targets = made.open(ensure(4, cleanup_policy=cleanup_policy))
    where = [made.rig.partition(target.slot).log_dir for target in targets]
    return made, process, [targets[where.index(number)] for number in range(2)]


def is_offline(made: Node, target: calls.EnsuredPartition) -> bool:
    settle(made.process)
    return bool(made.rig.partition(target.slot).flags & PartitionFlag.PARTITION_OFFLINE)


def test_a_write_that_cannot_be_cut_back(node: MakeNode) -> None:
    """Check the first batch of a segment, which Python writes, on a file system that became read-only."""
    made, _, (first, second) = two_dirs(node)
    with failing("pwrite", made.dirs[1]), failing("ftruncate", made.dirs[1]):
        assert made.produce(second, make_batch()) == [STORAGE_ERROR]
        assert is_offline(made, second)
        assert made.produce(first, make_batch()) == [0]


def test_a_full_disk_beside_a_directory_that_is_gone(node: MakeNode) -> None:
    """Check the refusal, for which the removed directory is asked for its free space, too."""
    made, process, (first, _) = two_dirs(node)
    assert made.produce(first, make_batch()) == [0]
    process.turn.storage_failed(1, errno.EIO)
    process._take_failures()
    shutil.rmtree(made.dirs[1])
    with files_take(4000):
        assert made.produce(first, make_batch(size=5000)) == [STORAGE_ERROR]
    assert made.produce(first, make_batch(size=5000)) == [0]
    assert not is_offline(made, first)


def said(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


@pytest.mark.parametrize("what", ["deleting", "choosing", "retention"])
def test_those_that_look_at_segments(node: MakeNode, caplog: pytest.LogCaptureFixture, what: str) -> None:
    """Check partitions without records, for which the last write counts. One of them is reported."""
    policy = "delete" if what == "retention" else "compact"
    made, process, (first, second) = two_dirs(node, cleanup_policy=policy)
    wanted = calls.DeleteRecords([calls.DeleteBefore(second.slot, second.slot_generation, 0)])
    steps: dict[str, Callable[[], Iterable[None]]] = {
        "deleting": lambda: process.deletion.deleting(wanted),
        "choosing": process.compaction.choosing,
        "retention": process.deletion.deleting_expired,
    }
    with failing("stat", made.dirs[1]):
        for _ in steps[what]():
            wait_for_io(process)
    assert len(said(caplog, "its segments cannot be reached")) == 1
    assert is_offline(made, second)
    assert made.produce(first, make_batch()) == [0]


def test_jobs_for_many_partitions_that_fail_alike(node: MakeNode, caplog: pytest.LogCaptureFixture) -> None:
    """Check that an error is reported once for each directory, and tried again."""
    made, process, _ = two_dirs(node)
    for number in (0, 1, 1, 1):
        process.io_thread.submit(failing_with(errno.ENOSPC), number)
    wait_for_io(process)
    process._take_failures()
    lines = said(caplog, "are not written: No space left on device; trying again")
    assert [line.split()[2] for line in lines] == [str(path) for path in made.dirs]


def test_a_topic_goes_from_the_directories_that_work(node: MakeNode) -> None:
    """Check it if a failing directory is asked first."""
    made = node(3)
    process = made.boot()
    made.open(ensure(6))
    assert [name for name in made.names(2) if name.startswith("t-")]
    with failing("rename", made.dirs[1]):
        made.rig.call(calls.RemoveTopic("t", TOPIC_ID))
        settle(process)
    assert isinstance(made.rig.take_answer(), calls.Failed)
    assert process.turn.failed_dirs == 0b010
    assert all(name.endswith("-delete") for number in (0, 2) for name in made.names(number) if name[0] == "t")


@pytest.mark.parametrize(("call", "target"), [("mkdir", 1), ("stat", 0)])
def test_a_move_fails_one_of_its_directories(node: MakeNode, call: str, target: int) -> None:
    """Let source or target fail, and check that the other directory is served."""
    made, process, both = two_dirs(node)
    moved = made.rig.partition(both[1 - target].slot).partition
    with failing(call, made.dirs[1]):
        assert order(process, target, moved) == STORAGE_ERROR
    assert process.turn.failed_dirs == 0b10
    assert made.produce(both[0], make_batch()) == [0]


def test_a_clean_stop_beside_a_directory_that_fails(node: MakeNode) -> None:
    made, _, _ = two_dirs(node)
    with failing("scandir", made.dirs[1]):
        made.stop()
    assert [(path / names.CLEAN_SHUTDOWN).exists() for path in made.dirs] == [True, False]
