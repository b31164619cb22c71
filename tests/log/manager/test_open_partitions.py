"""Partitions that rest: none of their files is open, and nobody notices."""

from __future__ import annotations

import logging
import os
import resource
import statistics
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.table import PartitionFlag
from mpbroker.log.manager import open_partitions
from mpbroker.log.partition.partition_log import PartitionLog
from tests.support.log_node import wait_for_io
from tests.support.log_rig import TOPIC_ID, MakeRig, Result, ensure
from tests.support.log_writer import make_batch, topic_config
from tests.support.polling import until
from tests.support.stepped_log import Broker, settle

pytestmark = pytest.mark.usefixtures("tidy")
KAFKA_STORAGE_ERROR = 56
NOT_LEADER = 6


def at_rest(broker: Broker, partition: int = 0) -> PartitionLog:
    log = broker.log(partition)
    # All of it lies in segments that were synced, as after a while.
    broker.process.manager.journals.release()
    until(lambda: log.state.can_rest, "the partition can rest", lambda: broker.process.work(5))
    log.close_files()
    assert rests(log)
    return log


def rests(log: PartitionLog) -> bool:
    return (log.state.fd, log.state.index_fds) == (-1, (-1, -1))


@pytest.mark.parametrize("by_reference", [False, True])
@pytest.mark.parametrize("policy", ["group", "os"])
def test_the_next_append_wakes_it(rig: MakeRig, policy: str, by_reference: bool) -> None:
    b = Broker(rig(log_flush_policy=policy), 3)  # type: ignore[arg-type]
    b.process.turn.for_tests(by_reference=by_reference)
    first = bytes(make_batch(2, producer=(7, 0, 0)))
    for number in range(3):
        assert b.produce(first, partition=number) == [Result(0, 0, -1, 0)]
    for number in range(3):
        log = at_rest(b, number)
        (again,) = b.produce(first, partition=number)
        assert (again.error, again.base_offset) == (0, 0), "it is not known to be there"
        at_rest(b, number)
        assert b.produce(bytes(make_batch(1, producer=(7, 0, 2))), partition=number) == [Result(0, 2, -1, 0)]
        assert not rests(log)
        assert b.rig.partition(b.targets[number][0]).high_watermark == 3


def test_what_a_start_finds_rests(rig: MakeRig) -> None:
    r = rig()
    b = Broker(r, 2)  # type: ignore[arg-type]
    b.produce(bytes(make_batch(5)))
    b.process.manager.close_cleanly()
    b.process.turn.close()
    again = Broker(r, 2)  # type: ignore[arg-type]
    logs = [again.process.manager.logs[slot] for slot, _, _ in again.targets]
    assert all(rests(log) for log in logs)
    assert again.produce(bytes(make_batch(1))) == [Result(0, 5, -1, 0)]
    assert [rests(log) for log in logs] == [False, True]
    again.process.manager.checkpoints.write_high_watermarks()
    again.process.manager.checkpoints.write_recovery_points()
    assert [rests(log) for log in logs] == [False, True], "a look at its offsets does not wake it"


def test_little_is_kept_of_it(b: Broker) -> None:
    """Check the memory that the log worker keeps for each of thousands of partitions."""
    manager, topic_id = b.process.manager, TOPIC_ID[::-1]
    topic, config = calls.EnsureTopic("u", topic_id, []), topic_config()

    def begin(number: int) -> None:
        log = PartitionLog(f"{manager.dirs[0].path}/u-{number}", "u", number, topic_id, config)
        log.apply_config(config)
        manager._place(log, manager.dirs[0], topic, 0)
        log.state.all_is_durable(0)
        log.state.flags = PartitionFlag.PARTITION_LIVE
        manager.open_partitions.begin(log)
        assert rests(log)

    for number in range(10):
        begin(number)
    taken = []
    tracemalloc.start()
    try:
        for number in range(10, 60):
            before = tracemalloc.get_traced_memory()[0]
            begin(number)
            taken.append(tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()
    assert statistics.median(taken) < 1000


def test_nobody_else_gets_its_batches(b: Broker) -> None:
    """Check batches of another slot generation, of earlier settings, and of a deleted topic."""
    slot, generation, version = b.targets[0]
    at_rest(b)

    def error_of(target: tuple[int, int, int]) -> int:
        b.rig.job([(target, bytes(make_batch()))])
        b.settle()
        return b.rig.replies()[0].results[0].error

    assert error_of((slot, generation + 1, version)) == NOT_LEADER
    assert error_of((slot, generation, version + 1)) == NOT_LEADER
    at_rest(b)
    b.rig.call(calls.RemoveTopic("t", TOPIC_ID))
    b.settle()
    assert isinstance(b.rig.take_answer(), calls.RemovedTopic)
    assert error_of((slot, generation, version)) == NOT_LEADER
    assert b.rig.partition(slot).flags == PartitionFlag.PARTITION_DELETED


def test_settings_reach_it(rig: MakeRig) -> None:
    b = Broker(rig(), 2)  # type: ignore[arg-type]
    logs = [at_rest(b, number) for number in range(2)]
    b.rig.call(calls.EnsureTopic("t", TOPIC_ID, [0, 1], {"segment.bytes": "1048576"}, 6, 2))
    settle(b.process)
    b.rig.take_answer()
    assert all(rests(log) for log in logs)
    assert [(log.state.segment_bytes, log.state.config_version) for log in logs] == [(1048576, 6)] * 2
    assert b.rig.partition(logs[1].state.table_slot).config_version == 6
    b.process.manager.follow_settings()
    assert all(rests(log) for log in logs)


def test_it_goes_offline_with_its_directory(rig: MakeRig) -> None:
    r = rig()
    (r.directory.parent / "other").mkdir()  # type: ignore[attr-defined]
    paths = (str(r.directory), str(r.directory.parent / "other"))  # type: ignore[attr-defined]
    r.config = type(r.config)(log_dirs=paths)  # type: ignore[attr-defined]
    b = Broker(r, 4)  # type: ignore[arg-type]
    logs = [at_rest(b, number) for number in range(4)]
    hit = [number for number, log in enumerate(logs) if log.state.log_dir == 1]
    assert 0 < len(hit) < 4
    b.process.turn.storage_failed(1, 5)
    b.settle()
    for number, log in enumerate(logs):
        is_hit = number in hit
        flags = PartitionFlag.PARTITION_OFFLINE if is_hit else PartitionFlag.PARTITION_LIVE
        assert b.rig.partition(log.state.table_slot).flags == flags
        assert b.produce(bytes(make_batch()), partition=number)[0].error == KAFKA_STORAGE_ERROR * is_hit


def test_what_waits_for_others_is_answered(rig: MakeRig) -> None:
    """Check that a partition may become dormant while an answer that names it waits for another one."""
    b = Broker(rig(), 2)  # type: ignore[arg-type]
    results = b.produce(bytes(make_batch()))
    at_rest(b)
    b.rig.job([(b.targets[0], bytes(make_batch())), (b.targets[1], bytes(make_batch()))])
    b.settle()
    (reply,) = b.rig.replies()
    assert [result.error for result in reply.results] == [0, 0]
    assert results[0].error == 0


def test_it_does_not_rest_before_its_segment_is_synced(rig: MakeRig) -> None:
    """Check it: otherwise the recovery point would never cover what the partition has."""
    b = Broker(rig(), 2)  # type: ignore[arg-type]
    wait_for_io(b.process)
    b.process.manager.journals.use()
    for number in range(2):
        b.produce(bytes(make_batch(3)), partition=number)
        assert not b.log(number).state.can_rest, "the journal alone has it"
    logs = [at_rest(b, number) for number in range(2)]
    b.settle()
    assert [(rests(log), log.state.synced) for log in logs] == [(True, 3)] * 2
    b.process.manager.checkpoints.write_recovery_points()
    assert [log.recovery_point for log in logs] == [3, 3]


def test_the_same_is_said_of_one_that_was_made_and_of_one_that_was_found(rig: MakeRig) -> None:
    r = rig()
    made = Broker(r, 3)  # type: ignore[arg-type]
    told = [at_rest(made, number).state.published for number in range(3)]
    made.close()
    r.call(ensure(3))  # type: ignore[attr-defined]
    found = made.process.manager.logs
    assert [found[slot].state.published for slot, _, _ in made.targets] == told


@pytest.fixture
def few_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let 16 partitions be open.

    A limit of file descriptors would not do: in a process of tests others have most of them.
    """
    monkeypatch.setattr(open_partitions, "most_open", lambda _: 16)


@contextmanager
def few_files(more: int) -> Iterator[None]:
    """Set a limit of so many files more than are open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = set(map(int, os.listdir("/proc/self/fd")))  # noqa: PTH208
    free = (number for number in range(soft) if number not in taken)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(islice(free, more, None)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_awake")
@pytest.mark.parametrize("policy", ["group", "os"])
def test_there_are_more_partitions_than_files_may_be_open(rig: MakeRig, policy: str) -> None:
    """Check that each gets its batches again and again, and that neither broker nor kernel refuses any."""
    r = rig(log_flush_policy=policy)
    with few_files(100):
        b = Broker(r, 60)  # type: ignore[arg-type]
        process = b.process
        for turn in range(4):
            for first in range(0, 60, 5):
                chosen = b.targets[first : first + 5]
                b.rig.job([(target, bytes(make_batch(1, producer=(7, 0, turn)))) for target in chosen])
                settle(process)
                (reply,) = b.rig.replies()
                assert [result.error for result in reply.results] == [0] * 5, (turn, first)
                process._do_housekeeping()
        assert {b.rig.partition(slot).high_watermark for slot, _, _ in b.targets} == {4}
        assert process.manager.close_cleanly() == 1


@pytest.mark.usefixtures("few_awake")
def test_too_few_files_for_one_round_are_told_as_such(rig: MakeRig, caplog: pytest.LogCaptureFixture) -> None:
    """Check that the client may retry, and that neither a full nor a failed disk is reported."""
    caplog.set_level(logging.ERROR)
    r = rig()
    with few_files(90):
        b = Broker(r, 60)  # type: ignore[arg-type]
        b.rig.job([(target, bytes(make_batch())) for target in b.targets])
        settle(b.process)
        (reply,) = b.rig.replies()
        errors = [result.error for result in reply.results]
        assert set(errors) == {0, KAFKA_STORAGE_ERROR}
        b.process._take_failures()
        while any(errors):
            left = [target for target, error in zip(b.targets, errors, strict=True) if error]
            b.rig.job([(target, bytes(make_batch())) for target in left])
            settle(b.process)
            (reply,) = b.rig.replies()
            answers = iter(reply.results)
            errors = [next(answers).error if error else 0 for error in errors]
            b.process._do_housekeeping()
        assert {b.rig.partition(slot).high_watermark for slot, _, _ in b.targets} == {1}
        assert b.process.turn.failed_dirs == 0
    assert "Too many open files: produces are refused until this passes" in caplog.text
    assert "ulimit -n" in caplog.text
    assert "Delete topics" not in caplog.text
