"""What an operator hears while there is no room: that it begins, that it is over, and each of them once."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import calls
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.disk_problems import ROOM_BYTES, disk_problems
from mpbroker.log.manager import refusals
from mpbroker.log.manager.refusals import (
    LOG_EVERY_S,
    OVER_AFTER_S,
    RefusedProduces,
    WaitingPartitions,
)
from mpbroker.log.partition import partition_log
from tests.support.full_disk import files_take
from tests.support.log_node import OTHER_ID, STORAGE_ERROR, MakeNode, Node, wait_for_io
from tests.support.log_rig import TOPIC_ID, ensure
from tests.support.log_writer import make_batch


def texts(caplog: pytest.LogCaptureFixture, part: str) -> int:
    return sum(part in record.getMessage() for record in caplog.records)


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_refusals_are_said_from_time_to_time() -> None:
    refused = RefusedProduces()
    said = [now for now in range(35) if refused.must_log(100.0 + now)]
    assert said == [0, LOG_EVERY_S, 2 * LOG_EVERY_S, 3 * LOG_EVERY_S]


def test_a_full_partition_table_is_no_full_disk(node: MakeNode, caplog: pytest.LogCaptureFixture) -> None:
    """Check that the broker stays ready: produces are taken."""
    n = node()
    process = n.boot()
    slots = list(range(n.rig.memory.sizes.partition_slots))
    answers = n.open(calls.EnsureTopic("filler", OTHER_ID, slots, {}, 5, 0))
    assert answers[-1].slot_generation == 0
    process._take_failures()
    assert texts(caplog, "the partition table is full") == 1
    assert not texts(caplog, "Make the file system larger")
    assert disk_problems(process.context.config, n.rig.memory.dir_sizes().all().values()) == []


NOWHERE: list[Path] = []


def test_it_is_over_when_nothing_was_refused_for_a_while() -> None:
    """Check that nobody has to try: a broker that is not ready gets nothing."""
    refused = RefusedProduces()
    assert not refused.is_over(100.0, NOWHERE), "it has not begun"
    refused.must_log(100.0)
    assert not refused.is_over(99.0 + OVER_AFTER_S, NOWHERE), "a small one may fit where others do not"
    refused.must_log(101.0)
    assert not refused.is_over(100.0 + OVER_AFTER_S, NOWHERE)
    assert refused.is_over(101.0 + OVER_AFTER_S, NOWHERE)
    assert not refused.is_over(200.0, NOWHERE), "it was said"
    assert refused.must_log(200.0)


def test_what_fits_into_the_last_bytes_is_not_the_end_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that refusals end when all directories have room, not when a small write fits."""
    free = [ROOM_BYTES, ROOM_BYTES - 1]
    where = {tmp_path / name: number for number, name in enumerate("ab")}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free[where[path]]))
    refused = RefusedProduces()
    refused.must_log(100.0)
    assert not refused.is_over(110.0, list(where))
    free[1] = ROOM_BYTES
    assert not refused.is_over(110.5, list(where)), "it is looked at from time to time"
    assert refused.is_over(111.0, list(where))


def test_a_disk_that_flaps_is_not_told_of_each_time() -> None:
    refused = RefusedProduces()
    refused.must_log(100.0)
    assert refused.is_over(108.0, NOWHERE)
    assert refused.must_log(109.0)
    assert not refused.must_log(110.0)


def test_that_the_disk_is_full_is_told_and_that_it_is_over(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = node()
    process = made.boot()
    (target,) = made.open(ensure(1))
    assert made.produce(target, make_batch()) == [0]
    monkeypatch.setattr(refusals, "OVER_AFTER_S", 0.0)
    has_room = False
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: SimpleNamespace(free=ROOM_BYTES if has_room else ROOM_BYTES - 1)
    )
    with files_take(4000):
        for _ in range(3):
            assert made.produce(target, make_batch(size=5000)) == [STORAGE_ERROR]
    assert texts(caplog, "produces are refused until there is room") == 1
    process._do_housekeeping()
    (seen,) = made.rig.memory.dir_sizes().all().values()
    assert (seen.error, seen.failed) == (errno.EFBIG, False)
    (problem,) = disk_problems(BrokerConfig(), [seen])
    assert "produces are refused until there is room" in problem
    # `ctl status` has it once, as why the broker is not ready.
    assert process.context.counters.last_error == ""
    monkeypatch.setattr(refusals, "CHECK_EVERY_S", 0.0)
    has_room, process._refused._check_at = True, 0.0
    process._do_housekeeping()
    (seen,) = made.rig.memory.dir_sizes().all().values()
    assert seen.error == 0
    assert made.produce(target, make_batch(size=5000)) == [0]
    assert texts(caplog, "produce requests are accepted again") == 1


def test_a_commit_round_that_does_not_end_is_published_and_so_is_its_end(
    n: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = n.process
    turn = SimpleNamespace(commit_rounds=7, awaits_disk=True)
    monkeypatch.setattr(process, "turn", turn)

    def since_ns() -> int:
        process._publish_waits()
        (seen,) = n.rig.memory.dir_sizes().all().values()
        return seen.waits_since_ns

    assert since_ns() == 0, "it has been seen once"
    began = since_ns()
    assert began > 0
    assert since_ns() == began
    turn.commit_rounds = 8
    assert since_ns() == 0, "another round is under way"
    assert since_ns() > began
    turn.awaits_disk = False
    assert since_ns() == since_ns() == 0


def test_how_much_room_there_is_is_looked_at_when_something_is_refused(
    n: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that `ctl status` shows the free space beside the error."""
    process = n.process
    (target,) = n.open(ensure(1))
    process.due["sizes"] = 1e12
    looks: list[Path] = []
    monkeypatch.setattr(process.size_metrics, "_measure_volume", lambda log_dir: looks.append(log_dir.path))

    def keep_house() -> None:
        process._do_housekeeping()
        while process._tasks:
            process.advance_tasks()
            wait_for_io(process)

    keep_house()
    assert looks == []
    with files_take(4000):
        assert n.produce(target, make_batch(size=5000)) == [STORAGE_ERROR]
    keep_house()
    assert looks == n.dirs


def test_partitions_that_wait_for_room_are_one_line_of_the_log(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = node()
    process = made.boot()
    create = partition_log.PartitionLog.create
    room = 3

    def full(directory: Path, *arguments: object) -> partition_log.PartitionLog:
        if int(directory.name.rpartition("-")[2]) >= room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))
        return create(directory, *arguments)  # type: ignore[arg-type]

    def waiting() -> int:
        process._count_partitions()
        return process.context.counters.get(Counter.COUNT_PARTITIONS_WAITING)

    monkeypatch.setattr(partition_log.PartitionLog, "create", full)
    for _ in range(3):
        targets = made.open(ensure(10))
        assert [bool(target.error) for target in targets] == [False] * room + [True] * (10 - room)
    assert texts(caplog, "t-3, and maybe others of its topic, cannot be opened now") == 1
    assert texts(caplog, str(made.dirs[0] / "t-3")) == 1
    assert texts(caplog, "Make the file system larger") == 1
    assert texts(caplog, "t-") == 1
    assert waiting() == 10 - room
    room = 9
    made.open(ensure(10))
    assert not texts(caplog, "are open now")
    assert waiting() == 1
    room = 10
    for _ in range(2):
        assert not any(target.error for target in made.open(ensure(10)))
    assert waiting() == 0
    assert texts(caplog, "t: its partitions that could not be opened are open now") == 1
    assert process.manager.logs


def test_of_a_topic_that_is_gone_nothing_waits(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    waiting = WaitingPartitions([tmp_path], BrokerConfig())
    topic = ensure(2)
    waiting.begin(topic, 0, OSError(errno.EMFILE, "too many"))
    waiting.forget(TOPIC_ID)
    waiting.end(topic, 0)
    assert texts(caplog, "ulimit -n") == 1
    assert not texts(caplog, "open now")
    waiting.begin(topic, 1, OSError(errno.EMFILE, "too many"))
    assert texts(caplog, "ulimit -n") == 2
