"""Commits and heartbeats that the turn forwards: the coordinator and the client see what Python would say.

Whatever is uncommon goes to Python, and nothing overtakes it. Whoever dies, no block stays lent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.calls import Failed, ForwardedRequest, ForwardedResponse, MalformedRequest
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.meters import Reader
from mpbroker.ipc.session import PRINCIPAL_BYTES_MAX
from mpbroker.ipc.slots import SlotKind, pack_call
from mpbroker.ipc.topology import COORDINATOR, processor
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.codec import decode_request, encode_bytes, encode_response
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    Message,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from tests.support.handler_rig import (
    HANDLER,
    ROOM_FOR_ANSWER,
    Rig,
    channel_of,
    fence,
    request_frame,
    topic_image,
)

VERSION = 7
# Requests that the turn remembers at once (hot_path/forwarded.pxd).
FORWARDED_MAX = 1024


@pytest.fixture(name="ready")
def _ready(rig: Rig) -> Iterator[Rig]:
    rig.publish(topic_image("t", 1))
    before = rig.handler.arena.in_use_bytes
    yield rig
    rig.turn()
    rig.coordinator.take()
    assert (rig.handler.turn.forwarded_count, len(rig.handler.broker.coordinator)) == (0, 0)
    assert rig.handler.context.counters.get(Counter.COUNT_CALLS_DELAYED) == 0
    # What a processor has not returned yet is the test's to give back.
    assert rig.handler.arena.in_use_bytes - before == lent_to_processors(rig)


def lent_to_processors(rig: Rig) -> int:
    sizes = rig.handler.broker.responses._sizes
    return sum(sizes.values())


def commit(offset: int = 5, metadata: str = "") -> Message:
    one = OffsetCommitRequest.OffsetCommitRequestPartition(0, offset, committed_metadata=metadata)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic("t", partitions=[one])
    return OffsetCommitRequest("g", -1, "", topics=[topic])


def response_to_commit(*codes: ErrorCode) -> bytes:
    partitions = [
        OffsetCommitResponse.OffsetCommitResponsePartition(number, code) for number, code in enumerate(codes)
    ]
    response = OffsetCommitResponse(
        topics=[OffsetCommitResponse.OffsetCommitResponseTopic("t", partitions=partitions)]
    )
    return encode_bytes(encode_response(ApiKey.OFFSET_COMMIT, VERSION, response))


def send(
    rig: Rig, body: Message, *, connection: int = 7, room: int = ROOM_FOR_ANSWER, client: str = "test"
) -> None:
    key = ApiKey.HEARTBEAT if isinstance(body, HeartbeatRequest) else ApiKey.OFFSET_COMMIT
    version = 4 if key is ApiKey.HEARTBEAT else VERSION
    rig.processor.send(request_frame(key, version, body, client=client), connection=connection, room=room)


def sent(rig: Rig, body: Message, **how: Any) -> tuple[Any, ForwardedRequest]:
    """The call that a request becomes, whoever makes it."""
    send(rig, body, **how)
    rig.turn()
    rig.processor.replies()
    ((call, message),) = rig.coordinator.take()
    return call, message


@pytest.mark.parametrize(
    "client", ["", "test", "c" * 31, "c" * 32, "c" * 255, "c" * 256, "c" * 500, "c" * 2000]
)
@pytest.mark.parametrize("metadata", ["", "m" * 250, "m" * 900])
@pytest.mark.parametrize("principal", ["User:é", "User:" + "n" * (PRINCIPAL_BYTES_MAX - 5)])
def test_the_coordinator_sees_the_bytes_that_python_would_send(
    ready: Rig, client: str, metadata: str, principal: str
) -> None:
    ready.processor.open_session(7)
    ready.processor.sessions.set(channel_of(7), 7, principal=principal)
    call, by_turn = sent(ready, commit(metadata=metadata), client=client)
    assert (ready.handler.turn.forwarded_count, by_turn.principal) == (1, principal)
    arena = ready.memory.arena(HANDLER)
    assert call.length <= arena.capacity(call.block)
    assert bytes(arena.view(call.block, call.length)) == calls.encode(by_turn)
    ready.handler.turn.leaves_all = True
    again, by_python = sent(ready, commit(metadata=metadata), client=client)
    assert by_python == by_turn
    for one in (call, again):
        ready.coordinator.answer(one, ForwardedResponse(response_to_commit(ErrorCode.NONE), {0: 1}))
    ready.turn()
    first, second = (ready.processor.frame_of(reply) for reply in ready.processor.replies())
    assert first == second


@pytest.mark.parametrize("version", range(2))
@pytest.mark.parametrize("epoch", [0, 5, -1])
def test_a_heartbeat_of_the_consumer_protocol_goes_and_comes_without_python(
    ready: Rig, version: int, epoch: int
) -> None:
    key = ApiKey.CONSUMER_GROUP_HEARTBEAT
    request = ConsumerGroupHeartbeatRequest("g", "m", epoch, topic_partitions=None)
    response = ConsumerGroupHeartbeatResponse(member_id="m", member_epoch=epoch, heartbeat_interval_ms=5000)
    body = encode_bytes(encode_response(key, version, response))
    messages, frames = [], []
    for leaves_all in (False, True):
        ready.handler.turn.leaves_all = leaves_all
        ready.processor.send(request_frame(key, version, request))
        ready.turn()
        ready.processor.replies()
        assert ready.handler.turn.forwarded_count == (not leaves_all)
        ((call, message),) = ready.coordinator.take()
        messages.append(message)
        ready.reply(call, ForwardedResponse(body, {0: 1}))
        (reply,) = ready.processor.replies()
        frames.append(ready.processor.frame_of(reply))
    assert messages[0] == messages[1]
    assert frames[0] == frames[1]


FEW = (ErrorCode.NONE, ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR)


@pytest.mark.parametrize(
    "codes", [FEW, tuple(ErrorCode)[:15], tuple(ErrorCode)[:16]], ids=["few", "fixmap", "longer map"]
)
def test_each_error_code_is_counted_as_python_counts_it(ready: Rig, codes: tuple[ErrorCode, ...]) -> None:
    """A longer map is left to Python."""
    counted = {int(code): codes.count(code) for code in codes}
    reader = Reader(ready.memory.public, ready.memory.sizes.partition_slots)
    for leaves_all in (False, True):
        ready.handler.turn.leaves_all = leaves_all
        before = reader.errors(HANDLER).get(ApiKey.OFFSET_COMMIT, {})
        call, _ = sent(ready, commit())
        ready.reply(call, ForwardedResponse(response_to_commit(*codes), counted))
        response = ready.answer(ApiKey.OFFSET_COMMIT, VERSION)
        assert [one.error_code for one in response.topics[0].partitions] == list(codes)
        after = reader.errors(HANDLER)[ApiKey.OFFSET_COMMIT]
        assert {code: after[code] - before.get(code, 0) for code in counted} == counted


def switched_off(rig: Rig) -> None:
    rig.handler.turn.leaves_all = True


def with_quotas(rig: Rig) -> None:
    rig.handler.turn.clients.on = True


@pytest.mark.parametrize(
    ("body", "client", "change"),
    [
        (commit(metadata="m" * 1000), "test", None),
        (commit(), "é", None),
        (commit(), "test", switched_off),
        (commit(), "test", with_quotas),
    ],
)
def test_what_is_uncommon_is_python_s(
    ready: Rig, body: Message, client: str, change: Callable[[Rig], None] | None
) -> None:
    if change is not None:
        change(ready)
    call, message = sent(ready, body, client=client)
    assert (ready.handler.turn.forwarded_count, message.client_id) == (0, client)
    ready.reply(call, ForwardedResponse(response_to_commit(ErrorCode.NONE), {0: 1}))
    assert [reply.kind for reply in ready.processor.replies()] == [SlotKind.SEND]


def test_a_commit_that_is_left_to_python_is_not_overtaken(ready: Rig) -> None:
    send(ready, commit(1))
    send(ready, commit(2, metadata="m" * 1000))
    send(ready, commit(3))
    ready.turn()
    send(ready, commit(4))
    ready.turn()
    asked = ready.coordinator.take()
    offsets = [offset_in(message) for _, message in asked]
    assert offsets == [1, 2, 3, 4]
    for call, _ in asked:
        ready.coordinator.answer(call, ForwardedResponse(response_to_commit(ErrorCode.NONE), {0: 1}))
    ready.turn()


def offset_in(message: ForwardedRequest) -> int:
    body, _ = decode_request(message.api_key, message.version, message.body)
    return int(body.topics[0].partitions[0].committed_offset)


def test_more_than_the_turn_remembers_and_than_the_ring_holds_keep_their_order(ready: Rig) -> None:
    count = FORWARDED_MAX + 200
    seen: list[int] = []
    for first in range(0, count, 200):
        for offset in range(first, min(first + 200, count)):
            send(ready, commit(offset))
        ready.turn()
    answered = 0
    while answered < count:
        for call, message in ready.coordinator.take():
            seen.append(offset_in(message))
            ready.coordinator.answer(call, ForwardedResponse(response_to_commit(ErrorCode.NONE), {0: 1}))
        ready.turn()
        answered += sum(reply.kind == SlotKind.SEND for reply in ready.processor.replies())
    assert seen == list(range(count))


def test_an_answer_that_is_no_response_is_python_s(ready: Rig) -> None:
    call, _ = sent(ready, commit())
    ready.reply(call, Failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ""))
    response = ready.answer(ApiKey.OFFSET_COMMIT, VERSION)
    assert response.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    call, _ = sent(ready, commit())
    ready.reply(call, MalformedRequest("why"))
    assert [reply.kind for reply in ready.processor.replies()] == [SlotKind.CLOSE]


def test_an_answer_for_which_the_coordinator_had_no_memory_is_an_error(ready: Rig) -> None:
    call, _ = sent(ready, commit())
    assert ready.coordinator.back.push(pack_call(SlotKind.ANSWER, COORDINATOR, call.request))
    ready.turn()
    response = ready.answer(ApiKey.OFFSET_COMMIT, VERSION)
    assert response.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_response_that_finds_no_room_behind_its_request_is_sent_by_python(ready: Rig) -> None:
    call, _ = sent(ready, commit(), room=0)
    assert ready.handler.turn.forwarded_count == 1
    body = response_to_commit(*[ErrorCode.NONE] * 1000)
    ready.reply(call, ForwardedResponse(body, {0: 1000}))
    assert len(ready.answer(ApiKey.OFFSET_COMMIT, VERSION).topics[0].partitions) == 1000


def test_what_a_dead_coordinator_had_is_answered_so_and_its_successor_gets_the_rest(ready: Rig) -> None:
    sent(ready, commit(1))
    fence(ready, COORDINATOR, alive=False)
    response = ready.answer(ApiKey.OFFSET_COMMIT, VERSION)
    assert response.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    send(ready, commit(2))
    ready.turn()
    assert ready.handler.turn.forwarded_count == 0
    fence(ready, COORDINATOR, alive=True)
    ready.turn()
    send(ready, commit(3))
    ready.turn()
    asked = ready.coordinator.take()
    assert [offset_in(message) for _, message in asked] == [2, 3]
    assert ready.handler.turn.forwarded_count == 1
    for call, _ in asked:
        ready.coordinator.answer(call, ForwardedResponse(response_to_commit(ErrorCode.NONE), {0: 1}))
    ready.turn()


def test_an_answer_that_a_dead_coordinator_had_sent_is_not_taken_for_its_successor_s(ready: Rig) -> None:
    call, _ = sent(ready, commit(1))
    ready.coordinator.answer(call, ForwardedResponse(response_to_commit(ErrorCode.NONE), {0: 1}))
    fence(ready, COORDINATOR, alive=False)
    response = ready.answer(ApiKey.OFFSET_COMMIT, VERSION)
    assert response.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR


def test_nothing_is_said_to_a_processor_that_died(ready: Rig) -> None:
    first, _ = sent(ready, commit(1))
    failed, _ = sent(ready, commit(2))
    fence(ready, processor(0), alive=False)
    ready.coordinator.answer(first, ForwardedResponse(response_to_commit(ErrorCode.NONE), {0: 1}))
    ready.reply(failed, Failed(ErrorCode.NOT_COORDINATOR, ""))
    assert ready.processor.replies() == []
    ready.coordinator.take()
    assert len(ready.coordinator.returned) == 2


def test_a_stopping_handler_waits_for_what_the_turn_has_forwarded(ready: Rig) -> None:
    call, _ = sent(ready, HeartbeatRequest("g", 1, "m"))
    assert ready.handler.has_unfinished()
    ready.reply(call, Failed(ErrorCode.UNKNOWN_MEMBER_ID, ""))
    assert not ready.handler.has_unfinished()
    assert ready.answer(ApiKey.HEARTBEAT, 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_what_a_stopping_handler_waits_for_in_vain_closes_its_connection(ready: Rig) -> None:
    sent(ready, commit())
    ready.context.orphaned = True
    ready.handler.finish()
    assert [reply.kind for reply in ready.processor.replies()] == [SlotKind.CLOSE]
    fence(ready, COORDINATOR, alive=False)


def test_the_coordinator_is_not_woken_for_a_block_that_comes_back(ready: Rig) -> None:
    call, _ = sent(ready, commit())
    bell = ready.memory.doorbell(COORDINATOR)
    bell.wait(0, lambda: False)
    ready.coordinator.answer(call, ForwardedResponse(response_to_commit(ErrorCode.NONE), {0: 1}))
    bell.arm()
    ready.turn()
    bell.disarm()
    assert not bell.wait(0, lambda: False)
    ready.coordinator.take()
    assert len(ready.coordinator.returned) == 1
