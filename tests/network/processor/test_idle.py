"""Who was active when: all idle connections go at once, and the least recently active is known."""

from __future__ import annotations

import random
import time

from mpbroker.ipc.slots import SlotKind
from mpbroker.network.processor.channel import CloseReason
from tests.support.polling import until
from tests.support.processor_rig import MakeRig, Rig, answer_frame, frame, is_closed, receive

METADATA = 3
IDLE_NS = 200_000_000


def work_until(rig: Rig, until_ns: int) -> None:
    while time.monotonic_ns() < until_ns:
        rig.turn.turn(5)


def exchange(rig: Rig, number: int) -> None:
    """One request and its answer."""
    rig.clients[number].sendall(frame(METADATA, 1, number))
    rig.step(1)
    (request,) = rig.requests_taken()
    rig.answer(request, answer_frame(number))
    rig.step(1)
    assert receive(rig.clients[number], 8) == answer_frame(number)


def test_all_that_are_idle_go_in_one_turn_and_the_active_stay(make_rig: MakeRig) -> None:
    rig = make_rig(places=300)
    for _ in range(200):
        rig.connect()
    rig.step()
    before_ns = time.monotonic_ns()
    for number in (3, 77):
        exchange(rig, number)
    rig.turn.close_idle(before_ns)
    closed = rig.turn.closed()
    assert len(closed) == 198
    assert {reason for _, reason, _ in closed} == {CloseReason.CLOSED_IDLE}
    assert not is_closed(rig.clients[3])
    assert not is_closed(rig.clients[77])
    assert rig.turn.open_connections() == 2


def test_connections_expire_when_their_time_is_over_and_not_before(make_rig: MakeRig) -> None:
    rig = make_rig(places=300, idle_ns=IDLE_NS)
    first_ns = time.monotonic_ns()
    for _ in range(100):
        rig.connect()
    last_ns = time.monotonic_ns()
    closed: list[object] = []

    def turn() -> None:
        rig.turn.turn(5)
        closed.extend(rig.turn.closed())

    until(lambda: closed, "an idle connection is closed", turn)
    assert time.monotonic_ns() > first_ns + IDLE_NS // 2
    work_until(rig, last_ns + IDLE_NS + 10_000_000)
    rig.step()
    assert len(closed) + len(rig.turn.closed()) == 100
    assert rig.turn.open_connections() == 0


def test_a_connection_that_waits_for_its_answer_is_idle_too(make_rig: MakeRig) -> None:
    rig = make_rig(idle_ns=IDLE_NS)
    client = rig.connect()
    request = rig.ask(client, frame(METADATA, 1, 1))
    work_until(rig, time.monotonic_ns() + IDLE_NS + 10_000_000)
    assert is_closed(client)
    assert rig.reasons() == [CloseReason.CLOSED_IDLE]
    # Its answer is dropped, and said to be; the block comes back.
    rig.answer(request, answer_frame(1))
    rig.step()
    ((session, api_key),) = rig.turn.late_answers()
    assert (session.connection, api_key) == (request.connection, METADATA)
    assert [one.kind for one in rig.taken()] == [SlotKind.RETURN]
    assert rig.in_use_bytes() == 0


def test_the_least_recently_active_goes_first(make_rig: MakeRig) -> None:
    rig = make_rig(places=64)
    for _ in range(30):
        rig.connect()
    by_port = {client.getsockname()[1]: number for number, client in enumerate(rig.clients)}
    order = list(range(30))
    dice = random.Random(7)
    for _ in range(100):
        number = dice.randrange(30)
        exchange(rig, number)
        order.remove(number)
        order.append(number)
    gone = []
    while rig.turn.close_least_recently_active() is not None:
        gone += [by_port[session.client_port] for session, _, _ in rig.turn.closed()]
    assert gone == order


def test_only_listeners_that_are_named_give_way(rig: Rig) -> None:
    pairs = [rig.pair() for _ in range(4)]
    connections = []
    for number, (served, _) in enumerate(pairs):
        added = rig.turn.add_connection(served.detach(), number % 2)
        assert added is not None
        connections.append(added[1])
    assert rig.turn.close_least_recently_active({1}) == connections[1]
    assert rig.turn.close_least_recently_active({1}) == connections[3]
    assert rig.turn.close_least_recently_active({1}) is None
    assert rig.turn.close_least_recently_active() == connections[0]
    assert {reason for _, reason, _ in rig.turn.closed()} == {CloseReason.CLOSED_EXCESS}
