"""A heavy request is announced, done in pieces, and holds up nobody but itself."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mpbroker.handlers.apis import k00_produce
from mpbroker.handlers.context import RequestContext
from mpbroker.ipc.metadata import TopicImage
from mpbroker.ipc.slots import Request, SlotFlag, SlotKind
from mpbroker.ipc.topology import LOG
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import CreateTopicsRequest
from mpbroker.records.compression import Codec
from tests.handlers.test_fences import fence
from tests.support import handler_fences
from tests.support.handler_rig import HANDLER, PROCESSOR, Rig, request_frame, topic_image

PARTITIONS = 4
TOPIC = topic_image("t", 1, PARTITIONS)
LIGHT = request_frame(19, 5, CreateTopicsRequest([]))
READY = (TOPIC,)


def produce(
    codec: Codec = Codec.GZIP,
    acks: int = -1,
    value: bytes = b"v",
    partitions: int = PARTITIONS,
    topic: TopicImage = TOPIC,
    native: bool = False,
) -> bytes:
    return handler_fences.produce(
        codec, acks, topic=topic, partitions=range(partitions), value=value, native=native
    )


def announced(made: Rig) -> bool:
    return made.memory.words("heavy").load(0) != 0


def send_heavy(made: Rig, connection: int = 1, partitions: int = PARTITIONS) -> None:
    made.processor.send(produce(partitions=partitions), connection=connection, flags=SlotFlag.HEAVY)


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
    serve = ready.handler.intake.serve

    def watched(slot: Request) -> Any:
        seen.append((slot.connection, announced(ready), ready.processor.from_handler.waiting()))
        return serve(slot)

    monkeypatch.setattr(ready.handler.intake, "serve", watched)
    monkeypatch.setattr(ready.handler.scheduler, "_begin", watched)
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
    ready.append()
    assert answered(ready) == [1]
    assert ready.handler.intake.open == {}


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


# Of one partition the next piece is the append, of more it is the next batch.
@pytest.mark.parametrize("partitions", [1, PARTITIONS])
def test_the_log_process_dies_between_two_pieces(ready: Rig, partitions: int) -> None:
    """Processors take what was taken for lost: neither it nor one that waits may be appended after that."""
    send_heavy(ready, 1, partitions)
    send_heavy(ready, 2, partitions)
    ready.turn()
    fence(ready, LOG, alive=False, stage=1)
    assert sorted((r.connection, r.kind) for r in ready.processor.replies()) == [
        (1, SlotKind.CLOSE),
        (2, SlotKind.CLOSE),
    ]
    assert ready.log.take() == []
    assert not announced(ready)
    fence(ready, LOG, alive=False, stage=3)
    ready.welcome(LOG)
    for _ in range(2 * PARTITIONS):
        ready.turn()
    assert ready.log.take() == []
    assert ready.handler.intake.open == {}
    assert not announced(ready)
    assert ready.handler.arena.in_use_bytes == 0


@pytest.mark.parametrize("partitions", [1, PARTITIONS])
def test_its_processor_dies_between_two_pieces(ready: Rig, partitions: int) -> None:
    send_heavy(ready, 1, partitions)
    send_heavy(ready, 2, partitions)
    ready.turn()
    fence(ready, PROCESSOR, alive=False)
    assert ready.log.take() == []
    assert not announced(ready)
    for _ in range(2 * PARTITIONS):
        ready.turn()
    assert ready.log.take() == []
    assert ready.handler.intake.open == {}
    assert not announced(ready)
    assert ready.handler.arena.in_use_bytes == 0


def test_a_piece_that_fails_ends_its_request_only(ready: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    check = k00_produce.check

    def breaks(context: RequestContext, *others: Any) -> Any:
        calls.append(context)
        if len(calls) == 3:
            raise RuntimeError("a decompressor is broken")
        return check(context, *others)

    monkeypatch.setattr(k00_produce, "check", breaks)
    send_heavy(ready, 1)
    send_heavy(ready, 2)
    for _ in range(3 * PARTITIONS):
        ready.turn()
    response = ready.answer(0, 7)
    assert {p.error_code for p in response.responses[0].partition_responses} == {-1}
    assert [job.connection for job in ready.log.take()] == [2]
    assert not announced(ready)


REBUILT = topic_image("gzipped", 2, PARTITIONS, first_slot=10, compression_type="gzip")
# A frame says nothing of what it unpacks to.
MEGABYTES = bytes(4 << 20)


@pytest.mark.parametrize(
    ("codec", "value", "topic"),
    [
        (Codec.ZSTD, MEGABYTES, TOPIC),
        (Codec.GZIP, MEGABYTES, TOPIC),
        (Codec.ZSTD, bytes(100_000), REBUILT),
        (Codec.NONE, bytes(100_000), REBUILT),
    ],
)
def test_a_small_frame_with_much_work_in_it_is_announced_and_done_after_the_others(
    ready: Rig, codec: Codec, value: bytes, topic: TopicImage
) -> None:
    ready.publish(TOPIC, REBUILT)
    ready.processor.send(produce(codec, value=value, partitions=1, topic=topic), connection=1)
    ready.processor.send(LIGHT, connection=2)
    ready.turn()
    assert announced(ready)
    assert answered(ready) == [2]
    assert ready.log.jobs.waiting() == 0
    while not ready.log.jobs.waiting():
        ready.processor.send(LIGHT, connection=3)
        ready.turn()
        assert answered(ready) == [3]
    assert not announced(ready)
    (job,) = ready.log.take()
    (batch,) = ready.log.batches(job)
    assert batch.length > 0
    ready.log.append(job)
    ready.turn()
    assert answered(ready) == [1]


@pytest.mark.parametrize(
    ("codec", "value", "topic"), [(Codec.ZSTD, bytes(500_000), TOPIC), (Codec.ZSTD, b"v", REBUILT)]
)
def test_a_small_frame_with_little_work_in_it_is_done_at_once(
    ready: Rig, codec: Codec, value: bytes, topic: TopicImage
) -> None:
    ready.publish(TOPIC, REBUILT)
    ready.processor.send(produce(codec, value=value, partitions=1, topic=topic))
    ready.turn()
    assert ready.log.jobs.waiting() == 1
    assert not announced(ready)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_the_turn_announces_what_unpacks_to_more_than_it_may_do(ready: Rig, codec: Codec) -> None:
    ready.processor.send(produce(codec, value=bytes(400_000), partitions=2, native=True), room=8192)
    ready.turn()
    assert not announced(ready)
    assert len(ready.log.take()) == 1
    ready.processor.send(produce(codec, value=bytes(400_000), partitions=3, native=True), room=8192)
    ready.processor.send(LIGHT, connection=2)
    ready.turn()
    assert announced(ready)
    assert not ready.log.take()
    for _ in range(2 * PARTITIONS):
        ready.turn()
    assert len(ready.log.take()) == 1
    assert not announced(ready)


def test_a_turn_takes_no_more_requests_than_some_ms_are_for(ready: Rig) -> None:
    """Forty requests of gzip that unpack to nearly 1 MiB take 100 ms and more on any machine."""
    value = random.Random(18).randbytes(450_000).hex().encode()
    frame = produce(Codec.GZIP, value=value, partitions=1, native=True)
    for connection in range(40):
        ready.processor.send(frame, connection=connection, room=8192)
    ready.turn()
    jobs = ready.log.take()
    assert 0 < len(jobs) < 40
    while len(jobs) < 40:
        ready.turn()
        jobs += ready.log.take()
    assert [job.connection for job in jobs] == list(range(40))
    assert not announced(ready)


def test_what_a_request_unpacks_at_once_is_counted_together(ready: Rig) -> None:
    ready.processor.send(produce(Codec.ZSTD, value=bytes(400_000)))
    ready.turn()
    assert announced(ready)
    for _ in range(PARTITIONS):
        ready.turn()
    (job,) = ready.log.take()
    assert len(ready.log.batches(job)) == PARTITIONS


def test_light_ones_that_take_long_end_with_whom_they_depend_on(ready: Rig) -> None:
    for role, connections in ((LOG, (1, 2)), (PROCESSOR, (3, 4))):
        for connection in connections:
            ready.processor.send(produce(Codec.ZSTD, value=MEGABYTES, partitions=1), connection=connection)
        ready.turn()
        assert len(ready.handler.intake.open) == 2
        fence(ready, role, alive=False)
        assert ready.handler.intake.open == {}
        assert not announced(ready)
        assert [r.kind for r in ready.processor.replies()] == ([SlotKind.CLOSE] * 2 if role == LOG else [])
        assert ready.log.take() == []
        if role == LOG:
            fence(ready, LOG, alive=False, stage=3)
            ready.welcome(LOG)


def test_a_light_one_that_takes_long_and_is_wrong_is_refused(ready: Rig) -> None:
    frame = bytearray(produce(Codec.ZSTD, value=MEGABYTES, partitions=1))
    frame[-6] ^= 1  # the last byte of the batch
    ready.processor.send(bytes(frame))
    for _ in range(3):
        ready.turn()
    response = ready.answer(0, 7)
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.CORRUPT_MESSAGE
    assert not announced(ready)


def test_a_stopping_handler_finishes_it(ready: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpbroker.handlers.process.STOP_PATIENCE_MS", 0)
    send_heavy(ready, 1)
    send_heavy(ready, 2)
    ready.handler.finish()
    assert [job.connection for job in ready.log.take()] == [1, 2]
