"""Nobody takes more than a share of a turn; what comes pipelined costs no more than what does not."""

from __future__ import annotations

import socket
import struct
import threading

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpbroker.ipc.slots import Request
from tests.support.forms import rounds
from tests.support.polling import PATIENCE_S
from tests.support.processor_rig import Rig, answer_frame, frame, receive

METADATA = 3
RIG = {"places": 300, "frame_bytes_max": 128 << 20}


def reader(client: socket.socket, count: int) -> threading.Thread:
    """Reads so many bytes as fast as it can."""

    def read() -> None:
        left = count
        while left:
            left -= len(client.recv(1 << 20))

    thread = threading.Thread(target=read)
    thread.start()
    return thread


def test_a_huge_answer_leaves_room_for_small_ones_in_every_turn(rig: Rig) -> None:
    big, *small = (rig.connect() for _ in range(201))
    request = rig.ask(big, frame(METADATA, 1, 0))
    payload = answer_frame(0, bytes(100 << 20))
    rig.answer(request, payload)
    thread = reader(big, len(payload))
    # 100 MB take at least 400 shares. In each of those turns the others are served.
    rounds = 0
    while thread.is_alive():
        for client in small:
            client.sendall(frame(METADATA, 1, 1))
        rig.turn.turn(0)
        taken = rig.requests_taken()
        for one in taken:
            rig.answer(one, answer_frame(1))
        rig.turn.turn(0)
        for client in small[: len(taken)]:
            assert receive(client, 8) == answer_frame(1)
        assert len(taken) == 200, "one turn serves all the small ones"
        rounds += 1
        if rounds == 150:
            break
    while thread.is_alive():
        rig.turn.turn(0)
    thread.join()
    assert rounds == 150, "the huge answer was written at one go"


def test_a_huge_request_leaves_room_for_small_ones_in_every_turn(rig: Rig) -> None:
    big, small = rig.connect(), rig.connect()
    whole = frame(METADATA, 1, 7, bytes(64 << 20))
    thread = threading.Thread(target=big.sendall, args=(whole,))
    thread.start()
    served = 0
    found: list[Request] = []
    while not any(request.correlation == 7 for request in found):
        if served < 20:
            small.sendall(frame(METADATA, 1, 1))
        rig.turn.turn(0)
        found = rig.requests_taken()
        for request in (one for one in found if one.correlation == 1):
            served += 1
            rig.answer(request, answer_frame(1))
            rig.turn.turn(0)
            assert receive(small, 8) == answer_frame(1)
    thread.join()
    assert served == 20


@settings(deadline=None, max_examples=rounds(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 70_000), min_size=1, max_size=30),
    cuts=st.lists(st.integers(1, 100_000), max_size=12),
)
def test_pipelined_requests_come_whole_in_order_and_one_at_a_time(
    rig: Rig, sizes: list[int], cuts: list[int]
) -> None:
    """Check it however the bytes are cut, and whatever follows a whole frame."""
    client = rig.connect()
    frames = [
        frame(METADATA, 1, i, struct.pack(">I", i) * (size // 4) + b"e" * (size % 4))
        for i, size in enumerate(sizes)
    ]
    left = memoryview(b"".join(frames))
    seen = 0
    client.setblocking(False)
    for cut in [*cuts, *[len(left)] * 4000]:
        try:
            sent = client.send(left[:cut]) if left else 0
        except BlockingIOError:
            sent = 0
        left = left[sent:]
        rig.turn.turn(0)
        taken = rig.requests_taken()
        assert len(taken) <= 1
        for request in taken:
            assert rig.bytes_of(request) == frames[seen]
            # An answer is written behind the frame, as the log process does: the next must not be there.
            rig.answer_in_place(request, answer_frame(seen))
            rig.turn.turn(0)
            client.settimeout(PATIENCE_S)
            assert receive(client, 8) == answer_frame(seen)
            client.setblocking(False)
            seen += 1
        if seen == len(frames):
            break
    assert seen == len(frames)
    client.close()
    rig.step()
    assert rig.in_use_bytes() == 0
    rig.turn.closed()


def test_a_thousand_small_requests_in_one_piece_move_each_byte_once_or_twice(rig: Rig) -> None:
    client = rig.connect()
    client.sendall(b"".join(frame(METADATA, 1, i, bytes(20)) for i in range(1000)))
    most = 0
    for i in range(1000):
        rig.step()
        (request,) = rig.requests_taken()
        assert request.correlation == i
        most = max(most, rig.in_use_bytes())
        rig.answer_in_place(request, answer_frame(i))
        rig.turn.turn(0)
        assert receive(client, 8) == answer_frame(i)
    # One block that was read into and one for the request that is out.
    assert most < 150 << 10
    assert rig.in_use_bytes() == 0
