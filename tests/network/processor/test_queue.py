"""queued.max.requests over all processors: a full queue stops reading, and nothing else."""

from __future__ import annotations

import pytest

from mpbroker.ipc import topology
from mpbroker.ipc.counters import Counter
from tests.support.processor_rig import PROCESSOR, MakeRig, Rig, answer_frame, frame, receive

METADATA = 3
OTHER = topology.processor(1)


def test_what_is_with_a_handler_and_not_taken_counts(make_rig: MakeRig) -> None:
    rig = make_rig(queued_max=3)
    clients = [rig.connect() for _ in range(8)]
    for i, client in enumerate(clients):
        client.sendall(frame(METADATA, 1, i))
    rig.step()
    queued = rig.memory.words("queued")
    assert rig.requests[0].waiting() == 3
    assert queued.load(PROCESSOR) == rig.counter(Counter.COUNT_QUEUED_REQUESTS) == 3
    seen = 0
    # What was taken makes room at once: the handler rings whoever waits for it.
    for expected in (3, 3, 2):
        slots, producer_waits = rig.requests[0].take()
        seen += expected
        assert producer_waits == (seen < 8)
        assert len(slots) // 64 == expected
        rig.turn.turn(0)
    assert queued.load(PROCESSOR) == 0


def test_answers_flow_while_the_queue_is_full(make_rig: MakeRig) -> None:
    rig = make_rig(queued_max=2)
    answered = rig.connect()
    request = rig.ask(answered, frame(METADATA, 1, 99))
    clients = [rig.connect() for _ in range(5)]
    for client in clients:
        client.sendall(frame(METADATA, 1, 1))
    rig.step()
    rig.answer(request, answer_frame(99))
    rig.turn.turn(0)
    assert receive(answered, 8) == answer_frame(99)
    # And what was pipelined behind it waits like all others.
    answered.sendall(frame(METADATA, 1, 100))
    rig.step()
    assert len(rig.requests_taken()) == 2


@pytest.mark.parametrize("elsewhere", [0, 1, 3, 4])
def test_what_other_processors_have_counts_too(make_rig: MakeRig, elsewhere: int) -> None:
    rig = make_rig(queued_max=4)
    queued = rig.memory.words("queued")
    queued.store(OTHER, elsewhere)
    clients = [rig.connect() for _ in range(6)]
    for client in clients:
        client.sendall(frame(METADATA, 1, 1))
    rig.step()
    # Half of the queue is this processor's whatever the other has.
    here = max(4 - elsewhere, 2)
    assert len(rig.requests_taken()) == here
    # The other's are taken: nobody rings this processor, it looks again soon.
    queued.store(OTHER, 0)
    found = 0
    for _ in range(10):
        rig.turn.turn(300)
        found += len(rig.requests_taken())
        if found == 6 - here:
            break
    assert found == 6 - here


def test_a_queue_that_others_have_filled_leaves_each_processor_its_part(make_rig: MakeRig) -> None:
    rig = make_rig(queued_max=12)
    queued = rig.memory.words("queued")
    for number in (1, 2):
        queued.store(topology.processor(number), 12)
    clients = [rig.connect() for _ in range(9)]
    for client in clients:
        client.sendall(frame(METADATA, 1, 1))
    rig.step()
    assert len(rig.requests_taken()) == 4, "one of three has a third"
    rig.turn.turn(0)
    # What was taken makes room for as many again, though the others' are never taken.
    assert len(rig.requests_taken()) == 4
    rig.turn.turn(0)
    assert len(rig.requests_taken()) == 1


def test_the_control_plane_has_a_queue_of_its_own(make_rig: MakeRig) -> None:
    rig = make_rig(queued_max=4)
    rig.memory.words("queued").store(topology.CONTROL_PROCESSOR, 1000)
    client = rig.connect()
    client.sendall(frame(METADATA, 1, 1))
    rig.step()
    assert len(rig.requests_taken()) == 1


def test_a_processor_that_dies_does_not_count_any_more(make_rig: MakeRig) -> None:
    rig = make_rig(queued_max=4)
    rig.step()
    rig.memory.words("queued").store(OTHER, 4)
    for _ in range(3):
        rig.connect().sendall(frame(METADATA, 1, 1))
    rig.step()
    assert rig.requests[0].waiting() == 2
    # What the supervisor does behind the fence.
    rig.memory.words("queued").store(OTHER, 0)
    rig.step()
    assert len(rig.requests_taken()) == 3


def test_returned_blocks_do_not_count_as_requests(make_rig: MakeRig) -> None:
    rig = make_rig(queued_max=2)
    clients = [rig.connect() for _ in range(4)]
    for client in clients[:2]:
        client.sendall(frame(METADATA, 1, 1))
    rig.step()
    for request in rig.requests_taken():
        rig.answer(request, answer_frame(1))
    rig.step()
    # Two RETURNs wait in the ring now.
    assert rig.requests[0].waiting() == 2
    for client in clients[2:]:
        client.sendall(frame(METADATA, 1, 2))
    rig.step()
    assert len(rig.requests_taken()) == 2


def test_slots_that_are_no_requests_do_not_fill_the_queue(rig: Rig) -> None:
    """Check it with more of them in sequence than the ring has places, without a request in between."""
    gone = rig.connect()
    request = rig.ask(gone, frame(METADATA, 1, 1))
    gone.close()
    rig.step()
    returned = 0
    while returned <= topology.REQUEST_RING_SLOTS:
        for _ in range(100):
            rig.answer(request, answer_frame(1))
        rig.step()
        rig.turn.late_answers()
        returned += len(rig.taken())
    for i in range(3):
        client = rig.connect()
        client.sendall(frame(METADATA, 1, i))
        rig.step()
        assert rig.counter(Counter.COUNT_QUEUED_REQUESTS) == 1
        assert len(rig.requests_taken()) == 1
        rig.step()
        assert rig.counter(Counter.COUNT_QUEUED_REQUESTS) == 0


def test_a_handler_that_is_welcomed_once_more_keeps_what_it_has(make_rig: MakeRig) -> None:
    """Check that requests that were sent before the welcome still count."""
    rig = make_rig(queued_max=8)
    clients = [rig.connect() for _ in range(6)]
    for client in clients[:3]:
        client.sendall(frame(METADATA, 1, 1))
    rig.step()
    rig.turn.welcome_handler(0)
    clients[3].sendall(frame(METADATA, 1, 1))
    rig.step()
    assert rig.counter(Counter.COUNT_QUEUED_REQUESTS) == 4
    assert len(rig.requests_taken()) == 4
    rig.step()
    assert rig.memory.words("queued").load(PROCESSOR) == 0
    for client in clients[4:]:
        client.sendall(frame(METADATA, 1, 1))
    rig.step()
    assert len(rig.requests_taken()) == 2
