"""Sizes of log directories and partitions, as the metrics have them."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from mpbroker.ipc.log_sizes import DirSeen, PartitionSizes
from mpbroker.ipc.partition_counts import count_partitions
from mpbroker.log.manager.size_metrics import SizeMetrics
from mpbroker.log.process import LogProcess
from mpbroker.records.validation import at_once
from mpbroker.storage.journal import NAME
from mpbroker.storage.reader import segment_bytes
from mpbroker.storage.segments import segments_of
from shm.word import Words
from tests.support.log_node import MakeNode, Node, wait_for_io
from tests.support.log_rig import TOPIC_ID, ensure
from tests.support.log_writer import make_batch
from tests.support.polling import until
from tests.support.several_log_workers import Several, SeveralRig
from tests.support.stepped_log import settle


def look(process: LogProcess) -> None:
    for _ in process.size_metrics.measuring():
        os.sched_yield()
    wait_for_io(process)


def seen(node: Node) -> dict[int, DirSeen]:
    return node.rig.memory.dir_sizes().all()


def live(node: Node) -> Mapping[int, int]:
    return count_partitions(node.rig.memory.table()).live


def test_partitions_are_counted_without_a_look(node: MakeNode) -> None:
    n = node(2)
    process = n.boot()
    assert live(n) == {}
    n.open(ensure(3))
    assert sorted(live(n).values()) == [1, 2]
    at_once(process.manager.removing("t", TOPIC_ID))
    assert live(n) == {}


def test_a_look_says_what_the_files_say(node: MakeNode) -> None:
    n = node(2)
    for _ in range(2):  # the second one finds segments that it has not written
        process = n.boot()
        assert {(one.size_bytes, one.total_bytes) for one in seen(n).values()} == {(None, None)}
        targets = n.open(ensure(4))
        for target in targets:
            log = process.manager.logs[target.slot]
            n.produce(target, make_batch(size=500), 3)
            for fd in log.roll():
                os.close(fd)
            n.produce(target, make_batch(size=500))
        look(process)
        found = seen(n)
        for number, directory in enumerate(n.dirs):
            system = os.statvfs(directory)
            there = list(directory.glob("t-*"))
            assert found[number].name == str(directory)
            assert not found[number].failed
            assert live(n)[number] == len(there) == 2
            assert found[number].size_bytes == sum(map(segment_bytes, there)) > 0
            assert found[number].total_bytes == system.f_blocks * system.f_frsize
            assert 0 < (found[number].usable_bytes or 0) <= system.f_blocks * system.f_frsize
            kept = process.manager.dirs[number]
            assert kept.reserve.held_bytes > 0
            assert found[number].kept_bytes == kept.reserve.held_bytes + (directory / NAME).stat().st_size
        sizes = n.rig.memory.partition_sizes()
        for target in targets:
            path = process.manager.logs[target.slot].directory
            assert sizes.get(target.slot, target.slot_generation) == (
                len(segments_of(path)),
                segment_bytes(path),
            )


@pytest.mark.parametrize(("took_s", "rest_s"), [(0.0, 2.0), (0.01, 2.0), (0.1, 10.0), (5.0, 30.0)])
def test_thousands_of_partitions_are_looked_at_less_often(took_s: float, rest_s: float) -> None:
    assert SizeMetrics.rest_s(took_s) == pytest.approx(rest_s)


def test_the_next_look_comes_by_itself(node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpbroker.log.manager.size_metrics.MEASURE_EVERY_S", 0.001)
    n = node(1)
    process = n.boot()
    (target,) = n.open(ensure())
    process.due["sizes"] = 0  # as when all topics are recovered

    def look_by_itself() -> int:
        process._do_housekeeping()
        process.advance_tasks()
        (one,) = seen(n).values()
        return one.size_bytes or 0

    state = process.manager.logs[target.slot].state
    for _ in range(2):
        n.produce(target, make_batch(size=500))
        until(lambda: look_by_itself() == state.size > 0, "what was appended is seen")


def test_a_directory_that_fails_is_said_at_once_and_by_a_successor(node: MakeNode) -> None:
    n = node(2)
    process = n.boot()
    n.produce(n.open(ensure(2))[0], make_batch())
    process.turn.storage_failed(1, errno.EIO)
    settle(process)
    assert [one.failed for one in seen(n).values()] == [False, True]
    assert live(n) == {0: 1}
    look(n.succeed())
    assert [one.failed for one in seen(n).values()] == [False, True]
    assert live(n) == {0: 1}
    assert seen(n)[1].size_bytes == 0


def test_several_workers_are_added_up(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    made = SeveralRig(directory, Path(f"/dev/shm/sizes{os.getpid()}"), {"log_dirs": (str(directory),)}, 3)
    several = Several(made)
    try:
        for target in several.open(ensure(6)):
            made.job([((target.slot, target.slot_generation, 5), bytes(make_batch()))])
        several.settle()
        for process in several.processes:
            (found,) = made.memory.dir_sizes().all().values()
            assert found.size_bytes is None, "some of them have not looked"
            look(process)
        (found,) = made.memory.dir_sizes().all().values()
        assert count_partitions(made.memory.table()).live == {0: 6}
        assert found.size_bytes == 6 * len(make_batch())
    finally:
        several.crash()
        made.close()


def test_the_first_look_comes_when_all_is_open(node: MakeNode) -> None:
    n = node(1)
    process = n.boot()
    n.open(ensure(3))
    process._do_housekeeping()
    assert not process._tasks
    process.due["sizes"] = 0
    process._do_housekeeping()
    while process._tasks:
        process.advance_tasks()
    assert seen(n)[0].size_bytes == 0


def test_what_another_partition_of_the_slot_had_is_not_taken() -> None:
    block = memoryview(bytearray(16 * 4))
    sizes = PartitionSizes(block)
    assert sizes.get(2, 1) is None
    sizes.put(2, 1, 3, 4_711)
    assert sizes.get(2, 1) == (3, 4_711)
    assert sizes.get(2, 2) is None
    # Its writer is killed in the middle.
    Words(block).store(2 * 2, 0)
    assert sizes.get(2, 1) is None
