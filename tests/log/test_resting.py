"""Partitions that rest: little is kept of them, and nobody notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.table import PartitionFlag
from mpbroker.log.attaching import rest
from mpbroker.log.partition_log import PartitionLog
from tests.log.rig import TOPIC_ID, Result, ensure
from tests.log.test_log_dirs import wait_for_helper
from tests.log.test_turn import Broker, settle

KAFKA_STORAGE_ERROR = 56
NOT_LEADER = 6


def said_of(log: PartitionLog) -> tuple[object, ...]:
    state = log.state
    return (
        state.carried(),
        state.published,
        state.producers.entries(),
        (state.table_slot, state.generation, state.config_version, state.oldest_config_version, state.synced),
        (state.segment_bytes, state.index_interval_bytes, state.append_time, state.fd, state.index_fds),
        (state.held_back, state.can_rest, state.unsynced),
    )


def at_rest(broker: Broker, partition: int = 0) -> PartitionLog:
    log = broker.process.manager.logs[broker.targets[partition][0]]
    # All of it lies in segments that were synced, as after a while.
    broker.process.manager.journals.release()
    while not log.state.can_rest:
        broker.process.work(5)
    log.close_files()
    before = said_of(log)
    rest(broker.process.turn, log.state)
    assert log.state.rests
    assert said_of(log) == before
    return log


@pytest.mark.parametrize("by_reference", [False, True])
@pytest.mark.parametrize("policy", ["group", "os"])
def test_the_next_append_wakes_it(
    rig: Callable[..., object], batch: Callable[..., bytearray], policy: str, by_reference: bool
) -> None:
    b = Broker(rig(log_flush_policy=policy), 3)  # type: ignore[arg-type]
    b.process.turn.for_tests(by_reference=by_reference)
    first = bytes(batch(2, producer=(7, 0, 0)))
    for number in range(3):
        assert b.produce(first, partition=number) == [Result(0, 0, -1, 0)]
    for number in range(3):
        log = at_rest(b, number)
        (again,) = b.produce(first, partition=number)
        assert (again.error, again.base_offset) == (0, 0), "it is not known to be there"
        at_rest(b, number)
        assert b.produce(bytes(batch(1, producer=(7, 0, 2))), partition=number) == [Result(0, 2, -1, 0)]
        assert not log.state.rests
        assert b.rig.partition(b.targets[number][0]).high_watermark == 3
    b.close()


def test_what_a_start_finds_rests(rig: Callable[..., object], batch: Callable[..., bytearray]) -> None:
    r = rig()
    b = Broker(r, 2)  # type: ignore[arg-type]
    b.produce(bytes(batch(5)))
    b.process.manager.close_cleanly()
    b.process.turn.close()
    again = Broker(r, 2)  # type: ignore[arg-type]
    logs = [again.process.manager.logs[slot] for slot, _, _ in again.targets]
    assert all(log.state.rests for log in logs)
    assert again.produce(bytes(batch(1))) == [Result(0, 5, -1, 0)]
    assert [log.state.rests for log in logs] == [False, True]
    again.process.manager.checkpoint_high_watermarks()
    again.process.manager.checkpoint_recovery_points()
    assert [log.state.rests for log in logs] == [False, True], "a look at its offsets does not wake it"
    again.close()


def test_nobody_else_gets_its_batches(rig: Callable[..., object], batch: Callable[..., bytearray]) -> None:
    """Of another generation of its slot, of earlier settings, of a topic that is gone."""
    b = Broker(rig())  # type: ignore[arg-type]
    slot, generation, version = b.targets[0]
    at_rest(b)

    def error_of(target: tuple[int, int, int]) -> int:
        b.rig.job([(target, bytes(batch()))])
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
    b.close()


def test_settings_reach_it(rig: Callable[..., object]) -> None:
    b = Broker(rig(), 2)  # type: ignore[arg-type]
    logs = [at_rest(b, number) for number in range(2)]
    b.rig.call(calls.EnsureTopic("t", TOPIC_ID, [0, 1], {"segment.bytes": "1048576"}, 6, 2))
    settle(b.process)
    b.rig.take_answer()
    assert all(log.state.rests for log in logs)
    assert [(log.state.segment_bytes, log.state.config_version) for log in logs] == [(1048576, 6)] * 2
    assert b.rig.partition(logs[1].state.table_slot).config_version == 6
    b.process.manager.follow_settings()
    assert all(log.state.rests for log in logs)
    b.close()


def test_it_goes_offline_with_its_directory(
    rig: Callable[..., object], batch: Callable[..., bytearray]
) -> None:
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
        assert b.produce(bytes(batch()), partition=number)[0].error == KAFKA_STORAGE_ERROR * is_hit
    b.close()


def test_what_waits_for_others_is_answered(
    rig: Callable[..., object], batch: Callable[..., bytearray]
) -> None:
    """A partition may rest while an answer that names it waits for another one."""
    b = Broker(rig(), 2)  # type: ignore[arg-type]
    results = b.produce(bytes(batch()))
    at_rest(b)
    b.rig.job([(b.targets[0], bytes(batch())), (b.targets[1], bytes(batch()))])
    b.settle()
    (reply,) = b.rig.replies()
    assert [result.error for result in reply.results] == [0, 0]
    assert results[0].error == 0
    b.close()


def test_an_open_file_keeps_it_awake(rig: Callable[..., object], batch: Callable[..., bytearray]) -> None:
    b = Broker(rig())  # type: ignore[arg-type]
    b.produce(bytes(batch()))
    log = b.process.manager.logs[b.targets[0][0]]
    rest(b.process.turn, log.state)
    assert not log.state.rests
    b.close()


def test_it_does_not_rest_before_its_segment_is_synced(
    rig: Callable[..., object], batch: Callable[..., bytearray]
) -> None:
    """Or nobody would ever say so, and a recovery would begin before what it has."""
    b = Broker(rig(), 2)  # type: ignore[arg-type]
    wait_for_helper(b.process)
    b.process.manager.journals.use()
    for number in range(2):
        b.produce(bytes(batch(3)), partition=number)
        assert not b.process.manager.logs[b.targets[number][0]].state.can_rest, "the journal alone has it"
    logs = [at_rest(b, number) for number in range(2)]
    b.settle()
    assert [(log.state.rests, log.state.synced) for log in logs] == [(True, 3)] * 2
    b.process.manager.checkpoint_recovery_points()
    assert [log.recovery_point for log in logs] == [3, 3]
    b.close()


def test_the_same_is_said_of_one_that_was_made_and_of_one_that_was_found(
    rig: Callable[..., object],
) -> None:
    r = rig()
    made = Broker(r, 3)  # type: ignore[arg-type]
    told = [said_of(at_rest(made, number))[1] for number in range(3)]
    made.close()
    r.call(ensure(3))  # type: ignore[attr-defined]
    found = made.process.manager.logs
    assert [found[slot].state.published for slot, _, _ in made.targets] == told
