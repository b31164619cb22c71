"""Produce requests whose partitions several log workers have: each does its part, the handler answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.process import LOG_FENCE_ANSWER, LOG_FENCE_CLOSE, LOG_FENCE_RESUME
from mpbroker.ipc.slots import SlotKind
from mpbroker.ipc.topology import log_worker
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.protocol.messages import DeleteRecordsRequest
from mpbroker.records.compression import Codec
from tests.handlers.test_heavy import LIGHT
from tests.support import handler_fences
from tests.support.handler_rig import HANDLER, PROCESSOR, Rig, fence, topic_image
from tests.support.handler_rig import rig as make_rig

WORKERS = 3
TOPIC = topic_image("t", 1, partitions=6, first_slot=3)
NOT_LEADER = 6


@pytest.fixture(name="ready")
def _ready() -> Iterator[Rig]:
    with make_rig(log_workers=WORKERS) as made:
        made.publish(TOPIC)
        yield made


def produce(*partitions: int, codec: Codec = Codec.NONE, acks: int = -1) -> bytes:
    return handler_fences.produce(codec, acks, topic=TOPIC, partitions=partitions)


def jobs(made: Rig) -> dict[int, Any]:
    """The job that each worker has got, at most one each."""
    made.turn()
    found = {log.worker: log.take() for log in made.logs}
    assert all(len(taken) <= 1 for taken in found.values())
    return {worker: taken[0] for worker, taken in found.items() if taken}


def results(made: Rig) -> list[tuple[int, int, int]]:
    """(partition, error, offset) of the one answer."""
    made.turn()
    (reply,) = made.processor.replies()
    assert (reply.kind, reply.connection) == (SlotKind.SEND, 7)
    _, response = decode_response_frame(0, 7, made.processor.frame_of(reply)[4:])
    (topic,) = response.responses
    return [(p.index, p.error_code, p.base_offset) for p in topic.partition_responses]


def kinds(made: Rig) -> list[int]:
    made.turn()
    return [reply.kind for reply in made.processor.replies()]


def test_what_one_worker_has_goes_to_it_alone_and_straight_on(ready: Rig) -> None:
    ready.processor.send(produce(1, 4))
    found = jobs(ready)
    assert [(worker, job.kind) for worker, job in found.items()] == [(1, SlotKind.PRODUCE)]
    assert ready.handler.turn.shared_jobs == 0


def test_the_answer_waits_for_all_workers_and_says_what_each_did(ready: Rig) -> None:
    for worker, log in enumerate(ready.logs):
        log.next_offset = 1000 * worker
    ready.processor.send(produce(2, 0, 1, 5))
    found = jobs(ready)
    assert {worker: job.kind for worker, job in found.items()} == dict.fromkeys(
        range(WORKERS), SlotKind.PRODUCE_BACK
    )
    for worker in (2, 0):
        ready.logs[worker].append(found[worker])
        assert kinds(ready) == []
    ready.logs[1].append(found[1], error=NOT_LEADER)
    assert results(ready) == [(2, 0, 2000), (0, 0, 0), (1, NOT_LEADER, -1), (5, 0, 2001)]
    assert ready.handler.turn.shared_jobs == 0
    assert ready.memory.counters(HANDLER).get(Counter.COUNT_PRODUCE_FAST) == 1


def test_the_way_through_python_says_the_same(ready: Rig) -> None:
    ready.processor.send(produce(2, 0, 1, 5, codec=Codec.GZIP))
    found = jobs(ready)
    assert all(job.owner == HANDLER for job in found.values())
    for worker in (1, 0):
        ready.logs[worker].append(found[worker])
    assert kinds(ready) == []
    ready.logs[2].append(found[2], error=NOT_LEADER)
    assert results(ready) == [(2, NOT_LEADER, -1), (0, 0, 1000), (1, 0, 1000), (5, NOT_LEADER, -1)]
    assert len(ready.handler.broker.log) == 0


@pytest.mark.parametrize(("error", "kind"), [(0, SlotKind.NOOP), (NOT_LEADER, SlotKind.CLOSE)])
def test_without_acks_there_are_no_bytes(ready: Rig, error: int, kind: SlotKind) -> None:
    ready.processor.send(produce(0, 1, acks=0))
    for worker, job in jobs(ready).items():
        ready.logs[worker].append(job, error=error if worker else 0)
    assert kinds(ready) == [kind]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_one_of_the_workers_dies(ready: Rig, codec: Codec) -> None:
    """Check that the job's memory is not used again while another worker has the job."""
    ready.processor.send(produce(0, 1, codec=codec))
    found = jobs(ready)
    fence(ready, log_worker(1), alive=False, stage=LOG_FENCE_CLOSE)
    # What goes through Python lies in the handler's memory: its connection may be closed at once.
    assert kinds(ready) == ([] if codec is Codec.NONE else [SlotKind.CLOSE])
    in_use = ready.handler.arena.in_use_bytes
    ready.logs[0].append(found[0])
    fence(ready, log_worker(1), alive=False, stage=LOG_FENCE_ANSWER)
    assert kinds(ready) == ([SlotKind.CLOSE] if codec is Codec.NONE else [])
    assert ready.handler.turn.shared_jobs == 0
    assert ready.handler.arena.in_use_bytes == 0
    assert (in_use == 0) == (codec is Codec.NONE)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.NONE])
def test_an_append_that_waits_for_room_is_lost_with_any_worker(codec: Codec) -> None:
    """The processors take every produce that was taken for lost, and have its memory for others: whichever
    worker died, what comes next out of that memory is another client's.
    """
    with make_rig(log_workers=WORKERS, reply_limit_bytes=1) as made:
        made.publish(TOPIC)
        made.processor.send(LIGHT, connection=1)
        made.turn()
        (answer,) = made.processor.replies()
        made.handler.turn.leaves_all = True
        made.processor.send(produce(0, codec=codec), connection=2)
        made.turn()
        fence(made, log_worker(1), alive=False, stage=LOG_FENCE_CLOSE)
        fence(made, log_worker(1), alive=False, stage=LOG_FENCE_RESUME)
        made.processor.give_back(answer)
        assert jobs(made) == {}
        assert [(reply.connection, reply.kind) for reply in made.processor.replies()] == [(2, SlotKind.CLOSE)]
        assert made.handler.intake.open == {}
        assert made.handler.arena.in_use_bytes == 0


def test_the_others_go_on_while_one_is_away(ready: Rig) -> None:
    fence(ready, log_worker(1), alive=False, stage=LOG_FENCE_CLOSE)
    fence(ready, log_worker(1), alive=False, stage=LOG_FENCE_RESUME)
    ready.processor.send(produce(0))
    found = jobs(ready)
    assert found[0].kind == SlotKind.PRODUCE
    ready.processor.send(produce(0, 1))
    found = jobs(ready)
    ready.logs[0].append(found[0])
    assert list(found) == [0]
    assert results(ready) == [(0, 0, 1000), (1, NOT_LEADER, -1)]
    ready.welcome(log_worker(1))
    ready.processor.send(produce(1))
    assert jobs(ready)[1].kind == SlotKind.PRODUCE


def test_nothing_is_said_to_a_processor_that_died(ready: Rig) -> None:
    ready.processor.send(produce(0, 1))
    found = jobs(ready)
    ready.logs[0].append(found[0])
    ready.turn()
    fence(ready, PROCESSOR, alive=False)
    assert ready.handler.turn.shared_jobs == 1
    ready.logs[1].append(found[1])
    assert kinds(ready) == []
    assert ready.handler.turn.shared_jobs == 0


def test_many_at_once_are_told_apart(ready: Rig) -> None:
    """Check it with more jobs than the table had places at first, answered in another order."""
    for number in range(200):
        ready.processor.send(produce(number % 3, (number + 1) % 3), connection=number)
    ready.turn()
    taken = [(log, job) for log in ready.logs for job in log.take()]
    for log, job in reversed(taken):
        log.append(job)
    ready.turn()
    replies = ready.processor.replies()
    assert sorted(reply.connection for reply in replies) == list(range(200))
    assert {reply.kind for reply in replies} == {SlotKind.SEND}
    assert ready.handler.turn.shared_jobs == 0


def test_a_stranger_returned_twice_is_dropped(ready: Rig) -> None:
    ready.processor.send(produce(0, 1))
    found = jobs(ready)
    ready.logs[0].append(found[0])
    ready.logs[0].append(found[0])
    assert kinds(ready) == []
    ready.logs[1].append(found[1])
    assert kinds(ready) == [SlotKind.SEND]


def test_records_are_deleted_by_the_workers_that_have_them(ready: Rig) -> None:
    """Check that a worker that is down gives errors for its own partitions only."""
    fence(ready, log_worker(2), alive=False, stage=LOG_FENCE_RESUME)
    partitions = [DeleteRecordsRequest.DeleteRecordsPartition(number, 0) for number in (0, 2)]
    request = DeleteRecordsRequest([DeleteRecordsRequest.DeleteRecordsTopic("t", partitions)], 1000)
    ready.send(21, 2, request)
    taken, _ = ready.logs[0].jobs.take(1 << 10)
    assert len(taken) == 64
    fence(ready, log_worker(0), alive=False, stage=LOG_FENCE_CLOSE)
    response = ready.answer(21, 2)
    (topic,) = response.topics
    assert [one.error_code for one in topic.partitions] == [NOT_LEADER, NOT_LEADER]
