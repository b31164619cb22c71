"""A heavy request is announced, done in pieces, and holds up nobody but itself."""

from __future__ import annotations

from typing import Any

import pytest

from mpbroker.handlers.apis import k00_produce
from mpbroker.handlers.exchange import Exchange
from mpbroker.ipc.slots import Request, SlotFlag, SlotKind
from mpbroker.ipc.topology import LOG
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.protocol.messages import CreateTopicsRequest, ProduceRequest
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord
from tests.handlers.shared import HANDLER, PROCESSOR, Rig, request_frame, topic_image
from tests.handlers.test_fences import fence

PARTITIONS = 4
TOPIC = topic_image("t", 1, PARTITIONS)
LIGHT = request_frame(19, 5, CreateTopicsRequest([]))


@pytest.fixture(name="ready")
def _ready(rig: Rig) -> Rig:
    rig.publish(TOPIC)
    return rig


def produce(codec: Codec = Codec.GZIP, acks: int = -1) -> bytes:
    batch = bytes(build_batch([NewRecord(b"k", b"v", -1)], codec=codec))
    data = [ProduceRequest.PartitionProduceData(n, batch) for n in range(PARTITIONS)]
    request = ProduceRequest(None, acks, 1000, [ProduceRequest.TopicProduceData("t", TOPIC.topic_id, data)])
    return request_frame(0, 7, request)


def announced(made: Rig) -> bool:
    return made.memory.words("heavy").load(0) != 0


def send_heavy(made: Rig, connection: int = 1) -> None:
    made.processor.send(produce(), connection=connection, flags=SlotFlag.HEAVY)


def answered(made: Rig) -> list[int]:
    found = []
    for reply in made.processor.replies():
        found.append(reply.connection)
        if reply.kind == SlotKind.SEND and reply.owner == HANDLER:
            made.processor.give_back(reply)
    return found


def test_it_is_announced_from_before_it_is_taken_until_it_is_done(
    ready: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    request = ready.handler.request

    def watched(slot: Request) -> object:
        seen.append((slot.connection, announced(ready), ready.processor.from_handler.waiting()))
        return request(slot)

    monkeypatch.setattr(ready.handler, "request", watched)
    ready.processor.send(LIGHT, connection=1, flags=SlotFlag.HEAVY)
    ready.processor.send(LIGHT, connection=2)
    ready.turn()
    # The answer of the other one is out before the heavy one begins.
    assert seen == [(2, True, 0), (1, True, 1)]
    assert not announced(ready)


def test_one_that_the_native_path_can_do_is_no_work_at_all(ready: Rig) -> None:
    frame = produce(Codec.NONE)
    ready.processor.send(frame, flags=SlotFlag.HEAVY, room=4096)
    ready.turn()
    assert len(ready.log.take()) == 1
    assert not announced(ready)
    assert ready.handler.sleep_ms() > 0


def test_light_requests_are_answered_between_its_pieces(ready: Rig) -> None:
    send_heavy(ready)
    ready.turn()
    pieces = 0
    while not ready.log.jobs.waiting():
        assert announced(ready)
        assert ready.handler.sleep_ms() == 0
        ready.processor.send(LIGHT, connection=100 + pieces)
        ready.turn()
        assert answered(ready) == [100 + pieces]
        pieces += 1
    assert pieces >= PARTITIONS
    ready.turn()
    assert not announced(ready)
    (job,) = ready.log.take()
    ready.log.append(job)
    ready.turn()
    assert answered(ready) == [1]
    assert ready.handler.open == {}


def test_heavy_work_goes_on_however_much_else_there_is(ready: Rig) -> None:
    send_heavy(ready)
    for _ in range(PARTITIONS + 3):
        for _ in range(50):
            ready.processor.send(LIGHT, connection=2)
        ready.turn()
        assert len(answered(ready)) == 50
    assert ready.log.jobs.waiting() == 1


def test_heavy_requests_are_done_one_after_the_other(ready: Rig) -> None:
    for connection in (1, 2, 3):
        send_heavy(ready, connection)
    for _ in range(3 * (PARTITIONS + 3)):
        ready.turn()
    assert [job.connection for job in ready.log.take()] == [1, 2, 3]
    assert not announced(ready)


def test_the_log_process_dies_between_two_pieces(ready: Rig) -> None:
    """Processors take what was taken for lost: neither it nor one that waits may be appended after that."""
    send_heavy(ready, 1)
    send_heavy(ready, 2)
    ready.turn()
    ready.turn()
    fence(ready, LOG, alive=False, stage=1)
    assert sorted((r.connection, r.kind) for r in ready.processor.replies()) == [
        (1, SlotKind.CLOSE),
        (2, SlotKind.CLOSE),
    ]
    fence(ready, LOG, alive=False, stage=3)
    ready.memory.reset_rings_of(LOG)
    fence(ready, LOG, alive=True)
    for _ in range(2 * PARTITIONS):
        ready.turn()
    assert ready.log.take() == []
    assert ready.handler.open == {}
    assert not announced(ready)


def test_its_processor_dies_between_two_pieces(ready: Rig) -> None:
    send_heavy(ready, 1)
    send_heavy(ready, 2)
    ready.turn()
    ready.turn()
    fence(ready, PROCESSOR, alive=False)
    for _ in range(2 * PARTITIONS):
        ready.turn()
    assert ready.log.take() == []
    assert ready.handler.open == {}
    assert not announced(ready)
    assert ready.handler.arena.in_use_bytes == 0


def test_a_piece_that_fails_ends_its_request_only(ready: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    check = k00_produce.check

    def breaks(exchange: Exchange, *others: Any) -> Any:
        calls.append(exchange)
        if len(calls) == 3:
            raise RuntimeError("a decompressor is broken")
        return check(exchange, *others)

    monkeypatch.setattr(k00_produce, "check", breaks)
    send_heavy(ready, 1)
    send_heavy(ready, 2)
    for _ in range(3 * PARTITIONS):
        ready.turn()
    (reply,) = ready.processor.replies()
    _, response = decode_response_frame(0, 7, ready.processor.frame_of(reply)[4:])
    assert {p.error_code for p in response.responses[0].partition_responses} == {-1}
    assert [job.connection for job in ready.log.take()] == [2]
    assert not announced(ready)


def test_a_stopping_handler_finishes_it(ready: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpbroker.handlers.process.STOP_PATIENCE_MS", 0)
    send_heavy(ready, 1)
    send_heavy(ready, 2)
    ready.handler.finish()
    assert [job.connection for job in ready.log.take()] == [1, 2]
