"""The processor's arena as Kafka's MemoryPool: the overcommit rule, resuming, who waits and who has to go."""

from __future__ import annotations

import socket
import struct
import time

from mpbroker.config.broker import LARGEST_REQUEST_BYTES
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.slots import Request
from mpbroker.network.channel import CloseReason
from tests.network.rig import Rig, answer_frame, frame, is_closed, receive

METADATA = 3
POOL = 4 << 20
SIXTY_PERCENT = POOL * 6 // 10


def big(correlation: int, size: int = SIXTY_PERCENT) -> bytes:
    return frame(METADATA, 1, correlation, bytes(size))


def send_all(rig: Rig, clients: list[socket.socket], data: list[bytes]) -> None:
    """As far as the broker reads, from all at once."""
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
        client.settimeout(5)
    rig.step(40)


def test_the_second_of_two_big_requests_is_let_in_and_the_third_waits() -> None:
    rig = Rig(memory_bytes=POOL)
    clients = [rig.connect() for _ in range(3)]
    send_all(rig, clients[:1], [big(0)])
    send_all(rig, clients[1:2], [big(1)])
    first, second = rig.requests_taken()
    assert (first.correlation, second.correlation) == (0, 1)
    send_all(rig, clients[2:], [big(2)])
    assert rig.requests_taken() == []
    assert rig.counter(Counter.COUNT_MEMORY_FULL) == 1, "who waits is not tried again and again"
    before_ns = time.monotonic_ns()
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
    assert 0 < depleted_ns < time.monotonic_ns() - before_ns + 5_000_000_000
    rig.close()


def resume(rig: Rig, client: socket.socket, whole: bytes) -> Request:
    """The broker has part of the frame, the socket's buffers another; the client sends what is left."""
    for _ in range(20_000):
        rig.turn.turn(0)
        if found := rig.requests_taken():
            return found[0]
        client.setblocking(False)
        try:
            client.send(bytes(64 << 10))
        except BlockingIOError:
            continue
    raise TimeoutError(f"the rest of {len(whole)} bytes did not come")


def test_those_who_wait_longest_go_on_first() -> None:
    rig = Rig(memory_bytes=64 << 10, places=64)
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
    rig.close()


def test_a_hundred_megabytes_in_one_request() -> None:
    rig = Rig(memory_bytes=200 << 20, frame_bytes_max=100 << 20)
    client = rig.connect()
    sent = frame(METADATA, 1, 7, bytes(range(256)) * ((100 << 20) // 256 - 1))
    send_all(rig, [client], [sent])
    rig.step()
    (request,) = rig.requests_taken()
    assert request.length == len(sent)
    assert rig.request_arena.view(request.block, request.length) == sent
    rig.answer(request, answer_frame(7))
    rig.step()
    assert rig.in_use_bytes() == 0
    # What was big once is not set aside again before the size is known.
    client.sendall(b"\0")
    assert rig.in_use_bytes() < 128 << 10
    rig.close()


def test_slow_writers_cost_what_they_hold_and_go_when_others_starve() -> None:
    rig = Rig(memory_bytes=1 << 20, places=1100, stall_ns=50_000_000)
    slow = [rig.connect() for _ in range(1000)]
    whole = frame(METADATA, 1, 1, bytes(600))
    for client in slow:
        client.sendall(whole[:100])
    rig.step()
    assert rig.in_use_bytes() <= 1000 * 2048
    # Half of them did not get memory for their first bytes; none is closed yet.
    assert rig.turn.closed() == []
    honest = rig.connect()
    honest.sendall(frame(METADATA, 1, 5))
    until = time.monotonic() + 5
    found: list[Request] = []
    while not found and time.monotonic() < until:
        rig.turn.turn(20)
        found = [request for request in rig.requests_taken() if request.correlation == 5]
    assert found, "the honest client starved"
    reasons = {reason for _, reason, _ in rig.turn.closed()}
    assert reasons == {CloseReason.CLOSED_STALLED}
    rig.close()


def test_idle_connections_and_waiting_ones_are_not_stalled() -> None:
    rig = Rig(memory_bytes=64 << 10, stall_ns=1_000_000)
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
    rig.close()


def test_a_client_that_never_reads_goes_when_others_starve() -> None:
    rig = Rig(memory_bytes=64 << 10, stall_ns=50_000_000)
    deaf = rig.connect()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    send_all(rig, [deaf], [big(1, 80 << 10)])
    (held,) = rig.requests_taken()
    rig.answer(held, answer_frame(1, bytes(32 << 20)))
    rig.step()
    starving = rig.connect()
    starving.sendall(frame(METADATA, 1, 2))
    until = time.monotonic() + 5
    found: list[Request] = []
    while not found and time.monotonic() < until:
        rig.turn.turn(20)
        found = rig.requests_taken()
    assert [request.correlation for request in found] == [2]
    assert [reason for _, reason, _ in rig.turn.closed()] == [CloseReason.CLOSED_STALLED]
    rig.close()


def test_a_client_that_never_reads_goes_when_a_handler_has_no_room_for_answers() -> None:
    rig = Rig(handlers=2, stall_ns=50_000_000)
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
    closed: list[int] = []
    until = time.monotonic() + 5
    while not closed and time.monotonic() < until:
        rig.turn.turn(20)
        closed = [reason for _, reason, _ in rig.turn.closed()]
    assert closed == [CloseReason.CLOSED_STALLED]
    assert not is_closed(quiet)
    rig.close()


def test_the_largest_request_that_can_be_configured_fits() -> None:
    rig = Rig(frame_bytes_max=LARGEST_REQUEST_BYTES, memory_bytes=1 << 20)
    client = rig.connect()
    client.sendall(struct.pack(">i", LARGEST_REQUEST_BYTES) + bytes(100))
    rig.step()
    assert rig.turn.closed() == []
    assert rig.in_use_bytes() > LARGEST_REQUEST_BYTES
    client.close()
    rig.step()
    assert rig.in_use_bytes() == 0
    rig.close()
