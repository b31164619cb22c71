"""A request that waits in a purgatory holds no memory for requests, and is still there when it is needed."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.ipc.slots import Request, SlotFlag, SlotKind
from mpbroker.network.processor.channel import CloseReason
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.schema import StructType, message_for
from tests.support.polling import PATIENCE_S
from tests.support.processor_rig import (
    PROCESSOR,
    MakeRig,
    Rig,
    answer_frame,
    answer_from_replaced,
    frame,
    is_closed,
    open_all,
    parts_answer,
    receive,
)

FETCH, METADATA, JOIN_GROUP = 1, 3, 11
PARKED_HERE = 1000
RIG = {"handlers": 2, "places": PARKED_HERE + 10, "queued_max": PARKED_HERE * 2}


def holder(rig: Rig) -> int:
    """The handler that has the request."""
    return 0 if rig.requests[0].waiting() else 1


def parked(rig: Rig, client: socket.socket, data: bytes) -> tuple[Request, int]:
    client.sendall(data)
    rig.step()
    handler = holder(rig)
    (request,) = rig.requests_taken(handler)
    assert rig.in_use_bytes() > 0
    rig.answer_kind(request, SlotKind.PARKED, handler)
    rig.step()
    return request, handler


def random_frame(correlation: int, size: int) -> bytes:
    return frame(FETCH, 4, correlation, random.Random(size).randbytes(size))


def test_a_thousand_parked_requests_hold_nothing_and_are_answered(rig: Rig) -> None:
    clients = [rig.connect() for _ in range(PARKED_HERE)]
    requests = {}
    for number, client in enumerate(clients):
        requests[number] = parked(rig, client, random_frame(number, 100))
    assert rig.in_use_bytes() == 0
    for number, client in enumerate(clients):
        rig.answer(requests[number][0], answer_frame(number), requests[number][1])
        rig.turn.turn(0)
        assert receive(client, 8) == answer_frame(number)
    assert rig.in_use_bytes() == 0


def test_the_next_request_of_the_connection_is_like_any_other(rig: Rig) -> None:
    client = rig.connect()
    for number in range(3):
        request, handler = parked(rig, client, random_frame(number, 300))
        rig.finish(client, request, handler)
    # Two at once: the second waits behind the first, in a block of its own.
    client.sendall(random_frame(7, 10) + random_frame(8, 20))
    rig.step()
    handler = holder(rig)
    (first,) = rig.requests_taken(handler)
    rig.answer_kind(first, SlotKind.PARKED, handler)
    rig.answer(first, answer_frame(7), handler)
    rig.step()
    (second,) = [*rig.requests_taken(0), *rig.requests_taken(1)]
    assert rig.bytes_of(second) == random_frame(8, 20)


@pytest.mark.parametrize("size", [0, 1_000, 10_000, 16_000])
def test_when_its_handler_dies_another_gets_every_byte(rig: Rig, size: int) -> None:
    client = rig.connect()
    data = random_frame(1, size)
    request, handler = parked(rig, client, data)
    rig.turn.fence_handler(handler)
    rig.turn.turn(0)
    other = 1 - handler
    (again,) = rig.requests_taken(other)
    assert (again.connection, again.api_key) == (request.connection, FETCH)
    assert again.request != request.request, "an answer of the dead is not taken for the new one"
    assert rig.bytes_of(again) == data
    rig.answer_kind(again, SlotKind.PARKED, other)
    rig.step()
    rig.answer(again, answer_frame(1), other)
    rig.step()
    assert receive(client, 8) == answer_frame(1)
    assert rig.in_use_bytes() == 0


def test_it_goes_to_another_also_when_memory_is_used_up(make_rig: MakeRig) -> None:
    rig = make_rig(handlers=2, memory_bytes=8 << 10)
    waiting, full = rig.connect(), rig.connect()
    _, handler = parked(rig, waiting, random_frame(1, 200))
    full.sendall(frame(METADATA, 1, 2, bytes(12 << 10)))
    rig.step()
    assert rig.in_use_bytes() >= 8 << 10
    rig.turn.fence_handler(handler)
    rig.turn.turn(0)
    assert random_frame(1, 200) in [rig.bytes_of(one) for one in rig.requests_taken(1 - handler)]


def test_one_that_only_changes_something_dies_with_its_handler(rig: Rig) -> None:
    client = rig.connect()
    _, handler = parked(rig, client, frame(JOIN_GROUP, 1, 1, bytes(100)))
    rig.turn.fence_handler(handler)
    rig.turn.turn(0)
    assert rig.requests_taken(1 - handler) == []
    assert rig.reasons() == [CloseReason.CLOSED_ROLE_DIED]
    assert rig.in_use_bytes() == 0


def test_one_whose_slices_are_gone_is_asked_again_byte_for_byte(make_rig: MakeRig, segment: Path) -> None:
    rig = make_rig()
    client = rig.connect()
    data = random_frame(1, 500)
    request, _ = parked(rig, client, data)
    answer_from_replaced(rig, request, segment)
    (again,) = rig.requests_taken()
    assert again.flags == SlotFlag.AGAIN
    assert rig.bytes_of(again) == data
    parts_answer(rig, again, b"HEAD", segment, [(0, 10)])
    rig.step()
    open_all(rig)
    assert receive(client, 14) == b"HEAD" + b"x" * 10
    assert rig.in_use_bytes() == 0


def test_one_that_nobody_else_may_have_is_gone_whatever_its_size(rig: Rig) -> None:
    client = rig.connect()
    request, handler = parked(rig, client, frame(JOIN_GROUP, 1, 1, bytes(64 << 10)))
    assert rig.in_use_bytes() == 0
    rig.finish(client, request, handler)
    assert rig.in_use_bytes() == 0


def test_a_large_one_holds_nothing_and_dies_with_its_handler(rig: Rig) -> None:
    client, bystander = rig.connect(), rig.connect()
    request, handler = parked(rig, client, random_frame(1, 64 << 10))
    assert rig.in_use_bytes() == 0
    rig.finish(client, request, handler)
    _, handler = parked(rig, client, random_frame(2, 64 << 10))
    _, same = parked(rig, bystander, random_frame(3, 100))
    assert (rig.in_use_bytes(), same) == (0, handler)
    rig.turn.fence_handler(handler)
    rig.turn.turn(0)
    assert rig.reasons() == [CloseReason.CLOSED_ROLE_DIED]
    assert is_closed(client)
    (again,) = rig.requests_taken(1 - handler)
    rig.answer(again, answer_frame(3), 1 - handler)
    rig.step()
    assert receive(bystander, 8) == answer_frame(3)
    assert rig.in_use_bytes() == 0


def test_a_large_one_whose_slices_are_gone_cannot_be_asked_again(rig: Rig, segment: Path) -> None:
    client = rig.connect()
    request, handler = parked(rig, client, random_frame(1, 64 << 10))
    assert handler == 0
    answer_from_replaced(rig, request, segment)
    assert rig.reasons() == [CloseReason.CLOSED_NO_MEMORY]
    assert [*rig.requests_taken(0), *rig.requests_taken(1)] == []
    assert is_closed(client)


def test_what_is_kept_outside_is_a_share_of_the_limit(make_rig: MakeRig) -> None:
    rig = make_rig(handlers=2, memory_bytes=64 << 10)
    share, size = 4 << 10, len(random_frame(0, 500))
    waiting = []
    for number in range(12):
        client = rig.connect()
        waiting.append((client, *parked(rig, client, random_frame(number, 500))))
    assert rig.in_use_bytes() == 0
    # Who is answered makes room for the next one.
    client, request, handler = waiting[0]
    rig.answer(request, answer_frame(0), handler)
    rig.step()
    _, at = parked(rig, client, random_frame(20, 500))
    assert {at, *(handler for _, _, handler in waiting)} == {handler}
    waiting[1][0].close()
    rig.step()
    assert rig.reasons() == [CloseReason.CLOSED_BY_PEER]
    rig.turn.fence_handler(at)
    rig.turn.turn(0)
    outside = share // size
    kept = [random_frame(number, 500) for number in [*range(2, outside), 20]]
    assert sorted(rig.bytes_of(one) for one in rig.requests_taken(1 - at)) == sorted(kept)
    assert len(rig.turn.closed()) == len(waiting) - outside


def test_what_parking_frees_is_used_at_once(make_rig: MakeRig) -> None:
    rig = make_rig(memory_bytes=6000)
    waiting, starving = rig.connect(), rig.connect()
    request = rig.ask(waiting, random_frame(1, 200))
    filling = rig.connect()
    filling.sendall(frame(METADATA, 1, 3, bytes(2500)))
    rig.step()
    assert [one.correlation for one in rig.requests_taken()] == [3]
    starving.sendall(frame(METADATA, 1, 2))
    rig.step()
    assert rig.requests_taken() == []
    rig.answer_kind(request, SlotKind.PARKED)
    rig.step(2)
    assert [one.correlation for one in rig.requests_taken()] == [2]


def random_stash(size: int) -> bytes:
    """The beginning of a frame that never comes whole."""
    return struct.pack(">i", 1 << 20) + random.Random(size).randbytes(size)


def in_a_large_block(rig: Rig, client: socket.socket) -> None:
    """Have the client's next bytes received into a block as large as its last request."""
    client.sendall(random_frame(1, 30_000))
    rig.step()
    handler = holder(rig)
    (request,) = rig.requests_taken(handler)
    rig.finish(client, request, handler)


@pytest.mark.parametrize(("ahead", "held"), [(100, 1984), (5_000, 5_004)])
@pytest.mark.parametrize("waits", ["parked", "throttled"])
def test_what_is_sent_ahead_takes_its_own_size_and_comes_next(
    rig: Rig, waits: str, ahead: int, held: int
) -> None:
    client = rig.connect()
    in_a_large_block(rig, client)
    behind = frame(METADATA, 1, 3, random.Random(5).randbytes(30_000))
    client.sendall(random_frame(2, 50) + behind[: ahead + 4])
    rig.step()
    handler = holder(rig)
    (request,) = rig.requests_taken(handler)
    assert rig.in_use_bytes() > 30_000
    if waits == "parked":
        rig.answer_kind(request, SlotKind.PARKED, handler)
        rig.step()
    else:
        rig.answer(request, answer_frame(2), handler, throttle_ms=1000)
        rig.step()
        assert receive(client, 8) == answer_frame(2)
    assert rig.in_use_bytes() == held
    if waits == "parked":
        rig.answer(request, answer_frame(2), handler)
    client.sendall(behind[ahead + 4 :])
    until = time.monotonic() + PATIENCE_S
    found: list[Request] = []
    while not found and time.monotonic() < until:
        rig.turn.turn(20)
        found = [*rig.requests_taken(0), *rig.requests_taken(1)]
    assert [rig.bytes_of(one) for one in found] == [behind]


@pytest.mark.parametrize("waits", ["parked", "throttled"])
def test_what_is_sent_ahead_goes_when_others_starve_and_no_more_of_it_than_needed(
    make_rig: MakeRig, waits: str
) -> None:
    rig = make_rig(stall_ns=100_000_000)
    ahead = []
    for _ in range(3):
        client = rig.connect()
        in_a_large_block(rig, client)
        request = rig.ask(client, random_frame(2, 50) + random_stash(33_500))
        if waits == "parked":
            rig.answer_kind(request, SlotKind.PARKED)
        else:
            rig.answer(request, answer_frame(2), throttle_ms=60_000)
            rig.step()
            receive(client, 8)
        rig.step()
        ahead.append(client)
    idle_s = time.monotonic() + 0.3
    while time.monotonic() < idle_s:
        rig.turn.turn(20)
    assert rig.turn.closed() == [], "while there is enough for all nobody has to go"
    rig.memory.words("request_limits").store(PROCESSOR, 100_000)
    starving = rig.connect()
    starving.sendall(frame(METADATA, 1, 9))
    found = rig.await_requests()
    assert [one.correlation for one in found] == [9]
    assert rig.reasons() == [CloseReason.CLOSED_STALLED]
    assert [client.fileno() for client in ahead if is_closed(client)] == [ahead[0].fileno()]


def test_who_does_not_read_the_answer_to_one_goes_when_a_handler_has_no_room(make_rig: MakeRig) -> None:
    rig = make_rig(handlers=2, stall_ns=50_000_000)
    deaf = rig.connect()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    request, handler = parked(rig, deaf, random_frame(1, 100))
    rig.answer(request, answer_frame(1, bytes(32 << 20)), handler)
    rig.memory.words("replies_out").store(1, 1)
    assert rig.await_reasons() == [CloseReason.CLOSED_STALLED]


def test_no_request_that_can_be_parked_is_decoded_into_views() -> None:
    """Check that only records are views of the block, which is not read after PARKED."""
    parkers = [key for key in ApiKey if key == ApiKey.FETCH or 8 <= key <= 16 or key in (42, 47)]

    def types(struct: StructType) -> Iterator[str]:
        for field in struct.fields:
            yield field.type
            if field.struct is not None:
                yield from types(field.struct)

    for key in parkers:
        schema = message_for("request", key)
        assert schema is not None
        assert "records" not in set(types(schema)), key
