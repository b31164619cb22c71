"""The processor's time for a connection, which the next request tells: a quota on request time counts it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpbroker.ipc.slots import Request, SlotFlag
from tests.support.polling import PATIENCE_S
from tests.support.processor_rig import Rig, answer_frame, answer_from_replaced, frame, receive
from tests.support.tls_processor_rig import METADATA, SASL, SecureRig, log_in

BIG_BYTES = 3 << 20
UNIT_NS = 1 << 14
NS_MAX = 0xFFFF * UNIT_NS


@pytest.fixture(name="secure")
def _secure(tmp_path: Path) -> Iterator[SecureRig]:
    made = SecureRig(tmp_path)
    yield made
    made.close()


def limit_time(rig: Rig, limited: bool = True) -> None:
    """Do what the coordinator does when the first quota is set, or the last one removed."""
    rig.memory.words("request_quotas").store(0, limited)
    rig.step(1)


def took_ns(do: Callable[[], object]) -> int:
    begun_ns = time.monotonic_ns()
    do()
    return time.monotonic_ns() - begun_ns


def least_ns(ask: Callable[[], Request], times: int = 20) -> int:
    """Return the least time told for requests that are alike: the system may stop the turn of any one."""
    return min(ask().network_ns for _ in range(times))


def small() -> bytes:
    return frame(METADATA, 8, 0)


def exchange(rig: Rig, client: socket.socket) -> Request:
    """Send a small request, answer it, and return it."""
    client.sendall(small())
    (request,) = rig.await_requests()
    rig.answer(request, answer_frame(0))
    rig.step()
    receive(client, 8)
    return request


def big() -> bytes:
    return frame(METADATA, 8, 0, bytes(BIG_BYTES))


def test_nobody_is_timed_without_a_quota_on_time(rig: Rig) -> None:
    client = rig.connect()
    request = rig.ask_in_pieces(client, big())
    assert request.network_ns == 0
    rig.answer(request, answer_frame(0, bytes(100_000)))
    rig.step()
    receive(client, 8 + 100_000)
    client.sendall(small())
    assert rig.await_requests()[0].network_ns == 0


def test_receiving_counts_for_the_request_and_sending_for_the_next(rig: Rig) -> None:
    limit_time(rig)
    client = rig.connect()
    requests: list[Request] = []
    spent_ns = took_ns(lambda: requests.append(rig.ask_in_pieces(client, big())))
    (request,) = requests
    assert 0 < request.network_ns <= spent_ns
    rig.answer(request, answer_frame(0, bytes(BIG_BYTES)))

    def take_answer() -> None:
        left = 8 + BIG_BYTES
        client.setblocking(False)
        while left:
            rig.step(1)
            try:
                left -= len(client.recv(left))
            except BlockingIOError:
                continue
        client.settimeout(PATIENCE_S)
        client.sendall(small())
        requests.extend(rig.await_requests())

    spent_ns = took_ns(take_answer)
    assert 0 < requests[1].network_ns <= spent_ns
    # What was told is told once.
    rig.answer(requests[1], answer_frame(0))
    rig.step()
    receive(client, 8)
    assert least_ns(lambda: exchange(rig, client)) < requests[1].network_ns


def test_what_is_less_than_a_unit_adds_up(rig: Rig) -> None:
    limit_time(rig)
    client = rig.connect()
    told: list[int] = []
    spent_ns = took_ns(lambda: told.extend(exchange(rig, client).network_ns for _ in range(400)))
    assert 0 < sum(told) <= spent_ns
    limit_time(rig, False)
    exchange(rig, client)
    assert exchange(rig, client).network_ns == 0


def test_of_each_connection_its_own_time(rig: Rig) -> None:
    limit_time(rig)
    busy, idle = rig.connect(), rig.connect()
    request = rig.ask_in_pieces(busy, big())
    assert request.network_ns > 0
    rig.answer(request, answer_frame(0))
    assert least_ns(lambda: exchange(rig, idle)) < request.network_ns


def test_a_request_that_is_asked_for_again_is_not_paid_for_twice(rig: Rig, segment: Path) -> None:
    """Check that its second cost is charged with the connection's next request."""
    limit_time(rig)
    client = rig.connect()
    request = rig.ask_in_pieces(client, big())
    assert request.network_ns > 0
    answer_from_replaced(rig, request, segment)
    (again,) = rig.requests_taken()
    assert (again.flags, again.network_ns) == (SlotFlag.AGAIN | SlotFlag.HEAVY, 0)
    rig.answer(again, answer_frame(0, bytes(100_000)))
    rig.step()
    receive(client, 8 + 100_000)
    client.sendall(small())
    assert rig.await_requests()[0].network_ns > 0


# ---- TLS and SASL


def test_a_handshake_counts_for_the_first_request(secure: SecureRig) -> None:
    limit_time(secure)
    clients, requests = [], []

    def meet_and_ask() -> None:
        clients.append(secure.handshake())
        requests.append(secure.ask(clients[0], small()))

    spent_ns = took_ns(meet_and_ask)
    (client,), (first,) = clients, requests

    def ask_again() -> Request:
        secure.answer(requests.pop(), answer_frame(0))
        secure.step()
        requests.append(secure.ask(client, small()))
        return requests[0]

    # It signs; nothing that a request does takes as long.
    assert least_ns(ask_again) < first.network_ns <= spent_ns


def test_a_login_counts_and_then_the_turn_does(secure: SecureRig) -> None:
    limit_time(secure)
    client = secure.meet(SASL)
    log_in(secure, client)
    request = secure.ask(client, small())
    assert request.network_ns > 0


def test_more_than_a_descriptor_holds_is_told_later(secure: SecureRig) -> None:
    limit_time(secure)
    client = secure.meet(SASL)
    log_in(secure, client)
    channel, connection = secure.by_client[client]
    secure.secure.channels.native.spent(channel, connection, NS_MAX + 500_000_000)
    secure.secure.channels.native.spent(channel, connection + 1, NS_MAX)
    told: list[int] = []
    for _ in range(3):
        request = secure.ask(client, small())
        told.append(request.network_ns)
        secure.answer(request, answer_frame(0))
        secure.step()
    assert told[0] == NS_MAX
    assert 500_000_000 - UNIT_NS <= told[1] < 1_000_000_000
    assert told[2] < 100_000_000
