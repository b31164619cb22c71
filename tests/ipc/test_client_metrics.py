"""Queues of pushed metrics: one writer, one reader, nothing torn, nobody blocked."""

from __future__ import annotations

import mmap
import os
import random

import pytest
from msgspec import structs

from mpbroker.ipc import client_metrics
from mpbroker.ipc.client_metrics import BYTES, DATA_BYTES, Push, PushQueue

PUSH = Push(bytes(16), "c", "java", "4.3.0", "127.0.0.1", "User:a", 60_000, False, 0, b"metrics")
OVERHEAD = 64


@pytest.fixture(name="block")
def _block() -> memoryview:
    return memoryview(mmap.mmap(-1, BYTES))


def of_size(size: int) -> Push:
    return structs.replace(PUSH, metrics=os.urandom(size))


def test_pushes_come_out_in_their_order_round_the_circle(block: memoryview) -> None:
    handler, exporter = PushQueue(block), PushQueue(block)
    sizes = random.Random(714)
    for _ in range(40):
        put = [of_size(sizes.randrange(DATA_BYTES // 4)) for _ in range(3)]
        assert [handler.put(push) for push in put] == [True] * 3
        assert exporter
        assert [exporter.take() for _ in put] == put
        assert not exporter
        assert exporter.take() is None
    assert exporter.dropped == 0


def test_a_full_queue_drops_and_counts(block: memoryview) -> None:
    handler, exporter = PushQueue(block), PushQueue(block)
    large = of_size(DATA_BYTES // 2 - 2 * OVERHEAD - len(PUSH.client_id))
    assert [handler.put(large) for _ in range(4)] == [True, True, False, False]
    assert exporter.dropped == 2
    assert exporter.take() == large
    assert handler.put(large)
    assert not handler.put(of_size(DATA_BYTES))
    assert (exporter.take(), exporter.take(), exporter.take()) == (large, large, None)
    assert exporter.dropped == 3


def test_what_a_killed_handler_was_writing_is_not_there(
    block: memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = PushQueue(block)
    handler.put(PUSH)
    words = handler._words

    class Killed(BaseException):
        pass

    class Dying:
        load = words.load

        def store(self, _index: int, _value: int) -> None:
            raise Killed

    monkeypatch.setattr(handler, "_words", Dying())
    with pytest.raises(Killed):
        handler.put(of_size(1000))
    successor, exporter = PushQueue(block), PushQueue(block)
    later = of_size(10)
    successor.put(later)
    assert (exporter.take(), exporter.take(), exporter.take()) == (PUSH, later, None)


def test_an_exporter_that_died_of_a_push_does_not_get_it_again(
    block: memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    PushQueue(block).put(PUSH)
    later = of_size(10)
    PushQueue(block).put(later)

    class Deadly:
        def decode(self, _data: bytes) -> Push:
            raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(client_metrics, "_decoder", Deadly())
        with pytest.raises(MemoryError):
            PushQueue(block).take()
    assert PushQueue(block).take() == later
