"""The processor's arena as Kafka's MemoryPool: the overcommit rule, resuming, who waits and who has to go."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Sequence

import pytest

from mpbroker.config.broker import LARGEST_REQUEST_BYTES
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.slots import Request
from mpbroker.network.processor.channel import CloseReason
from tests.support.polling import PATIENCE_S, until
from tests.support.processor_rig import PROCESSOR, MakeRig, Rig, answer_frame, frame, is_closed, receive

METADATA, PRODUCE = 3, 0
# A throttle that outlasts every test.
LONG_MS = 3_600_000
POOL = 4 << 20
SIXTY_PERCENT = POOL * 6 // 10


def big(correlation: int, size: int = SIXTY_PERCENT) -> bytes:
    return frame(METADATA, 1, correlation, bytes(size))


def send_all(rig: Rig, clients: list[socket.socket], data: Sequence[bytes | memoryview]) -> None:
    """Send from all clients at once, as far as the broker reads."""
    left = [memoryview(one) for one in data]
    quiet = 0
    while any(left) and quiet < 50:
        quiet += 1
        for i, client in enumerate(clients):
            client.setblocking(False)
            try:
                sent = client.send(left[i]) if left[i] else 0
            except BlockingIOError:
                sent = 0
            left[i] = left[i][sent:]
            quiet = 0 if sent else quiet
        rig.turn.turn(0)
    for client in clients:
        client.settimeout(PATIENCE_S)
    rig.step(40)


def test_the_second_of_two_big_requests_is_let_in_and_the_third_waits(make_rig: MakeRig) -> None:
    rig = make_rig(memory_bytes=POOL)
    clients = [rig.connect() for _ in range(3)]
    send_all(rig, clients[:1], [big(0)])
    send_all(rig, clients[1:2], [big(1)])
    first, second = rig.requests_taken()
    assert (first.correlation, second.correlation) == (0, 1)
    before_ns = time.monotonic_ns()
    send_all(rig, clients[2:], [big(2)])
    assert rig.requests_taken() == []
    assert rig.counter(Counter.COUNT_MEMORY_FULL) == 1, "who waits is not tried again and again"
    # Not one sleep: what an answer frees is used in the same turn.
    rig.answer(first, answer_frame(0))
    rig.turn.turn(0)
    rig.answer(second, answer_frame(1))
    for client in clients[:2]:
        rig.turn.turn(0)
        receive(client, 8)
    send_all(rig, clients[2:], [b""])
    third = resume(rig, clients[2], big(2))
    assert third.correlation == 2
    depleted_ns = rig.counter(Counter.COUNT_MEMORY_DEPLETED_NS)
    assert 0 < depleted_ns <= time.monotonic_ns() - before_ns


def resume(rig: Rig, client: socket.socket, whole: bytes) -> Request:
    """The broker has part of the frame, the socket's buffers another; the client sends what is left."""
    client.setblocking(False)

    def step() -> None:
        with contextlib.suppress(BlockingIOError):
            client.send(bytes(64 << 10))
        rig.turn.turn(0)

    rig.turn.turn(0)
    return until(rig.requests_taken, f"the rest of {len(whole)} bytes", step)[0]


def test_those_who_wait_longest_go_on_first(make_rig: MakeRig) -> None:
    rig = make_rig(memory_bytes=64 << 10, places=64)
    holder = rig.connect()
    send_all(rig, [holder], [big(99, 80 << 10)])
    (held,) = rig.requests_taken()
    clients = [rig.connect() for _ in range(20)]
    for i, client in enumerate(clients):
        client.sendall(frame(METADATA, 1, i, bytes(30 << 10)))
        rig.step(1)
    assert rig.requests_taken() == []
    order: list[int] = []
    rig.answer(held, answer_frame(99))
    for _ in range(60):
        rig.step(1)
        for request in rig.requests_taken():
            order.append(request.correlation)
            rig.answer(request, answer_frame(request.correlation))
    assert order == list(range(20))
    rig.step()
    assert rig.in_use_bytes() == 0


def test_a_hundred_megabytes_in_one_request(make_rig: MakeRig) -> None:
    rig = make_rig(memory_bytes=200 << 20, frame_bytes_max=100 << 20)
    client = rig.connect()
    sent = frame(METADATA, 1, 7, bytes(range(256)) * ((100 << 20) // 256 - 1))
    client.setblocking(False)
    left = memoryview(sent)

    def step() -> None:
        nonlocal left
        with contextlib.suppress(BlockingIOError):
            left = left[client.send(left) :]
        rig.turn.turn(0)

    (request,) = until(rig.requests_taken, f"all of {len(sent)} bytes", step)
    assert request.length == len(sent)
    assert rig.request_arena.view(request.block, request.length) == sent
    rig.answer(request, answer_frame(7))
    rig.step()
    assert rig.in_use_bytes() == 0
    # What was big once is not set aside again before the size is known.
    client.sendall(b"\0")
    assert rig.in_use_bytes() < 128 << 10


def test_slow_writers_cost_what_they_hold_and_go_when_others_starve(make_rig: MakeRig) -> None:
    rig = make_rig(memory_bytes=1 << 20, places=1100, stall_ns=50_000_000)
    slow = [rig.connect() for _ in range(1000)]
    whole = frame(METADATA, 1, 1, bytes(600))
    for client in slow:
        client.sendall(whole[:100])
    rig.step()
    assert rig.in_use_bytes() <= 1000 * 2048
    honest = rig.connect()
    honest.sendall(frame(METADATA, 1, 5))
    assert set(drip_until_served(rig, [], b"", 5)) == {CloseReason.CLOSED_STALLED}


def drip_until_served(rig: Rig, slow: list[socket.socket], chunk: bytes, correlation: int) -> list[int]:
    """Let each slow client send a chunk with every turn. Returns the reasons of those that were closed."""
    closed: list[int] = []

    def step() -> None:
        for client in slow:
            with contextlib.suppress(OSError):
                client.send(chunk, socket.MSG_DONTWAIT)
        rig.turn.turn(20)
        closed.extend(rig.reasons())

    step()
    until(
        lambda: any(request.correlation == correlation for request in rig.requests_taken()),
        "the request of the honest client",
        step,
    )
    return closed


def test_a_byte_now_and_then_is_no_progress(make_rig: MakeRig) -> None:
    rig = make_rig(memory_bytes=1 << 20, stall_ns=200_000_000)
    slow = [rig.connect() for _ in range(3)]
    for client in slow:
        client.sendall(struct.pack(">i", 3 << 20) + bytes(70_000))
    rig.step()
    assert rig.in_use_bytes() > 1 << 20
    honest = rig.connect()
    honest.sendall(frame(METADATA, 1, 5))
    closed = drip_until_served(rig, slow, b"x", 5)
    assert set(closed) == {CloseReason.CLOSED_STALLED}


def test_a_slow_writer_that_goes_on_is_left_alone(make_rig: MakeRig) -> None:
    """Check it with twice the required speed: 64 KiB of 2 MiB in the time that a connection has."""
    rig = make_rig(memory_bytes=1 << 20, stall_ns=400_000_000)
    slow = rig.connect()
    whole = memoryview(frame(METADATA, 1, 7, bytes(2_000_000)))
    slow.sendall(whole[:4000])
    rig.step()
    waiting = rig.connect()
    waiting.sendall(frame(METADATA, 1, 5))
    at, begun = 4000, time.monotonic()
    while (passed := time.monotonic() - begun) < 1.5:
        due = 4000 + int(passed * (160 << 10))
        at += slow.send(whole[at:due])
        rig.turn.turn(20)
        assert rig.turn.closed() == []
    assert rig.requests_taken() == [], "there was memory all the time: the test shows nothing"
    send_all(rig, [slow], [whole[at:]])
    (found,) = rig.requests_taken()
    rig.answer(found, answer_frame(7))
    rig.step()
    assert [request.correlation for request in (found, *rig.requests_taken())] == [7, 5]


@pytest.mark.parametrize(("declared", "sent_bytes"), [(100 << 20, 5), (100 << 20, 4000), (2 << 20, 4000)])
def test_a_thousand_that_declare_much_do_not_keep_out_who_sends(
    make_rig: MakeRig, declared: int, sent_bytes: int
) -> None:
    rig = make_rig(memory_bytes=1 << 30, frame_bytes_max=declared, places=1100, stall_ns=10_000_000)
    slow = [rig.connect() for _ in range(1000)]
    for client in slow:
        client.sendall(struct.pack(">i", declared) + bytes(sent_bytes - 4))
        rig.step(1)
    if sent_bytes == 5:
        assert rig.in_use_bytes() < 1000 * 2048
    honest = rig.connect()
    honest.sendall(frame(METADATA, 1, 5))
    closed = drip_until_served(rig, slow if sent_bytes > 5 else slow[:10], b"x", 5)
    assert set(closed) <= {CloseReason.CLOSED_STALLED}


def test_those_who_hold_all_memory_and_wait_for_more_go_on_one_by_one(make_rig: MakeRig) -> None:
    """Check it with requests that have begun, wait for the rest, and together hold all memory."""
    rig = make_rig(memory_bytes=64 << 10, places=100)
    clients = [rig.connect() for _ in range(40)]
    for i, client in enumerate(clients):
        client.sendall(frame(METADATA, 1, i, bytes(8000))[:1984])
    rig.step()
    for i, client in enumerate(clients):
        client.sendall(frame(METADATA, 1, i, bytes(8000))[1984:])
    order: list[int] = []
    until = time.monotonic() + PATIENCE_S
    most = 0
    while len(order) < len(clients) and time.monotonic() < until:
        rig.turn.turn(20)
        most = max(most, rig.in_use_bytes())
        for request in rig.requests_taken():
            order.append(request.correlation)
            rig.answer(request, answer_frame(request.correlation))
    assert sorted(order) == list(range(len(clients)))
    assert rig.turn.closed() == []
    assert most < (64 << 10) + (16 << 10), "more than one went beyond the limit"
    rig.step()
    assert rig.in_use_bytes() == 0


def test_an_outage_is_counted_while_it_lasts(make_rig: MakeRig) -> None:
    rig = make_rig(memory_bytes=64 << 10)
    holder = rig.connect()
    send_all(rig, [holder], [big(1, 80 << 10)])
    (held,) = rig.requests_taken()
    starving = rig.connect()
    starving.sendall(frame(METADATA, 1, 2))
    rig.step()
    before, begun = rig.counter(Counter.COUNT_MEMORY_DEPLETED_NS), time.monotonic_ns()
    # A turn that is disturbed sleeps less.
    while time.monotonic_ns() < begun + 50_000_000:
        rig.turn.turn(50)
    rig.turn.turn(0)
    counted = rig.counter(Counter.COUNT_MEMORY_DEPLETED_NS) - before
    assert 40_000_000 < counted <= time.monotonic_ns() - begun + 1_000_000_000
    rig.answer(held, answer_frame(1))
    rig.step()
    assert [request.correlation for request in rig.requests_taken()] == [2]
    after = rig.counter(Counter.COUNT_MEMORY_DEPLETED_NS)
    rig.turn.turn(30)
    rig.turn.turn(0)
    assert rig.counter(Counter.COUNT_MEMORY_DEPLETED_NS) == after, "it ended with the answer"


def test_who_waits_for_the_extent_does_not_keep_the_processor_awake(make_rig: MakeRig) -> None:
    """Check that it tries again only after a block was freed: the extent is cut into small blocks."""
    rig = make_rig(queued_max=2000, memory_bytes=8 << 20, extent_bytes=8 << 20, places=1100)
    small = [rig.connect() for _ in range(1000)]
    for i, client in enumerate(small):
        client.sendall(frame(METADATA, 1, i, bytes(7000)))
        rig.step(1)
    held = rig.requests_taken()
    assert len(held) > 500
    kept, rest = held[::100], [request for i, request in enumerate(held) if i % 100]
    while rest:
        for request in rest:
            rig.answer(request, answer_frame(request.correlation))
        rig.step()
        rest = rig.requests_taken()
    large = rig.connect()
    send_all(rig, [large], [big(5000, 3 << 20)])
    assert rig.requests_taken() == []
    assert rig.in_use_bytes() < 256 << 10
    begun, refused = time.monotonic(), rig.counter(Counter.COUNT_MEMORY_FULL)
    for _ in range(3):
        rig.turn.turn(50)
    assert time.monotonic() - begun > 0.12, "it does not sleep"
    assert rig.counter(Counter.COUNT_MEMORY_FULL) == refused, "nothing was freed: why was it tried again?"
    for request in kept[1:]:
        rig.answer(request, answer_frame(request.correlation))
    assert resume(rig, large, big(5000, 3 << 20)).correlation == 5000


def test_idle_connections_and_waiting_ones_are_not_stalled(make_rig: MakeRig) -> None:
    rig = make_rig(memory_bytes=64 << 10, stall_ns=1_000_000)
    idle = rig.connect()
    waiting = rig.connect()
    send_all(rig, [waiting], [big(1, 80 << 10)])
    (held,) = rig.requests_taken()
    starving = rig.connect()
    starving.sendall(frame(METADATA, 1, 2))
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        rig.turn.turn(10)
    assert rig.turn.closed() == []
    assert not is_closed(idle)
    rig.answer(held, answer_frame(1))
    rig.step()
    assert [request.correlation for request in rig.requests_taken()] == [2]


def throttled_in_a_window(rig: Rig) -> socket.socket:
    """Return a client whose throttled channel holds the beginning of a frame."""
    client = rig.connect()
    request = rig.ask(client, frame(PRODUCE, 3, 1))
    client.sendall(frame(PRODUCE, 3, 2, bytes(8000))[:1984])
    rig.step()
    rig.answer(request, answer_frame(1), throttle_ms=LONG_MS)
    rig.step()
    return client


def test_a_throttled_channel_that_holds_a_piece_of_a_frame_goes_when_others_starve(make_rig: MakeRig) -> None:
    rig = make_rig(memory_bytes=64 << 10, stall_ns=1_000_000, window=2)
    throttled = throttled_in_a_window(rig)
    waiting = rig.connect()
    send_all(rig, [waiting], [big(3, 80 << 10)])
    (_held,) = rig.requests_taken()
    rig.turn.turn(10)
    assert rig.turn.closed() == [], "nobody starves"
    rig.connect().sendall(frame(METADATA, 1, 4))
    assert rig.await_reasons() == [CloseReason.CLOSED_STALLED]
    assert receive(throttled, 8) == answer_frame(1)
    assert is_closed(throttled)


def test_who_waits_for_memory_and_is_throttled_keeps_nobody_from_going_on(make_rig: MakeRig) -> None:
    """Check it with a channel that waits for more memory when the answer of its window throttles it."""
    rig = make_rig(memory_bytes=64 << 10, window=2)
    throttled = rig.connect()
    request = rig.ask(throttled, frame(PRODUCE, 3, 1))
    large = memoryview(big(2, 2_200_000))
    throttled.sendall(large[:1000])
    rig.step()
    other = rig.connect()
    send_all(rig, [other], [large[: 200 << 10]])
    throttled.sendall(large[1000:4000])
    rig.step()
    rig.answer(request, answer_frame(1), throttle_ms=LONG_MS)
    left = large[200 << 10 :]
    other.setblocking(False)

    def step() -> None:
        nonlocal left
        with contextlib.suppress(BlockingIOError):
            left = left[other.send(left) :] if left else left
        rig.turn.turn(20)

    found = until(rig.requests_taken, "the request of the other", step)
    assert [request.correlation for request in found] == [2]
    assert rig.turn.closed() == []


@pytest.mark.parametrize(("reads_bytes", "stall_ns"), [(0, 50_000_000), (2048, 200_000_000)])
def test_a_client_that_hardly_reads_goes_when_others_starve(
    make_rig: MakeRig, reads_bytes: int, stall_ns: int
) -> None:
    rig = make_rig(memory_bytes=64 << 10, stall_ns=stall_ns)
    deaf = rig.connect()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    send_all(rig, [deaf], [big(1, 80 << 10)])
    (held,) = rig.requests_taken()
    rig.answer(held, answer_frame(1, bytes(32 << 20)))
    rig.step()
    starving = rig.connect()
    starving.sendall(frame(METADATA, 1, 2))

    def step() -> None:
        if reads_bytes:
            # The window opens a little each time.
            deaf.recv(reads_bytes)
        rig.turn.turn(20)

    found = until(rig.requests_taken, "the request of who starves", step)
    assert [request.correlation for request in found] == [2]
    assert rig.reasons() == [CloseReason.CLOSED_STALLED]


def test_a_client_that_never_reads_goes_when_a_handler_has_no_room_for_answers(make_rig: MakeRig) -> None:
    rig = make_rig(handlers=2, stall_ns=50_000_000)
    deaf, quiet = rig.connect(), rig.connect()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.sendall(frame(METADATA, 1, 1))
    rig.step()
    (request,) = [*rig.requests_taken(0), *rig.requests_taken(1)]
    rig.answer(request, answer_frame(1, bytes(32 << 20)))
    looked_s = time.monotonic() + 0.3
    while time.monotonic() < looked_s:
        rig.turn.turn(20)
    assert rig.turn.closed() == []
    rig.memory.words("replies_out").store(1, 1)
    assert rig.await_reasons() == [CloseReason.CLOSED_STALLED]
    assert not is_closed(quiet)


def test_the_largest_request_that_can_be_configured_fits(make_rig: MakeRig) -> None:
    rig = make_rig(frame_bytes_max=LARGEST_REQUEST_BYTES, memory_bytes=1 << 20)
    client = rig.connect()
    client.sendall(struct.pack(">i", LARGEST_REQUEST_BYTES) + bytes(100))
    rig.step()
    assert rig.in_use_bytes() < 2048, "what a frame claims costs nothing before it fills its first block"
    client.sendall(bytes(64 << 10))
    rig.step()
    assert rig.turn.closed() == []
    assert rig.in_use_bytes() > LARGEST_REQUEST_BYTES
    client.close()
    rig.step()
    assert rig.in_use_bytes() == 0


def test_the_limit_is_what_the_supervisor_says_now(make_rig: MakeRig) -> None:
    rig = make_rig(memory_bytes=64 << 10)
    holder, waiting = rig.connect(), rig.connect()
    send_all(rig, [holder], [big(1, 80 << 10)])
    assert [request.correlation for request in rig.requests_taken()] == [1]
    waiting.sendall(frame(METADATA, 1, 2))
    rig.step()
    assert rig.requests_taken() == []
    rig.memory.words("request_limits").store(PROCESSOR, 1 << 20)
    rig.step()
    assert [request.correlation for request in rig.requests_taken()] == [2]
    rig.memory.words("request_limits").store(PROCESSOR, 64 << 10)
    another = rig.connect()
    another.sendall(frame(METADATA, 1, 3))
    rig.step()
    assert rig.requests_taken() == []


@pytest.mark.parametrize("low", [False, True])
def test_while_memory_is_low_sockets_are_served_in_any_order(make_rig: MakeRig, low: bool) -> None:
    """Check the random order: in the order of descriptors, the same ones would always get the last memory."""
    rig = make_rig(memory_bytes=1 << 20)
    holder = rig.connect()
    if low:
        send_all(rig, [holder], [big(99, 700_000)])
        assert len(rig.requests_taken()) == 1
        more = rig.connect()
        send_all(rig, [more], [big(98, 130_000)])
        assert len(rig.requests_taken()) == 1
        assert (1 << 20) * 9 // 10 < rig.in_use_bytes() < (1 << 20) - 40_000
    clients = [rig.connect() for _ in range(16)]
    rig.step()
    orders = set()
    for _ in range(5):
        for i, client in enumerate(clients):
            client.sendall(frame(METADATA, 1, i))
        found = []
        while len(found) < len(clients):
            rig.turn.turn(20)
            found += rig.requests_taken()
        orders.add(tuple(request.correlation for request in found))
        for request in found:
            rig.answer(request, answer_frame(request.correlation))
        rig.step()
        for returned in rig.taken():
            rig.arenas[0].take_back(returned.block, returned.generation)
    assert all(sorted(order) == list(range(16)) for order in orders)
    assert (len(orders) > 1) == low
