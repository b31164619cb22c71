"""A clean stop: nothing on disk speaks of what is not there, wherever the power fails.

Images as in `test_power_cut`, but of each moment of a stop.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpbroker.log.io.file_system import FileSystem
from mpbroker.log.recovery import clean_stop
from mpbroker.storage import names
from tests.support.crash_checks import Promises, Run, check, traced
from tests.support.crash_images import MARK, Disk, write_image
from tests.support.forms import each
from tests.support.log_node import HIGH_WATERMARKS, MakeNode, Node
from tests.support.log_rig import MakeRig, ensure
from tests.support.log_writer import Syncs, make_batch

pytestmark = pytest.mark.process

IMAGES_PER_EVENT = 4
RECOVERED_SHARE = 0.05
FILES = (names.LOG_SUFFIX, names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX, names.TXN_INDEX_SUFFIX)
Image = dict[str, bytes | None]


def segment_files(image: Image, partition: str) -> Image:
    return {p: data for p, data in image.items() if p.startswith(f"{partition}/") and p.endswith(FILES)}


def last_snapshot(image: Image, partition: str) -> str:
    found = [p for p in image if p.startswith(f"{partition}/") and p.endswith(names.SNAPSHOT_SUFFIX)]
    return max(found, default="")


def check_order(left: Image, whole: Image, before: Image) -> None:
    """`whole`: what was written up to now; `before`: when the stop began."""
    is_clean = names.CLEAN_SHUTDOWN in left
    for partition in [path for path in whole if path.startswith("t-") and "/" not in path]:
        snapshot = last_snapshot(whole, partition)
        has_new = snapshot != last_snapshot(before, partition) and left.get(snapshot) == whole[snapshot]
        if is_clean or has_new:
            assert segment_files(left, partition) == segment_files(whole, partition), (partition, is_clean)
        if is_clean:
            assert left.get(snapshot) == whole.get(snapshot)
    if is_clean:
        for name in (names.RECOVERY_POINTS, names.HIGH_WATERMARKS, names.LOG_STARTS):
            assert left.get(name) == whole.get(name)


def cut_stops(run: Run, chance: random.Random, directory: Path) -> int:
    """Returns how many images said that the stop was clean."""
    disk, promises = Disk(run.root), Promises()
    before: Image | None = None
    clean = 0
    for number, event in enumerate(run.events):
        whole = disk.image(chance, "killed") if before is not None else {}
        for _ in range(IMAGES_PER_EVENT if before is not None else 0):
            left = disk.image(chance)
            assert before is not None
            check_order(left, whole, before)
            clean += names.CLEAN_SHUTDOWN in left
            if chance.random() < RECOVERED_SHARE:
                write_image(left, directory)
                check(run, promises, directory)
                shutil.rmtree(directory)
        disk.take(number, event)
        if event.kind == MARK:
            said = json.loads(event.data)
            promises.take(*said)
            if said == ["stopping"]:
                before = disk.image(chance, "killed")
            elif said == ["stopped"]:
                before = None
    return clean


@each("seed", short=[1], long=range(1, 21))
def test_what_says_clean_is_never_there_before_what_it_speaks_of(
    seed: int, tracer: Path, tmp_path: Path
) -> None:
    run = traced(tracer, tmp_path, seed, "stopping")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        assert cut_stops(run, random.Random(seed), Path(name) / "data") > 5


# ---- how it is synced, and what becomes of a failure ----


@pytest.fixture
def node(rig: MakeRig, tmp_path: Path) -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def build(name: str, partitions: int, batch: bytes) -> Node:
        (tmp_path / name).mkdir()
        made.append(Node(rig, tmp_path / name))
        made[-1].boot()
        for target in made[-1].open(ensure(partitions)):
            made[-1].produce(target, batch, 3)
        return made[-1]

    yield build
    for one in made:
        one.crash()


def stopped_with(node: Node, file_system: Syncs | FileSystem) -> None:
    node.process.manager.dirs[0].file_system = file_system  # type: ignore[assignment]
    node.stop()


def test_many_partitions_are_synced_as_one(node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for number in (2, 20):
        one, syncs, fsyncs = node(f"of{number}", number, make_batch()), Syncs(), []
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsyncs.append)
            stopped_with(one, syncs)
        assert syncs.count == 2
        counts.append(len(fsyncs))
    assert counts[0] == counts[1] > 0


def test_each_file_by_itself_leaves_the_same_files(node: MakeNode) -> None:
    left = []
    for at_once in (True, False):
        one, syncs = node(f"{at_once}", 3, make_batch()), Syncs(is_synced_at_once=at_once)
        stopped_with(one, syncs)
        assert syncs.count == (2 if at_once else 0)
        files = [path for path in one.dirs[0].glob("t-*/*") if path.name != names.PARTITION_METADATA]
        left.append({str(path.relative_to(one.dirs[0])): path.read_bytes() for path in files})
    assert left[0] == left[1]
    assert len(left[0]) == 3 * 5


@pytest.mark.parametrize("fails_at", [1, 2])
def test_without_its_syncs_nothing_is_called_clean(
    node: MakeNode, caplog: pytest.LogCaptureFixture, fails_at: int
) -> None:
    one = node("one", 3, make_batch())
    one.checkpoint()
    points = one.offsets()
    stopped_with(one, Syncs(fails_at=fails_at))
    assert "file system of" in caplog.text
    assert "Input/output error" in caplog.text
    assert not (one.dirs[0] / names.CLEAN_SHUTDOWN).exists()
    assert one.offsets(HIGH_WATERMARKS) == points
    one.boot()
    assert [one.end_of(target) for target in one.open(ensure(3))] == [3, 3, 3]


def test_a_stop_that_failed_for_one_partition_goes_on_with_the_others(node: MakeNode) -> None:
    one = node("one", 3, make_batch())
    manager = one.process.manager
    logs = [log for log in manager.logs.values() if not log.state.is_offline]
    next(log for log in logs if log.name == "t-1").directory.rename(one.dirs[0] / "elsewhere")
    closed = clean_stop.close_cleanly(manager.dirs[0], logs, str)
    assert {log.name for log in closed} == {"__cluster_metadata-0", "t-0", "t-2"}
    assert manager.dirs[0].failed
    (one.dirs[0] / "elsewhere").rename(one.dirs[0] / "t-1")


def test_a_partition_on_another_file_system_is_synced_by_itself(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check it with a link, since a sync of the log directory's file system does not cover it."""
    one, syncs = node("one", 2, make_batch()), Syncs()
    data = one.dirs[0]
    far, link = data.parent / "far", data / "t-1"
    link.rename(far)
    link.symlink_to(far)
    monkeypatch.setattr(Syncs, "has", lambda _, path: Path(path).resolve() != far)
    synced, real = set(), os.fsync

    def fsync(fd: int) -> None:
        synced.add(Path(f"/proc/self/fd/{fd}").readlink())
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    stopped_with(one, syncs)
    monkeypatch.undo()
    assert syncs.count == 2
    assert {path for path in far.iterdir() if path.suffix in (".log", ".index", ".snapshot")} <= synced
    assert not {path for path in synced if path.parent.name == "t-0"}
    assert (data / names.CLEAN_SHUTDOWN).exists()


def test_what_lies_on_another_file_system(tmp_path: Path) -> None:
    system = FileSystem(Path("/dev/shm"))
    (tmp_path / "link").symlink_to("/dev/shm")
    (tmp_path / "other").symlink_to("/proc")
    assert system.has(tmp_path / "link")
    assert not system.has(tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        system.has(tmp_path / "none such")


def test_what_is_synced_at_once() -> None:
    """Check that this is done only by a file system that hears of failed writes of its disk."""
    assert FileSystem(Path("/dev/shm")).is_synced_at_once
    assert not FileSystem(Path("/proc")).is_synced_at_once
    FileSystem(Path("/dev/shm")).sync()
    with pytest.raises(FileNotFoundError):
        FileSystem(Path("/dev/shm/none such"))
