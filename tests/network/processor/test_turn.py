"""The processor's turn, phase by phase, over real sockets."""

from __future__ import annotations

import os
import random
import select
import socket
import struct
import threading

import pytest

from mpbroker.ipc import topology
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.process import Order
from mpbroker.ipc.slots import (
    ReplyFlag,
    SlotKind,
    unpack_request,
)
from mpbroker.network.processor import turn as native
from mpbroker.network.processor.channel import CloseReason
from mpbroker.network.processor.processor import connection_prefix
from shm.clock import boot_ns
from tests.support.polling import PATIENCE_S
from tests.support.processor_rig import (
    FRAME_BYTES_MAX,
    PROCESSOR,
    MakeRig,
    Rig,
    answer_frame,
    frame,
    is_closed,
    receive,
)

METADATA, PRODUCE, FETCH, CREATE_TOPICS = 3, 0, 1, 19


def test_a_request_arrives_with_its_header_parsed_and_its_answer_goes_back(rig: Rig) -> None:
    client = rig.connect()
    sent = frame(METADATA, 4, 77, b"body!")
    request = rig.ask(client, sent)
    assert rig.bytes_of(request) == sent
    assert (request.api_key, request.api_version, request.correlation) == (METADATA, 4, 77)
    assert sent[request.body :] == b"body!"
    block = rig.answer(request, answer_frame(77, b"yes"))
    rig.step()
    assert receive(client, 11) == answer_frame(77, b"yes")
    (returned,) = rig.taken()
    assert (returned.kind, returned.block) == (SlotKind.RETURN, block)
    assert rig.arenas[0].take_back(block, returned.generation)
    assert rig.in_use_bytes() == 0


def test_a_flexible_header_is_skipped_with_its_tags(rig: Rig) -> None:
    client = rig.connect()
    sent = frame(METADATA, 12, 5, b"BODY", tags=b"\x02\x07\x03abc\x09\x00")
    request = rig.ask(client, sent)
    assert sent[request.body :] == b"BODY"


def test_a_frame_may_come_in_single_bytes(rig: Rig) -> None:
    client = rig.connect()
    sent = frame(METADATA, 1, 9, b"0123456789")
    for i in range(len(sent)):
        assert rig.requests_taken() == []
        client.send(sent[i : i + 1])
        rig.step(1)
    rig.step()
    (request,) = rig.requests_taken()
    assert rig.bytes_of(request) == sent


@pytest.mark.parametrize("size", [0, 1, 900, 1400, 1984, 2000, 5000, 65536, 1 << 20, FRAME_BYTES_MAX - 14])
def test_frames_of_every_size_arrive_whole(rig: Rig, size: int) -> None:
    client = rig.connect()
    sent = frame(PRODUCE, 3, 1, random.Random(size).randbytes(size))
    request = rig.ask_in_pieces(client, sent)
    assert rig.bytes_of(request) == sent
    assert rig.request_arena.capacity(request.block) - request.length >= 512, (
        "no room for the produce job and its answer"
    )
    rig.answer_in_place(request, answer_frame(1))
    rig.step()
    assert receive(client, 8) == answer_frame(1)
    assert rig.in_use_bytes() == 0


def test_a_pipelined_request_needs_no_further_wake_up(rig: Rig) -> None:
    client = rig.connect()
    request = rig.ask(client, frame(METADATA, 1, 1) + frame(METADATA, 1, 2))
    rig.answer(request, answer_frame(1))
    rig.turn.turn(0)
    assert [r.correlation for r in rig.requests_taken()] == [2]


def test_one_call_serves_request_after_request_and_ends_for_an_order(rig: Rig) -> None:
    client = rig.connect()
    served: list[int] = []
    orders = rig.memory.words("orders")

    def serve() -> None:
        # Python has its turn now and then, whatever there is to do; nothing else ends a call.
        while orders.load(PROCESSOR) != Order.STOP:
            served.append(rig.turn.serve(120_000))

    serving = threading.Thread(target=serve)
    serving.start()
    for i in range(1, 6):
        client.sendall(frame(METADATA, 1, i))
        while not (taken := rig.requests_taken()):
            assert serving.is_alive()
        assert taken[0].correlation == i
        rig.answer(taken[0], answer_frame(i))
        rig.memory.doorbell(PROCESSOR).ring()
        assert receive(client, 8) == answer_frame(i)
    orders.store(PROCESSOR, Order.STOP)
    rig.memory.doorbell(PROCESSOR).ring()
    serving.join(PATIENCE_S)
    assert not serving.is_alive()
    assert set(served) == {0}


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (struct.pack(">i", -1) + b"xxxx", CloseReason.CLOSED_FRAME_SIZE),
        (struct.pack(">i", FRAME_BYTES_MAX + 1), CloseReason.CLOSED_FRAME_SIZE),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", CloseReason.CLOSED_FRAME_SIZE),
        (struct.pack(">i", 0) + b"", CloseReason.CLOSED_HEADER),
        (struct.pack(">ihhih", 10, METADATA, 1, 1, 500), CloseReason.CLOSED_HEADER),
        (frame(METADATA, 12, 1, tags=b"\xff\xff\xff\xff\xff\xff"), CloseReason.CLOSED_HEADER),
        (frame(METADATA, 12, 1, tags=b"\x01\x00\x7f"), CloseReason.CLOSED_HEADER),
        (frame(120, 0, 1), CloseReason.CLOSED_UNKNOWN_API),
        (frame(-5, 0, 1), CloseReason.CLOSED_UNKNOWN_API),
        (frame(9999, 0, 1), CloseReason.CLOSED_UNKNOWN_API),
    ],
)
def test_what_is_no_kafka_request_closes_the_connection(rig: Rig, sent: bytes, reason: CloseReason) -> None:
    client = rig.connect()
    client.sendall(sent)
    rig.step()
    assert rig.reasons() == [reason]
    assert is_closed(client)
    assert rig.requests_taken() == []
    assert rig.in_use_bytes() == 0


def test_noop_goes_on_reading_and_close_closes(rig: Rig) -> None:
    client = rig.connect()
    first = rig.ask(client, frame(PRODUCE, 3, 1) + frame(PRODUCE, 3, 2))
    rig.answer_kind(first, SlotKind.NOOP)
    rig.step()
    (second,) = rig.requests_taken()
    assert second.correlation == 2
    rig.answer_kind(second, SlotKind.CLOSE)
    rig.step()
    assert is_closed(client)
    assert rig.reasons() == [CloseReason.CLOSED_BY_HANDLER]
    assert rig.in_use_bytes() == 0


def test_a_last_answer_is_sent_and_the_connection_closed(rig: Rig) -> None:
    client = rig.connect()
    rig.answer(rig.ask(client, frame(METADATA, 1, 1)), answer_frame(1), flags=ReplyFlag.LAST)
    rig.step()
    assert receive(client, 8) == answer_frame(1)
    assert is_closed(client)
    assert rig.reasons() == [CloseReason.CLOSED_BY_HANDLER]
    # The next connection in its place is no concern of it.
    again = rig.connect()
    for _ in range(2):
        rig.finish(again, rig.ask(again, frame(METADATA, 1, 1)))


def test_the_block_of_a_gone_connection_is_kept_until_its_borrower_answers(rig: Rig) -> None:
    client = rig.connect()
    request = rig.ask(client, frame(PRODUCE, 3, 1, b"records"))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    rig.step()
    assert [s.connection for s, _, _ in rig.turn.closed()] == [request.connection]
    assert rig.in_use_bytes() > 0
    assert rig.bytes_of(request).endswith(b"records")
    rig.answer_in_place(request, answer_frame(1))
    assert rig.in_use_bytes() == 0
    assert rig.turn.open_connections() == 0


def test_a_place_is_not_given_to_another_connection_while_a_request_is_out(rig: Rig) -> None:
    first = rig.connect()
    request = rig.ask(first, frame(PRODUCE, 3, 1))
    first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    first.close()
    rig.step()
    second = rig.connect()
    other = rig.ask(second, frame(PRODUCE, 3, 2))
    assert other.channel != request.channel
    rig.answer_in_place(request, answer_frame(1, b"not yours"))
    rig.answer_in_place(other, answer_frame(2))
    rig.step()
    assert receive(second, 8) == answer_frame(2)


def test_a_parked_request_is_cancelled_when_its_client_goes(rig: Rig) -> None:
    client = rig.connect()
    request = rig.ask(client, frame(FETCH, 4, 1))
    rig.answer_kind(request, SlotKind.PARKED)
    rig.step()
    client.close()
    rig.step()
    (cancel,) = rig.taken()
    assert (cancel.kind, cancel.connection, cancel.request) == (
        SlotKind.CANCEL,
        request.connection,
        request.request,
    )
    rig.answer_kind(request, SlotKind.NOOP)
    assert rig.in_use_bytes() == 0


def test_a_client_that_goes_before_its_request_is_parked_is_cancelled_too(rig: Rig) -> None:
    client = rig.connect()
    request = rig.ask(client, frame(FETCH, 4, 1))
    client.close()
    rig.step()
    assert rig.taken() == []
    rig.answer_kind(request, SlotKind.PARKED)
    rig.step()
    (cancel,) = rig.taken()
    assert (cancel.kind, cancel.request) == (SlotKind.CANCEL, request.request)
    rig.answer_kind(request, SlotKind.NOOP)
    assert rig.in_use_bytes() == 0


def test_parked_requests_do_not_count_as_load(make_rig: MakeRig) -> None:
    rig = make_rig(handlers=2)
    clients = [rig.connect() for _ in range(3)]
    clients[0].sendall(frame(FETCH, 4, 1))
    rig.step()
    where = 0 if rig.requests[0].waiting() else 1
    (parked,) = rig.requests_taken(where)
    rig.answer_kind(parked, SlotKind.PARKED, where)
    rig.step()
    clients[1].sendall(frame(METADATA, 1, 2))
    rig.step()
    clients[2].sendall(frame(METADATA, 1, 3))
    rig.step()
    assert [len(rig.requests_taken(h)) for h in (0, 1)] == [1, 1]


def test_a_full_ring_and_queue_stop_reading_and_lose_nothing(make_rig: MakeRig) -> None:
    count = topology.REQUEST_RING_SLOTS + 80
    rig = make_rig(queued_max=topology.REQUEST_RING_SLOTS + 4, places=count)
    clients = [rig.connect() for _ in range(count)]
    for i, client in enumerate(clients):
        client.sendall(frame(METADATA, 1, i))
    rig.step(topology.REQUEST_RING_SLOTS // 4 + 10)
    assert rig.requests[0].waiting() == topology.REQUEST_RING_SLOTS
    seen: list[int] = []
    for _ in range(10):
        rig.step()
        slots, producer_waits = rig.requests[0].take(100)
        assert producer_waits or len(seen) + len(slots) // 64 == count
        for i in range(len(slots) // 64):
            request = unpack_request(slots, i)
            if request.kind == SlotKind.REQUEST:
                seen.append(request.correlation)
                rig.answer(request, answer_frame(request.correlation))
        rig.step()
    for _ in range(20):
        rig.step()
        for request in rig.requests_taken():
            seen.append(request.correlation)
            rig.answer(request, answer_frame(request.correlation))
    assert sorted(seen) == list(range(count))
    for i, client in enumerate(clients):
        assert receive(client, 8) == answer_frame(i)


def test_a_dead_handlers_untaken_and_harmless_requests_go_to_another(make_rig: MakeRig) -> None:
    rig = make_rig(handlers=2)
    rig.memory.words("heavy").store(1, 1)  # so that all goes to handler 0
    clients = {i: rig.connect() for i in range(1, 5)}
    clients[1].sendall(frame(PRODUCE, 3, 1))
    clients[2].sendall(frame(FETCH, 4, 2))
    rig.step()
    taken = {r.correlation: r for r in rig.requests_taken(0)}
    assert set(taken) == {1, 2}
    clients[3].sendall(frame(PRODUCE, 3, 3))
    clients[4].sendall(frame(CREATE_TOPICS, 2, 4))
    rig.step()
    rig.turn.fence_handler(0)
    rig.memory.words("heavy").store(1, 0)
    rig.step()
    assert sorted(r.correlation for r in rig.requests_taken(1)) == [2, 3, 4]
    assert is_closed(clients[1])


def test_a_request_that_kills_its_handlers_is_not_given_to_all_of_them(make_rig: MakeRig) -> None:
    rig = make_rig(handlers=3)
    client = rig.connect()
    client.sendall(frame(FETCH, 4, 1))
    rig.step()
    killed = 0
    for _ in range(3):
        for number in range(3):
            if rig.requests_taken(number):
                killed += 1
                rig.turn.fence_handler(number)
                rig.step()
    assert killed == 2
    assert is_closed(client)
    assert rig.in_use_bytes() == 0


def test_a_socket_that_cannot_be_watched_takes_no_place(rig: Rig) -> None:
    watched = socket.create_connection(rig.listener.getsockname())
    served, _ = rig.listener.accept()
    rig.clients.append(watched)
    fd = served.detach()
    assert rig.turn.add_connection(fd, 0)
    for _ in range(100):
        with pytest.raises(FileExistsError):
            rig.turn.add_connection(fd, 0)
    with open(os.devnull) as no_socket, pytest.raises(OSError, match="non-socket"):
        rig.turn.add_connection(no_socket.fileno(), 0)
    assert rig.turn.open_connections() == 1
    client = rig.connect()
    client.sendall(frame(METADATA, 1, 1))
    rig.step()
    assert len(rig.requests_taken()) == 1


def test_a_dead_log_process_closes_what_was_taken_and_keeps_what_was_not(rig: Rig) -> None:
    clients = {i: rig.connect() for i in range(1, 4)}
    clients[1].sendall(frame(PRODUCE, 3, 1))
    clients[2].sendall(frame(FETCH, 4, 2))
    rig.step()
    taken = {r.correlation: r for r in rig.requests_taken()}
    clients[3].sendall(frame(PRODUCE, 3, 3))
    rig.step()
    rig.turn.fence_log()
    assert is_closed(clients[1])
    (still,) = rig.requests_taken()
    assert still.correlation == 3
    rig.answer(still, answer_frame(3))
    rig.answer(taken[2], answer_frame(2))
    rig.step()
    assert receive(clients[3], 8) == answer_frame(3)
    assert receive(clients[2], 8) == answer_frame(2)
    assert rig.in_use_bytes() == 0


def test_an_answer_that_the_log_process_gave_before_it_died_is_delivered(rig: Rig) -> None:
    client = rig.connect()
    request = rig.ask(client, frame(PRODUCE, 3, 1))
    rig.answer_in_place(request, answer_frame(1))
    rig.turn.fence_log()
    rig.step()
    assert receive(client, 8) == answer_frame(1)


def test_stopping_answers_what_is_out_and_begins_nothing(rig: Rig) -> None:
    idle, busy = rig.connect(), rig.connect()
    request = rig.ask(busy, frame(METADATA, 1, 1) + frame(METADATA, 1, 2))
    rig.turn.stop_reading()
    assert is_closed(idle)
    rig.finish(busy, request)
    assert native.CLOSED


def test_any_order_of_events_leaves_nothing_behind(make_rig: MakeRig) -> None:
    seed = 20261121
    rng = random.Random(seed)
    rig = make_rig(handlers=2, places=32, queued_max=8)
    live: list[tuple[socket.socket, int]] = []
    pending: list[tuple[int, object]] = []
    number = 0
    for _ in range(3000):
        action = rng.random()
        if action < 0.2 and len(live) < 20:
            live.append((rig.connect(), 0))
        elif action < 0.5 and live:
            number += 1
            client, _ = rng.choice(live)
            sent = frame(
                rng.choice([PRODUCE, FETCH, METADATA]), 3, number, rng.randbytes(rng.choice([0, 10, 3000]))
            )
            try:
                client.sendall(sent)
            except OSError:
                continue
        elif action < 0.55 and live:
            client, _ = live.pop(rng.randrange(len(live)))
            rig.clients.remove(client)
            if rng.random() < 0.5:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        elif action < 0.75:
            for h in (0, 1):
                for slot in rig.taken(h):
                    if slot.kind == SlotKind.REQUEST:
                        pending.append((h, slot))
                    elif slot.kind == SlotKind.RETURN:
                        assert rig.arenas[h].take_back(slot.block, slot.generation)
                        rig.arenas[h].free(slot.block, 8)
        elif pending:
            h, slot = pending.pop(rng.randrange(len(pending)))
            kind = rng.choice(["send", "send", "noop", "close", "in place"])
            if kind == "send":
                rig.answer(slot, answer_frame(slot.correlation), h)  # type: ignore[arg-type,attr-defined]
            elif kind == "in place":
                # type: ignore[arg-type,attr-defined]
                rig.answer_in_place(slot, answer_frame(slot.correlation))
            else:
                # type: ignore[arg-type]
                rig.answer_kind(slot, SlotKind.NOOP if kind == "noop" else SlotKind.CLOSE, h)
        if rng.random() < 0.005:
            rig.memory.leading().until_ns = boot_ns()
        rig.turn.turn(0)
        rig.turn.closed()
    for client, _ in live:
        rig.clients.remove(client)
        client.close()
    for _ in range(200):
        rig.step()
        for h in (0, 1):
            for slot in rig.taken(h):
                if slot.kind == SlotKind.REQUEST:
                    rig.answer_kind(slot, SlotKind.NOOP, h)
                elif slot.kind == SlotKind.RETURN and rig.arenas[h].take_back(slot.block, slot.generation):
                    rig.arenas[h].free(slot.block, 8)
        while pending:
            h, slot = pending.pop()
            rig.answer_kind(slot, SlotKind.NOOP, h)  # type: ignore[arg-type]
    assert rig.turn.open_connections() == 0, seed
    assert rig.in_use_bytes() == 0, seed
    assert all(rig.arenas[h].in_use_bytes == 0 for h in (0, 1)), seed


def test_a_cancel_that_found_the_ring_full_goes_when_there_is_room_and_rings(make_rig: MakeRig) -> None:
    rig = make_rig(queued_max=5000, places=1200)
    parked = rig.connect()
    request = rig.ask(parked, frame(METADATA, 1, 7))
    rig.answer_kind(request, SlotKind.PARKED)
    rig.step()
    for i in range(topology.REQUEST_RING_SLOTS):
        rig.connect().sendall(frame(METADATA, 1, i))
        rig.turn.turn(0)
    rig.step()
    assert rig.requests[0].waiting() == topology.REQUEST_RING_SLOTS
    parked.close()
    rig.step()
    bell = rig.memory.doorbell(topology.handler(0))
    bell.drain()
    slots, waits = rig.requests[0].take(100)
    assert waits, "who takes has to ring the processor"
    bell.arm()
    rig.turn.turn(0)
    assert is_readable(bell.fd), "the cancel lies in the ring and nobody is told"
    assert len(slots) // 64 == 100
    assert [one.kind for one in rig.taken()].count(SlotKind.CANCEL) == 1
    rig.turn.turn(0)
    assert not rig.requests[0].take()[1], "nothing is owed any more"


def test_a_request_that_wants_no_answer_is_no_answer_that_was_sent(rig: Rig) -> None:
    client = rig.connect()
    for i in range(10):
        request = rig.ask(client, frame(METADATA, 1, i))
        rig.answer_kind(request, SlotKind.NOOP)
        rig.step()
    assert rig.counter(Counter.COUNT_REQUESTS) == 10
    assert rig.counter(Counter.COUNT_RESPONSES) == 0
    request = rig.ask(client, frame(METADATA, 1, 11))
    rig.answer(request, answer_frame(11))
    rig.step()
    assert rig.counter(Counter.COUNT_RESPONSES) == 1


def test_an_answer_with_a_predecessors_connection_id_is_dropped(make_rig: MakeRig) -> None:
    """A processor died with a request under way: its answer comes to its successor, whose first one is in
    the same place."""
    old, new = connection_prefix(0, 1), connection_prefix(0, 2)
    assert len({connection_prefix(i, n) for i in range(4) for n in (1, 2, 0xFFFF)}) == 12
    assert old >> 40 != new >> 40
    rig = make_rig()
    client = rig.connect()
    request = rig.ask(client, frame(METADATA, 1, 1))
    assert request.connection == connection_prefix(PROCESSOR, 1) + 1
    stale = request._replace(connection=connection_prefix(PROCESSOR, 0) + 1)
    rig.answer(stale, answer_frame(1, b"of another"))
    rig.step()
    assert [one.kind for one in rig.taken()] == [SlotKind.RETURN], "its block goes back"
    assert not is_readable(client.fileno())
    rig.answer(request, answer_frame(1, b"his"))
    rig.step()
    assert receive(client, 11) == answer_frame(1, b"his")


def is_readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
