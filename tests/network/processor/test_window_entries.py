"""A connection's window: requests under way beside each other, answered in the order in which they came."""

from __future__ import annotations

import socket
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.slots import Request, SlotKind
from mpbroker.ipc.topology import REQUEST_RING_SLOTS
from mpbroker.network.processor.channel import CloseReason
from mpbroker.network.processor.window_apis import IN_WINDOW
from mpbroker.protocol.api_keys import ApiKey
from tests.support.forms import rounds
from tests.support.polling import PATIENCE_S
from tests.support.processor_rig import PROCESSOR, MakeRig, Rig, answer_frame, frame, is_closed, receive

PRODUCE, METADATA, FETCH = ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.FETCH
WINDOW = 4
LONG_MS = 60_000
RIG = {"handlers": 2, "window": WINDOW}


def produces(*correlations: int) -> bytes:
    return b"".join(frame(PRODUCE, 3, one, b"body") for one in correlations)


def taken(rig: Rig) -> list[Request]:
    """Take what the handlers have; one connection's requests are with one of them."""
    return [request for handler in rig.requests for request in rig.requests_taken(handler)]


def numbers(requests: list[Request]) -> list[int]:
    return [request.correlation for request in requests]


def send(rig: Rig, data: bytes, client: socket.socket | None = None) -> socket.socket:
    client = client or rig.connect()
    client.sendall(data)
    rig.step()
    return client


def nothing_left(rig: Rig) -> None:
    """Assert that no block of the request arena is in use."""
    rig.step(6)
    assert rig.in_use_bytes() == 0


def closes_behind(rig: Rig, client: socket.socket, request: Request) -> None:
    """Assert that the connection closes when the request, and not before it, is answered."""
    assert not is_closed(client)
    rig.finish(client, request)
    assert is_closed(client)
    nothing_left(rig)


def test_answers_are_written_in_the_order_of_the_requests(rig: Rig) -> None:
    client = send(rig, produces(1, 2, 3))
    first, second, third = taken(rig)
    rig.answer(third, answer_frame(3))
    rig.answer(second, answer_frame(2))
    rig.step()
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.recv(1)
    client.settimeout(PATIENCE_S)
    rig.answer_in_place(first, answer_frame(1))
    writes = rig.counter(Counter.COUNT_WRITES)
    rig.step()
    assert receive(client, 24) == answer_frame(1) + answer_frame(2) + answer_frame(3)
    assert rig.counter(Counter.COUNT_WRITES) == writes + 1, "one system call for all that are next"
    nothing_left(rig)


def test_no_more_than_the_window_and_the_next_with_the_first_answer(rig: Rig) -> None:
    client = send(rig, produces(*range(7)))
    requests = taken(rig)
    assert numbers(requests) == [0, 1, 2, 3]
    rig.answer(requests[1], answer_frame(1))
    rig.step()
    assert taken(rig) == [], "the first is not answered yet"
    rig.answer(requests[0], answer_frame(0))
    rig.step()
    assert numbers(taken(rig)) == [4, 5]
    assert receive(client, 16) == answer_frame(0) + answer_frame(1)


@pytest.mark.parametrize("api_key", [METADATA, FETCH, ApiKey.END_TXN, ApiKey.SYNC_GROUP])
def test_other_requests_wait_until_the_window_is_empty(rig: Rig, api_key: ApiKey) -> None:
    assert api_key not in IN_WINDOW
    client = send(rig, produces(1, 2) + frame(api_key, 1, 3) + produces(4))
    first, second = taken(rig)
    rig.answer(first, answer_frame(1))
    rig.step()
    assert taken(rig) == []
    rig.answer(second, answer_frame(2))
    rig.step()
    (alone,) = taken(rig)
    assert alone.correlation == 3
    rig.answer(alone, answer_frame(3))
    rig.step()
    assert numbers(taken(rig)) == [4]
    assert receive(client, 24) == answer_frame(1) + answer_frame(2) + answer_frame(3)


def test_a_window_of_one_is_kafkas(rig: Rig) -> None:
    rig.turn.set_window(1)
    client = send(rig, produces(1, 2))
    (first,) = taken(rig)
    rig.answer(first, answer_frame(1))
    rig.step()
    assert numbers(taken(rig)) == [2]
    assert receive(client, 8) == answer_frame(1)


@pytest.mark.parametrize("requests", [0, 33])
def test_an_impossible_window_is_refused(rig: Rig, requests: int) -> None:
    with pytest.raises(ValueError, match="1 to 32"):
        rig.turn.set_window(requests)


def test_a_window_stays_with_one_handler(rig: Rig) -> None:
    client = send(rig, produces(1))
    (first,) = rig.requests_taken(0) or rig.requests_taken(1)
    at = 0 if first.processor == PROCESSOR and rig.turn is not None else 1
    others = [rig.connect() for _ in range(3)]
    for other in others:
        send(rig, frame(METADATA, 3, 9), other)
    send(rig, produces(2, 3), client)
    found = {handler: numbers(rig.requests_taken(handler)) for handler in rig.requests}
    assert [2, 3] in [[n for n in of_handler if n != 9] for of_handler in found.values()], (at, found)


def test_what_a_leaving_handler_has_is_waited_for(rig: Rig) -> None:
    client = send(rig, produces(1, 2))
    handler = next(h for h in rig.requests if (found := rig.requests_taken(h)) and (requests := found))
    rig.turn.leave_handler(handler)
    send(rig, produces(3, 4), client)
    assert taken(rig) == []
    for request in requests:
        rig.answer(request, answer_frame(request.correlation), handler)
    rig.step()
    assert numbers(rig.requests_taken(1 - handler)) == [3, 4]
    assert receive(client, 16) == answer_frame(1) + answer_frame(2)


def test_answers_without_bytes(rig: Rig) -> None:
    client = send(rig, produces(1, 2, 3))
    first, second, third = taken(rig)
    rig.answer(third, answer_frame(3))
    rig.answer_kind(second, SlotKind.NOOP)
    rig.answer_kind(first, SlotKind.NOOP)
    rig.step()
    assert receive(client, 8) == answer_frame(3)
    nothing_left(rig)


def test_a_request_that_closes_comes_behind_the_answers_before_it(rig: Rig) -> None:
    client = send(rig, produces(1, 2, 3))
    first, second, third = taken(rig)
    rig.answer_kind(second, SlotKind.CLOSE)
    rig.step()
    assert not is_closed(client)
    rig.finish(client, first)
    assert is_closed(client)
    rig.answer_in_place(third, answer_frame(3))
    nothing_left(rig)
    assert rig.reasons() == [CloseReason.CLOSED_BY_HANDLER]
    assert len(rig.turn.late_answers()) == 1


def test_a_client_that_has_sent_all_gets_all(rig: Rig) -> None:
    client = send(rig, produces(1, 2))
    client.shutdown(socket.SHUT_WR)
    rig.step()
    first, second = taken(rig)
    rig.answer(second, answer_frame(2))
    rig.answer(first, answer_frame(1))
    rig.step()
    assert receive(client, 16) == answer_frame(1) + answer_frame(2)
    rig.step()
    assert is_closed(client)
    nothing_left(rig)


def test_a_bad_frame_closes_behind_the_answers_before_it(rig: Rig) -> None:
    client = send(rig, produces(1) + frame(999, 0, 2))
    (first,) = taken(rig)
    closes_behind(rig, client, first)


def test_a_throttle_stops_reading_and_not_the_window(rig: Rig) -> None:
    client = send(rig, produces(1, 2))
    first, second = taken(rig)
    rig.answer(first, answer_frame(1), throttle_ms=LONG_MS)
    send(rig, produces(3), client)
    assert receive(client, 8) == answer_frame(1)
    assert taken(rig) == []
    rig.answer(second, answer_frame(2), throttle_ms=1)
    rig.step()
    assert receive(client, 8) == answer_frame(2)
    assert taken(rig) == [], "the longer throttle counts"


def test_a_throttle_that_ends_lets_go_what_waited(rig: Rig) -> None:
    client = send(rig, produces(1, 2) + frame(METADATA, 3, 3))
    first, second = taken(rig)
    rig.answer(first, answer_frame(1), throttle_ms=20)
    rig.answer(second, answer_frame(2), throttle_ms=40)
    rig.step()
    assert receive(client, 16) == answer_frame(1) + answer_frame(2)
    for _ in range(20):
        rig.turn.turn(300)
        if found := taken(rig):
            break
    assert numbers(found) == [3]


def test_a_connection_that_closes_waits_for_what_others_have(rig: Rig) -> None:
    client = send(rig, produces(1, 2, 3))
    first, second, third = taken(rig)
    rig.answer(second, answer_frame(2))
    rig.step()
    client.close()
    rig.step()
    rig.turn.close_idle(1 << 62)
    assert rig.in_use_bytes() > 0
    rig.answer_in_place(third, answer_frame(3))
    rig.answer_kind(first, SlotKind.NOOP)
    nothing_left(rig)
    rig.turn.closed()
    rig.turn.late_answers()
    send(rig, produces(7))
    assert numbers(taken(rig)) == [7], "its place is free again"


def test_a_handler_that_dies_with_one_of_them_closes_the_connection(rig: Rig) -> None:
    client = send(rig, produces(1, 2))
    handler = next(h for h in rig.requests if rig.requests_taken(h))
    send(rig, produces(3), client)
    rig.turn.fence_handler(handler)
    rig.step()
    assert is_closed(client)
    assert rig.requests_taken(1 - handler) == [], "what came behind must not overtake"
    nothing_left(rig)


def test_what_a_dead_handler_had_not_taken_goes_to_another_in_order(rig: Rig) -> None:
    client = send(rig, produces(1, 2, 3))
    (handler,) = [number for number, ring in rig.requests.items() if ring.waiting()]
    rig.turn.fence_handler(handler)
    rig.step()
    requests = rig.requests_taken(1 - handler)
    assert numbers(requests) == [1, 2, 3]
    for request in reversed(requests):
        rig.answer(request, answer_frame(request.correlation), 1 - handler)
    rig.step()
    assert receive(client, 24) == answer_frame(1) + answer_frame(2) + answer_frame(3)
    nothing_left(rig)


def test_an_answer_of_a_dead_handler_that_waited_for_others_is_not_sent(rig: Rig) -> None:
    client = send(rig, produces(1, 2))
    handler = next(h for h in rig.requests if (found := rig.requests_taken(h)) and (requests := found))
    rig.answer(requests[1], answer_frame(2), handler)
    rig.step()
    rig.turn.fence_handler(handler)
    rig.step()
    assert is_closed(client)
    nothing_left(rig)


def test_a_log_worker_that_dies_closes_who_had_a_produce_with_it(rig: Rig) -> None:
    client = send(rig, produces(1) + frame(ApiKey.HEARTBEAT, 3, 2) + produces(3))
    requests = taken(rig)
    rig.turn.fence_log()
    rig.step()
    assert is_closed(client)
    rig.answer(requests[1], answer_frame(2))
    nothing_left(rig)


@pytest.mark.parametrize("is_closed_already", [False, True])
def test_behind_a_produce_that_died_with_a_log_worker_none_is_appended(
    rig: Rig, is_closed_already: bool
) -> None:
    client = send(rig, produces(1))
    handler = next(h for h in rig.requests if rig.requests_taken(h))
    send(rig, produces(2) + frame(ApiKey.HEARTBEAT, 3, 3) + produces(4), client)
    if is_closed_already:
        rig.turn.close_idle(1 << 62)
    rig.turn.fence_log()
    rig.step()
    left = [slot for slot in rig.taken(handler) if isinstance(slot, Request)]
    assert [slot.kind for slot in left] == [SlotKind.CANCEL, SlotKind.REQUEST, SlotKind.CANCEL]
    assert rig.counter(Counter.COUNT_QUEUED_REQUESTS) == 1, "those taken back count as queued no more"
    rig.answer(left[1], answer_frame(3), handler)
    nothing_left(rig)
    assert rig.counter(Counter.COUNT_QUEUED_REQUESTS) == 0


def test_a_stop_answers_what_is_under_way(rig: Rig) -> None:
    client = send(rig, produces(1, 2))
    first, second = taken(rig)
    rig.turn.stop_reading()
    rig.answer(second, answer_frame(2))
    rig.answer(first, answer_frame(1))
    rig.step()
    assert receive(client, 16) == answer_frame(1) + answer_frame(2)
    assert is_closed(client)
    nothing_left(rig)


def test_who_reads_nothing_keeps_no_memory_from_others(make_rig: MakeRig) -> None:
    rig = make_rig(window=WINDOW, memory_bytes=1 << 20, stall_ns=1)
    greedy = send(rig, b"".join(frame(PRODUCE, 3, n, bytes(200_000)) for n in range(1)))
    (request,) = rig.await_requests() if not (found := taken(rig)) else found
    greedy.sendall(produces(1))
    rig.step()
    rig.answer(request, answer_frame(0, bytes(8 << 20)))
    rig.step()
    others = [rig.connect() for _ in range(8)]
    for other in others:
        other.setblocking(False)
        other.send(frame(METADATA, 3, 5, bytes(400_000))[:300_000])
    rig.step(60)
    assert CloseReason.CLOSED_STALLED in rig.reasons()


@pytest.mark.parametrize("size", [300_000, 3_000])
def test_a_commit_that_may_be_served_in_pieces_is_alone(rig: Rig, size: int) -> None:
    """Commits behind it would overtake it in its handler."""
    client = send(rig, frame(ApiKey.OFFSET_COMMIT, 3, 1, bytes(size)))
    (heavy,) = taken(rig) or rig.await_requests(0)
    send(rig, frame(ApiKey.OFFSET_COMMIT, 3, 2), client)
    assert taken(rig) == []
    rig.answer(heavy, answer_frame(1))
    rig.step()
    assert numbers(taken(rig)) == [2]


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"])
@pytest.mark.parametrize("at_once", [True, False])
def test_an_impossible_size_closes_behind_the_answers_before_it(rig: Rig, size: bytes, at_once: bool) -> None:
    client = send(rig, produces(1) + (size if at_once else b""))
    (first,) = taken(rig)
    if not at_once:
        send(rig, size, client)
    closes_behind(rig, client, first)


def test_behind_a_request_that_closes_nothing_is_begun(rig: Rig) -> None:
    client = send(rig, produces(1, 2))
    first, second = taken(rig)
    rig.answer_kind(second, SlotKind.CLOSE)
    rig.step()
    send(rig, produces(3), client)
    assert taken(rig) == []
    rig.answer(first, answer_frame(1))
    rig.step()
    assert taken(rig) == []
    assert rig.reasons() == [CloseReason.CLOSED_BY_HANDLER]


def test_what_waits_for_room_in_a_handlers_ring_is_not_begun_behind_a_request_that_closes(
    make_rig: MakeRig,
) -> None:
    rig = make_rig(handlers=1, places=400, queued_max=5000, window=WINDOW)
    client = send(rig, produces(1, 2))
    first, second = taken(rig)
    for _ in range(REQUEST_RING_SLOTS // WINDOW):
        send(rig, produces(*[9] * WINDOW))
    send(rig, produces(3), client)
    requests = taken(rig)
    rig.answer_kind(second, SlotKind.CLOSE)
    rig.step()
    assert {*numbers(requests), *numbers(taken(rig))} == {9}
    rig.finish(client, first)
    assert is_closed(client)


def test_a_larger_window_reads_on_at_once(rig: Rig) -> None:
    send(rig, produces(*range(6)))
    assert numbers(taken(rig)) == [0, 1, 2, 3]
    rig.turn.set_window(WINDOW + 1)
    rig.step()
    assert numbers(taken(rig)) == [4]


def test_requests_that_are_queued_anew_do_not_fall_behind_later_ones(make_rig: MakeRig) -> None:
    rig = make_rig(handlers=1, window=WINDOW)
    client = send(rig, produces(1, 2))
    rig.turn.leave_handler(0)
    send(rig, produces(3), client)
    rig.turn.fence_handler(0)
    rig.step()
    rig.turn.welcome_handler(0)
    rig.step()
    seen = numbers(rig.requests_taken(0))
    assert seen[-3:] == [1, 2, 3]


def test_a_second_answer_frees_no_place_that_others_need(rig: Rig) -> None:
    client = send(rig, frame(ApiKey.HEARTBEAT, 3, 1) + produces(2))
    heartbeat, produce = taken(rig)
    rig.turn.fence_log()
    rig.step()
    assert is_closed(client)
    rig.answer_kind(produce, SlotKind.CLOSE)
    rig.step()
    rig.turn.closed()
    assert rig.in_use_bytes() > 0, "the heartbeat's block is still lent"
    rig.answer(heartbeat, answer_frame(1))
    nothing_left(rig)


APIS = st.sampled_from([PRODUCE, PRODUCE, PRODUCE, ApiKey.OFFSET_COMMIT, ApiKey.HEARTBEAT, METADATA])


@settings(deadline=None, max_examples=rounds(60))
@given(st.lists(APIS, min_size=1, max_size=25), st.integers(1, 6), st.integers(0, 1 << 32))
def test_whatever_comes_each_answer_is_the_next_ones(apis: list[ApiKey], window: int, seed: int) -> None:
    """Send any requests in any pieces and answer in any order: the client reads answers in its own order."""
    rig, dice = Rig(handlers=2, window=window), Random(seed)
    try:
        client = rig.connect()
        stream = b"".join(frame(api, 3, n, bytes(n * 7 % 300)) for n, api in enumerate(apis))
        under_way: list[Request] = []
        answered = 0
        while answered < len(apis):
            size = dice.randint(0, len(stream))
            client.sendall(stream[:size])
            stream = stream[size:]
            rig.step()
            under_way += taken(rig)
            if any(apis[one.correlation] not in IN_WINDOW for one in under_way):
                assert len(under_way) == 1, "it has the connection for itself"
            assert under_way or stream, "a request is lost"
            if under_way and dice.random() < 0.7:
                request = under_way.pop(dice.randrange(len(under_way)))
                rig.answer(request, answer_frame(request.correlation, bytes(request.correlation)))
                answered += 1
                rig.step()
                under_way += taken(rig)
        rig.step()
        expected = b"".join(answer_frame(n, bytes(n)) for n in range(len(apis)))
        assert receive(client, len(expected)) == expected
        nothing_left(rig)
    finally:
        rig.close()
