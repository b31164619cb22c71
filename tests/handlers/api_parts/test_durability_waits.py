"""Requests about the end of a log wait for what is not durable yet; the test is the log worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpbroker.handlers.api_parts.durability_waits import DEFAULT_TIMEOUT_MS
from mpbroker.ipc.calls import DeleteBefore, DeletedBefore, DeletedRecords, DeleteRecords
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.process import LOG_FENCE_CLOSE, LOG_FENCE_RESUME
from mpbroker.ipc.slots import SlotKind
from mpbroker.ipc.topology import LOG
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.numbers import READ_COMMITTED
from shm.clock import monotonic_ms
from tests.handlers.test_log_apis import answer_from_log, calls_to_log
from tests.support.handler_logs import LIST_OFFSETS, T0, Logged, ask, fetch, partition_of, two_segments
from tests.support.handler_rig import fence

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
NOT_LEADER, TIMED_OUT = 6, 7
DELETE = 21
TIMEOUT_MS = 1_234
LATER = T0 + 100


@pytest.fixture(name="log")
def _log(tmp_path: Path) -> Iterator[Logged]:
    """Make a log of 100 durable records, and ten that are not."""
    with two_segments(tmp_path) as log:
        append_undurable(log)
        yield log


def append_undurable(log: Logged) -> None:
    offset, base, position = log.end, log.base, log.position
    log.append(visible=False)
    log.publish(
        **{f"{mark}_segment": base for mark in ("high_watermark", "last_stable")},
        **{f"{mark}_position": position for mark in ("high_watermark", "last_stable")},
        high_watermark=offset,
        last_stable_offset=offset,
    )


def become_durable(log: Logged) -> None:
    log.changes.clear()
    log.publish()
    log.rig.turn()


def expire(log: Logged, now_ms: int) -> None:
    log.rig.handler.broker.fetches.expire(now_ms)
    log.rig.turn()


def offsets(
    timestamp: int, *more: tuple[int, int], isolation: int = 0, timeout_ms: int = TIMEOUT_MS
) -> m.ListOffsetsRequest:
    """Ask for partition 0 and others: (partition, timestamp)."""
    wanted = [m.ListOffsetsRequest.ListOffsetsPartition(0, -1, timestamp)]
    wanted += [m.ListOffsetsRequest.ListOffsetsPartition(number, -1, at) for number, at in more]
    topic = m.ListOffsetsRequest.ListOffsetsTopic("logged", wanted)
    return m.ListOffsetsRequest(-1, isolation, [topic], timeout_ms)


def send(log: Logged, request: Any, key: int = LIST_OFFSETS, version: int = 10) -> None:
    log.rig.send(key, version, request)


def wait(log: Logged, request: Any, key: int = LIST_OFFSETS, version: int = 10) -> None:
    """Send a request that must wait."""
    send(log, request, key, version)
    assert [reply.kind for reply in log.rig.processor.replies()] == [SlotKind.PARKED]
    assert len(log.rig.handler.broker.fetches) == 1
    log.rig.turn()
    assert not log.rig.handler.scheduler.has_work(), "nobody looks again and again"


def answers(log: Logged, version: int = 10) -> list[tuple[int, int]]:
    """(error, offset) of each partition. Nothing may wait any more."""
    response = log.rig.answer(LIST_OFFSETS, version)
    assert len(log.rig.handler.broker.fetches) == 0
    return [(one.error_code, one.offset) for one in response.topics[0].partitions]


@pytest.mark.parametrize(
    ("timestamp", "expected"), [(LATEST, 110), (MAX_TIMESTAMP, 109), (LATER, 100), (LATER + 99, -1)]
)
@pytest.mark.parametrize("isolation", [0, READ_COMMITTED])
def test_an_answer_waits_for_the_round(log: Logged, timestamp: int, expected: int, isolation: int) -> None:
    wait(log, offsets(timestamp, isolation=isolation))
    become_durable(log)
    assert answers(log) == [(0, expected)]


@pytest.mark.parametrize(("timestamp", "expected"), [(EARLIEST, 0), (T0 + 99, 99), (T0, 0)])
def test_what_does_not_depend_on_the_end_is_told_at_once(log: Logged, timestamp: int, expected: int) -> None:
    send(log, offsets(timestamp))
    assert answers(log) == [(0, expected)]


def test_an_end_that_is_durable_is_told_at_once(log: Logged) -> None:
    become_durable(log)
    for timestamp, expected in ((LATEST, 110), (MAX_TIMESTAMP, 109), (LATER + 99, -1)):
        send(log, offsets(timestamp))
        assert answers(log) == [(0, expected)]


def test_others_are_served_meanwhile(log: Logged) -> None:
    wait(log, offsets(LATEST))
    log.rig.send(ApiKey.METADATA, 5, m.MetadataRequest([]), connection=9)
    assert [reply.connection for reply in log.rig.processor.replies()] == [9]
    become_durable(log)
    assert answers(log) == [(0, 110)]


def test_all_partitions_are_answered_together(log: Logged) -> None:
    wait(log, offsets(LATEST, (1, LATEST), (7, LATEST)))
    become_durable(log)
    assert answers(log) == [(0, 110), (0, 0), (3, -1)]


def test_what_is_appended_meanwhile_is_not_waited_for(log: Logged) -> None:
    wait(log, offsets(LATEST))
    log.changes.clear()
    append_undurable(log)
    log.rig.turn()
    assert answers(log) == [(0, 110)]


@pytest.mark.parametrize(
    ("version", "timeout_ms", "expected_ms"),
    [(10, TIMEOUT_MS, TIMEOUT_MS), (10, 0, DEFAULT_TIMEOUT_MS), (9, 0, DEFAULT_TIMEOUT_MS)],
)
def test_it_waits_as_long_as_the_request_says(
    log: Logged, version: int, timeout_ms: int, expected_ms: int
) -> None:
    before_ms = monotonic_ms()
    wait(log, offsets(LATEST, (1, LATEST), timeout_ms=timeout_ms), version=version)
    expire(log, before_ms + expected_ms - 1)
    assert log.rig.processor.replies() == []
    expire(log, monotonic_ms() + expected_ms)
    assert answers(log, version) == [(TIMED_OUT, -1), (0, 0)]


def test_it_ends_with_the_log_worker(log: Logged) -> None:
    wait(log, offsets(LATEST, (1, LATEST)))
    fence(log.rig, LOG, alive=False, stage=LOG_FENCE_CLOSE)
    assert answers(log) == [(NOT_LEADER, -1), (0, 0)]
    fence(log.rig, LOG, alive=False, stage=LOG_FENCE_RESUME)
    send(log, offsets(LATEST))
    assert answers(log) == [(NOT_LEADER, -1)], "before there is a successor"
    fence(log.rig, LOG, alive=True)
    become_durable(log)
    send(log, offsets(LATEST))
    assert answers(log) == [(0, 110)]


def test_it_ends_when_the_records_are_cut_off(log: Logged) -> None:
    wait(log, offsets(LATEST))
    log.publish(log_end_offset=100)
    log.rig.turn()
    assert answers(log) == [(NOT_LEADER, -1)]


def test_it_ends_with_its_connection(log: Logged) -> None:
    wait(log, offsets(LATEST))
    log.rig.processor.cancel(7)
    log.rig.turn()
    assert [reply.kind for reply in log.rig.processor.replies()] == [SlotKind.NOOP]
    assert log.rig.handler.intake.open == {}
    become_durable(log)
    assert log.rig.processor.replies() == []


def test_its_memory_is_bounded(log: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that one that may not wait is told so."""
    monkeypatch.setattr(log.rig.handler.broker.parked_memory, "has_room", lambda *_: False)
    send(log, offsets(LATEST))
    assert answers(log) == [(TIMED_OUT, -1)]


# ---- DeleteRecords


def delete(*wanted: tuple[int, int]) -> m.DeleteRecordsRequest:
    partitions = [m.DeleteRecordsRequest.DeleteRecordsPartition(*one) for one in wanted]
    return m.DeleteRecordsRequest(
        [m.DeleteRecordsRequest.DeleteRecordsTopic("logged", partitions)], TIMEOUT_MS
    )


def results(log: Logged) -> list[tuple[int, int]]:
    response = log.rig.answer(DELETE, 2)
    return [(one.error_code, one.low_watermark) for one in response.topics[0].partitions]


@pytest.mark.parametrize("offset", [101, 110, -1])
def test_records_are_deleted_when_they_are_durable(log: Logged, offset: int) -> None:
    wait(log, delete((0, offset), (1, 0)), DELETE, 2)
    assert calls_to_log(log.rig) == []
    become_durable(log)
    ((call, asked),) = calls_to_log(log.rig)
    assert asked == DeleteRecords([DeleteBefore(0, 5, offset), DeleteBefore(1, 5, 0)])
    answer_from_log(log.rig, call, DeletedRecords([DeletedBefore(0, 110), DeletedBefore(0, 0)]))
    assert results(log) == [(0, 110), (0, 0)]


@pytest.mark.parametrize("offset", [100, 111])
def test_a_deletion_that_can_be_decided_is_asked_for_at_once(log: Logged, offset: int) -> None:
    send(log, delete((0, offset)), DELETE, 2)
    ((_, asked),) = calls_to_log(log.rig)
    assert asked == DeleteRecords([DeleteBefore(0, 5, offset)])


def test_a_deletion_waits_as_long_as_its_request_says(log: Logged) -> None:
    """Check that the other partitions are done all the same."""
    wait(log, delete((0, 110), (1, 0)), DELETE, 2)
    expire(log, monotonic_ms() + TIMEOUT_MS)
    ((call, asked),) = calls_to_log(log.rig)
    assert asked == DeleteRecords([DeleteBefore(1, 5, 0)])
    answer_from_log(log.rig, call, DeletedRecords([DeletedBefore(0, 0)]))
    assert results(log) == [(TIMED_OUT, -1), (0, 0)]


def test_a_deletion_ends_with_the_log_worker(log: Logged) -> None:
    wait(log, delete((0, 110)), DELETE, 2)
    fence(log.rig, LOG, alive=False, stage=LOG_FENCE_CLOSE)
    assert results(log) == [(NOT_LEADER, -1)]


# ---- Fetch and OffsetForLeaderEpoch


@pytest.mark.parametrize("isolation", [0, READ_COMMITTED])
@pytest.mark.parametrize("offset", [100, 105, 110])
def test_a_fetch_up_to_the_log_end_is_in_range(log: Logged, offset: int, isolation: int) -> None:
    """Check that it brings nothing before that is durable, with or without the turn."""
    for native in (True, False):
        log.rig.handler.turn.fetch_is_fast = native
        before = log.rig.context.counters.get(Counter.COUNT_FETCHES_FAST)
        found = partition_of(ask(log, fetch(offset, isolation_level=isolation, last_fetched_epoch=0)))
        assert (found.error_code, found.high_watermark, bytes(found.records)) == (0, 100, b"")
        assert log.rig.context.counters.get(Counter.COUNT_FETCHES_FAST) - before == native
        assert partition_of(ask(log, fetch(111, isolation_level=isolation))).error_code == 1


def test_a_fetch_waits_for_what_becomes_durable(log: Logged) -> None:
    wait(log, fetch(105, wait_ms=60_000), 1, 12)
    become_durable(log)
    (reply,) = log.rig.processor.replies()
    assert reply.kind == SlotKind.SEND_PARTS


def test_an_epoch_ends_at_the_log_end(log: Logged) -> None:
    """Check that a consumer that has written more than is durable does not take it for cut off."""
    wanted = m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(0, -1, 0)
    topic = m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic("logged", [wanted])
    key = ApiKey.OFFSET_FOR_LEADER_EPOCH
    response = log.rig.ask(key, 4, m.OffsetForLeaderEpochRequest(-1, [topic]))
    assert response.topics[0].partitions[0].end_offset == 110
