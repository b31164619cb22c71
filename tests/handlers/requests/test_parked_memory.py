"""What requests that wait are charged, and what the log says when there is no room."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.requests.parked_memory import WARNED_EVERY_MS, ParkedMemory

CONFIG = BrokerConfig(
    num_io_threads=2,
    max_parked_bytes=4_000,
    max_parked_bytes_per_principal=2_000,
    max_parked_bytes_per_connection=800,
)


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture(name="clock")
def _clock() -> Clock:
    return Clock()


@pytest.fixture(name="memory")
def _memory(clock: Callable[[], int]) -> ParkedMemory:
    return ParkedMemory(lambda: CONFIG, clock)


class Waiting(SimpleNamespace):
    """A request of a user; each is its own key."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def request_of(user: str) -> Any:
    return Waiting(session=SimpleNamespace(principal_name=user))


def test_a_handler_has_its_share_of_each_bound(memory: ParkedMemory) -> None:
    assert not memory.has_room(request_of("ann"), 801)
    first, second, third = request_of("ann"), request_of("bob"), request_of("eve")
    memory.charge(first, 700)
    assert not memory.has_room(request_of("ann"), 301)
    assert memory.has_room(request_of("ann"), 300)
    memory.charge(second, 700)
    memory.charge(third, 600)
    assert not memory.has_room(request_of("tom"), 1)
    memory.release(first)
    memory.release(first)
    assert memory.used_bytes == 1300
    assert memory.has_room(request_of("tom"), 700)


def test_one_refusal_a_minute_is_logged(
    memory: ParkedMemory, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "mpbroker")
    for _ in range(3):
        assert not memory.has_room(request_of("greedy"), 10_000)
        # What others may do in between says nothing about the one that may not.
        assert memory.has_room(request_of("modest"), 100)
    assert len(caplog.messages) == 1
    assert "max.parked.bytes.per.connection=800" in caplog.messages[0]
    clock.now_ms = WARNED_EVERY_MS
    assert not memory.has_room(request_of("greedy"), 10_000)
    assert len(caplog.messages) == 2
