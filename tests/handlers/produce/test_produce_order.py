"""Produces that Python passes on keep their connection's order."""

from __future__ import annotations

from mpbroker.handlers.produce.produce_order import ProduceOrder
from mpbroker.ipc.slots import Request

PROCESSOR, OTHER = 8, 9


def produce(connection: int, number: int, processor: int = PROCESSOR) -> Request:
    fields = dict.fromkeys(Request._fields, 0)
    fields |= {"connection": connection, "request": number}
    fields |= {"processor": processor, "channel": connection + 100}
    return Request(**fields)


class Order(ProduceOrder):
    """An order whose turn is played here; `held`: channels whose produces are left to Python."""

    def __init__(self) -> None:
        self.passed: list[tuple[int, int]] = []
        self.held: list[tuple[int, int]] = []
        super().__init__(self)  # type: ignore[arg-type]

    def produce_passed_on(self, processor: int, channel: int) -> None:
        self.passed.append((processor, channel))

    def hold_produces(self, processor: int, channel: int) -> None:
        self.held.append((processor, channel))


def test_the_next_one_is_ready_when_the_one_before_is_passed_on() -> None:
    order = Order()
    first, second, third = (produce(1, number) for number in range(3))
    assert order.begin(first)
    assert not order.begin(second)
    assert not order.begin(third)
    assert len(order) == 2
    order.end(first)
    assert list(order.ready) == [second]
    assert order.ready.popleft() is second
    order.end(second)
    assert list(order.ready) == [third]
    assert order.passed == [(PROCESSOR, 101)] * 2


def test_connections_do_not_wait_for_each_other() -> None:
    order = Order()
    assert order.begin(produce(1, 1))
    assert order.begin(produce(2, 2))
    assert len(order) == 0


def test_the_end_counts_once() -> None:
    """A produce is passed on, and answered later: its successor may be under way by then."""
    order = Order()
    first, second, third = (produce(1, number) for number in range(3))
    for request in (first, second, third):
        order.begin(request)
    order.end(first)
    order.end(first)
    assert list(order.ready) == [second]
    order.ready.clear()
    order.end(second)
    order.end(third)
    assert order.begin(produce(1, 4))
    assert len(order.passed) == 3


def test_behind_one_that_closes_the_connection_nothing_is_begun() -> None:
    order = Order()
    first, second, third, late = (produce(1, number) for number in range(4))
    for request in (first, second, third):
        order.begin(request)
    order.end(first)
    assert order.refuse(first) == [second, third]
    assert not order.ready
    assert len(order) == 0
    assert order.refuses(late)
    assert order.refuse(late) == []
    assert len(order.passed) == 4, "each that came has been passed on"
    assert order.held == [(PROCESSOR, 101)], "once, whatever comes behind"


def test_one_that_closes_before_its_turn_has_ended_takes_along_what_is_behind_it() -> None:
    order = Order()
    first, second, other = produce(1, 1), produce(1, 2), produce(2, 3)
    for request in (first, second, other):
        order.begin(request)
    assert order.refuse(first) == [second]
    assert not order.ready
    assert not order.refuses(other)


def test_the_next_connection_of_a_refused_channel_is_served() -> None:
    order = Order()
    refused = produce(1, 1)
    order.begin(refused)
    order.refuse(refused)
    following = produce(2, 2)._replace(channel=refused.channel)
    assert not order.refuses(following)
    assert order.begin(following)
    order.end(following)
    assert order.passed == [(PROCESSOR, 101)] * 3, "the turn holds nothing of that channel any more"
    assert not order.refuses(produce(2, 3)._replace(channel=refused.channel))


def test_what_waits_is_taken_out_when_a_log_worker_dies() -> None:
    order = Order()
    requests = [produce(1, 1), produce(1, 2), produce(2, 3), produce(2, 4)]
    for request in requests:
        order.begin(request)
    order.end(requests[0])
    assert order.take_waiting() == [requests[1], requests[3]]
    assert len(order) == 0
    order.end(requests[2])
    assert not order.ready
    assert len(order.passed) == 4, "the turn passes on again what comes now"
    assert order.begin(produce(1, 5))


def test_requests_of_a_dead_processor_are_forgotten() -> None:
    order = Order()
    gone = [produce(1, 1), produce(1, 2), produce(3, 3), produce(3, 4)]
    stays = [produce(2, 5, OTHER), produce(2, 6, OTHER)]
    for request in (*gone, *stays):
        order.begin(request)
    order.end(gone[2])
    order.refuse(gone[2])
    order.forget_processor(PROCESSOR)
    assert not order.refuses(gone[2])
    order.end(gone[0])
    assert not order.ready
    order.end(stays[0])
    assert list(order.ready) == [stays[1]]
