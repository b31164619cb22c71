"""What a handler does when a peer dies and when its successor comes, and that nobody is left waiting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mpbroker.ipc.calls import AllocateProducerIds, ForwardedRequest
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.process import LOG_FENCE_ANSWER, LOG_FENCE_RESUME
from mpbroker.ipc.slots import SlotKind, unpack_request
from mpbroker.ipc.topology import COORDINATOR, LOG
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.protocol.messages import CreateTopicsRequest, HeartbeatRequest, InitProducerIdRequest
from mpbroker.records.compression import Codec
from tests.support.handler_fences import TOPIC, kinds, produce
from tests.support.handler_rig import HANDLER, PROCESSOR, Rig, fence, request_frame
from tests.support.polling import until

READY = (TOPIC,)


def answers(made: Rig) -> dict[int, bytes]:
    """Frames by connection."""
    replies = [reply for reply in made.processor.replies() if reply.kind == SlotKind.SEND]
    return {reply.connection: made.processor.frame_of(reply) for reply in replies}


def error_of(made: Rig) -> int:
    response = made.answer(0, 7)
    return int(response.responses[0].partition_responses[0].error_code)


def test_the_log_process_dies_and_comes_back(ready: Rig) -> None:
    ready.processor.send(produce(Codec.GZIP), connection=1)
    ready.turn()
    fence(ready, LOG, alive=False, stage=1)
    # Nobody knows what became of it.
    assert kinds(ready) == [(1, SlotKind.CLOSE)]
    ready.processor.send(produce(), connection=2)
    ready.turn()
    assert ready.processor.replies() == []
    fence(ready, LOG, alive=False, stage=LOG_FENCE_ANSWER)
    assert ready.processor.replies() == []
    fence(ready, LOG, alive=False, stage=LOG_FENCE_RESUME)
    assert error_of(ready) == 6
    ready.welcome(LOG)
    ready.processor.send(produce(), connection=3)
    ready.turn()
    (job,) = ready.log.take()
    assert (job.kind, job.connection) == (SlotKind.PRODUCE, 3)
    assert ready.handler.intake.open == {}


def overfill(ready: Rig) -> None:
    """Produce more than the ring to the log process holds. A turn ends early where the machine is busy."""
    frame, taken = produce(), ready.processor.to_handler
    for group in range(2):
        for i in range(600):
            ready.processor.send(frame, connection=group * 600 + i)
        until(lambda: taken.waiting() == 0, "the handler has taken all", ready.turn)
    ready.turn()
    assert ready.log.jobs.waiting() == 1024


def test_jobs_that_waited_for_room_close_their_connections(ready: Rig) -> None:
    overfill(ready)
    fence(ready, LOG, alive=False)
    # What stood in the ring is the processors' to close: only they know that it was never answered.
    assert kinds(ready) == [(connection, SlotKind.CLOSE) for connection in range(1024, 1200)]


def test_a_dead_log_rings_nobody_for_room(ready: Rig) -> None:
    overfill(ready)
    _, wants = ready.log.jobs.take(1)
    assert wants
    fence(ready, LOG, alive=False)
    _, wants = ready.log.jobs.take(1)
    assert not wants


def test_nothing_is_appended_while_there_is_no_log_process(ready: Rig) -> None:
    jobs, told = ready.handler.broker.log, []
    jobs.set_up(0, False)
    request = unpack_request(ready.processor.slot(produce()))
    some: Any = SimpleNamespace(slot=0, batch=SimpleNamespace(rebuilt=False, data=b""))
    jobs.append(request, -1, 1000, [some], told.append)
    assert told == [None]
    ready.handler.flush()
    assert ready.log.take() == []
    assert ready.handler.arena.in_use_bytes == 0


def test_a_request_in_a_stale_block_closes_its_connection(ready: Rig) -> None:
    frame = request_frame(19, 5, CreateTopicsRequest([]))
    slot = unpack_request(ready.processor.slot(frame, connection=9))
    ready.handler.intake.serve(slot._replace(generation=slot.generation + 1))
    ready.handler.flush()
    assert kinds(ready) == [(9, SlotKind.CLOSE)]


def test_an_unanswered_produce_that_cannot_be_charged_closes_its_connection(
    ready: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("the rates are broken")

    throttling = ready.handler.broker.throttling
    monkeypatch.setattr(throttling, "on", True)
    monkeypatch.setattr(throttling, "charge", broken)
    ready.processor.send(produce(Codec.GZIP, acks=0), connection=5)
    ready.turn()
    ready.append()
    assert kinds(ready) == [(5, SlotKind.CLOSE)]
    assert ready.handler.intake.open == {}


def test_a_stale_job_of_the_dead_log_process_is_ignored(ready: Rig) -> None:
    ready.processor.send(produce(Codec.GZIP))
    ready.turn()
    (job,) = ready.log.take()
    ready.log.append(job)
    fence(ready, LOG, alive=False)
    fence(ready, LOG, alive=False, stage=3)
    ready.turn()
    assert kinds(ready) == [(7, SlotKind.CLOSE)]
    assert ready.handler.arena.in_use_bytes == 0


def test_the_coordinator_dies_and_comes_back(ready: Rig) -> None:
    topic = CreateTopicsRequest.CreatableTopic("new", 1, 1, [], [])
    ready.processor.send(request_frame(19, 5, CreateTopicsRequest([topic])), connection=1)
    ready.send(22, 4, InitProducerIdRequest(None, 1), connection=2)
    fence(ready, COORDINATOR, alive=False)
    replies = {r.connection: ready.processor.frame_of(r) for r in ready.processor.replies()}
    assert decode_response_frame(19, 5, replies[1][4:])[1].topics[0].error_code == 41
    assert decode_response_frame(22, 4, replies[2][4:])[1].error_code == 14
    ready.welcome(COORDINATOR)
    ready.send(22, 4, InitProducerIdRequest(None, 1))
    assert len(ready.coordinator.take()) == 1


def test_who_asks_without_a_coordinator_is_answered_by_its_successor(ready: Rig) -> None:
    fence(ready, COORDINATOR, alive=False)
    for connection in (1, 2):
        ready.processor.send(request_frame(22, 4, InitProducerIdRequest(None, 1)), connection=connection)
    for connection in (3, 4):
        heartbeat = HeartbeatRequest("g", 1, "m")
        ready.processor.send(request_frame(12, 4, heartbeat), connection=connection)
    ready.turn()
    assert answers(ready) == {}
    # Who goes meanwhile is no call of the successor's.
    ready.processor.cancel(3)
    ready.turn()
    ready.welcome(COORDINATOR)
    ready.turn()
    asked = [message for _, message in ready.coordinator.take()]
    assert [type(message) for message in asked] == [AllocateProducerIds, ForwardedRequest]
    assert answers(ready) == {}


def test_without_a_successor_the_wait_ends(ready: Rig) -> None:
    fence(ready, COORDINATOR, alive=False)
    topic = CreateTopicsRequest.CreatableTopic("new", 1, 1, [], [])
    ready.processor.send(request_frame(19, 5, CreateTopicsRequest([topic])), connection=1)
    ready.send(12, 4, HeartbeatRequest("g", 1, "m"), connection=2)
    coordinator = ready.handler.broker.coordinator
    deadline_ms = coordinator.next_deadline_ms()
    assert deadline_ms is not None
    coordinator.expire(deadline_ms - 1)
    assert answers(ready) == {}
    ready.no_successor_comes()
    replies = answers(ready)
    assert decode_response_frame(19, 5, replies[1][4:])[1].topics[0].error_code == 41
    assert decode_response_frame(12, 4, replies[2][4:])[1].error_code == 15
    assert coordinator.next_deadline_ms() is None
    fence(ready, COORDINATOR, alive=True)
    ready.turn()
    assert ready.coordinator.take() == []


def test_a_processor_dies_and_comes_back(ready: Rig) -> None:
    ready.processor.send(produce(Codec.GZIP), connection=1)
    ready.turn()
    # Another request is answered, and its block is lent to the processor when that dies.
    ready.send(19, 5, CreateTopicsRequest([]), connection=2)
    assert ready.handler.broker.responses.lent_blocks == 1
    counted, arena = Counter.COUNT_ARENA_BYTES, ready.handler.arena
    before = ready.memory.counters(HANDLER).get(counted)
    assert before == arena.in_use_bytes > 0
    ready.processor.send(produce(), connection=3)
    fence(ready, PROCESSOR, alive=False)
    assert ready.handler.broker.responses.lent_blocks == 0
    assert ready.memory.counters(HANDLER).get(counted) == arena.in_use_bytes < before
    # The append goes on; its result finds nobody to be told.
    ready.append()
    assert ready.handler.intake.open == {}
    assert ready.handler.arena.in_use_bytes == 0
    assert ready.memory.ring(HANDLER, LOG).waiting() == 0
    ready.welcome(PROCESSOR)
    ready.processor.to_handler.rebind()
    ready.processor.from_handler.rebind()
    ready.send(19, 5, CreateTopicsRequest([]), connection=4)
    assert kinds(ready) == [(4, SlotKind.SEND)]


def test_jobs_in_the_arena_of_a_dead_processor_are_not_sent(ready: Rig) -> None:
    overfill(ready)
    fence(ready, PROCESSOR, alive=False)
    assert len(ready.log.take()) == 1024
    ready.turn()
    assert ready.log.take() == []


def test_answers_wait_while_the_ring_to_the_processor_is_full(ready: Rig) -> None:
    frame = request_frame(19, 5, CreateTopicsRequest([]))
    for group in range(3):
        for i in range(500):
            ready.processor.send(frame, connection=group * 500 + i)
        ready.turn()
    assert ready.handler.sleep_ms() <= 2
    seen = [reply.connection for reply in ready.processor.replies()]
    assert len(seen) == 1024
    ready.turn()
    seen += [reply.connection for reply in ready.processor.replies()]
    assert seen == list(range(1500))


def test_the_handler_notices_peers_that_start_after_it(rig: Rig) -> None:
    roles = rig.memory.words("roles")
    roles.store(LOG, 0)
    roles.store(COORDINATOR, 0)
    rig.handler.set_log_up(0, False)
    rig.handler.broker.coordinator.server_is_up = False
    rig.turn()
    assert not rig.handler.turn.log_is_up
    roles.store(LOG, 1)
    roles.store(COORDINATOR, 1)
    rig.turn()
    assert rig.handler.turn.log_is_up
    assert rig.handler.broker.coordinator.server_is_up


def test_after_a_fence_only_a_welcome_counts(ready: Rig) -> None:
    fence(ready, LOG, alive=False, stage=LOG_FENCE_RESUME)
    fence(ready, COORDINATOR, alive=False)
    roles = ready.memory.words("roles")
    roles.store(LOG, 2)
    roles.store(COORDINATOR, 2)
    ready.turn()
    assert not ready.handler.turn.log_is_up
    assert not ready.handler.broker.coordinator.server_is_up
