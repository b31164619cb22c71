"""What is remembered of a node between its connections, without any."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from mpbroker.client.addresses import Address
from mpbroker.client.backoff import ExponentialBackoff
from mpbroker.client.errors import ConnectionLost
from mpbroker.client.metadata import Node
from mpbroker.client.node_state import NodeState
from tests.client.fakes import middle

LOST = ConnectionLost("lost")


@pytest.fixture
def state() -> NodeState:
    return NodeState(
        Node(1, "host", 9092), ExponentialBackoff(50, 200, middle), ExponentialBackoff(1_000, 3_000, middle)
    )


def two(host: str, port: int) -> list[Address]:
    return [Address(socket.AF_INET, (f"{host}{index}", port)) for index in range(2)]


def connected(state: NodeState, *, established: bool, ready: bool = False) -> None:
    made: Any = SimpleNamespace(established=established, versions=object() if ready else None)
    state.connection = made
    state.progressed()


def test_a_node_that_was_never_tried(state: NodeState) -> None:
    assert state.can_connect(0)
    assert (state.rest_ms(0), state.failure, state.is_connecting) == (0, None, False)
    assert not state.has_untried_address


def test_rests_and_set_up_times_grow_until_one_is_ready(state: NodeState) -> None:
    rests, deadlines = [], []
    for _ in range(4):
        state.next_address(two, 0)
        deadlines.append(state.setup_deadline_ms)
        connected(state, established=False)
        assert state.is_connecting
        assert not state.can_connect(1e9)
        state.failed(LOST, 0)
        rests.append(state.rest_ms(0))
    assert (rests, deadlines) == ([50, 100, 200, 200], [1_000, 2_000, 3_000, 3_000])
    assert state.failure is LOST
    connected(state, established=True, ready=True)
    assert state.failure is None
    state.failed(LOST, 0)
    assert state.rest_ms(0) == 50
    state.next_address(two, 0)
    assert state.setup_deadline_ms == 1_000


def test_a_connection_that_got_no_further_than_its_handshakes_keeps_the_rests_long(state: NodeState) -> None:
    for _ in range(2):
        state.next_address(two, 0)
        connected(state, established=True)
        state.failed(LOST, 0)
    assert state.rest_ms(0) == 100
    assert state.setup_deadline_ms == 1_000


def test_addresses_in_turn_and_anew_after_a_connection(state: NodeState) -> None:
    tried = []
    for _ in range(3):
        tried.append(state.next_address(two, 0).sockaddr[0])
        connected(state, established=False)
        state.failed(LOST, 0)
    assert tried == ["host0", "host1", "host0"]
    assert state.has_untried_address
    connected(state, established=True)
    state.failed(LOST, 0)
    assert not state.has_untried_address
    assert state.next_address(lambda *_place: two("moved", 1), 0).sockaddr[0] == "moved0"
