"""The descriptor ring: a model for one process, wrapped positions, and a full ring between two processes."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shm._bench import ring_drain, ring_rounds, ring_stream
from shm.doorbell import BYTES as BELL_BYTES
from shm.doorbell import Doorbell
from shm.region import sparse
from shm.ring import BYTES_PER_SLOT, HEADER_BYTES, Ring, ring_bytes

POSITIONS = [0, 2**31 - 3, 2**32 - 3, 2**63 - 3, 2**64 - 3]
Fork = Callable[[Callable[[], None]], Any]


def slot(number: int) -> bytes:
    return struct.pack("<8Q", *[(number + i) & (2**64 - 1) for i in range(8)])


def begun_at(position: int, size: int) -> memoryview:
    """The memory of a ring that has been in use for long."""
    memory = sparse(ring_bytes(size))
    for at in (0, 64):
        struct.pack_into("<Q", memory, at, position)
    return memory


def slots(taken: bytes) -> list[bytes]:
    return [taken[at : at + BYTES_PER_SLOT] for at in range(0, len(taken), BYTES_PER_SLOT)]


@given(
    size=st.sampled_from([1, 2, 4, 16]),
    start=st.sampled_from(POSITIONS),
    steps=st.lists(
        st.tuples(st.sampled_from(["push", "batch", "take", "untaken"]), st.integers(0, 20)), max_size=60
    ),
)
def test_behaves_like_a_bounded_queue_at_every_position(
    size: int, start: int, steps: list[tuple[str, int]]
) -> None:
    memory = begun_at(start, size)
    producer, consumer = Ring(memory, size), Ring(memory, size)
    model: deque[bytes] = deque()
    number = 0
    for what, amount in steps:
        if what == "push":
            assert producer.push(slot(number)) == (len(model) < size)
            if len(model) < size:
                model.append(slot(number))
            number += 1
        elif what == "batch":
            batch = [slot(number + i) for i in range(amount)]
            fit = producer.push_batch(b"".join(batch))
            assert fit == min(amount, size - len(model))
            model.extend(batch[:fit])
            number += amount
        elif what == "take":
            taken, _ = consumer.take(amount)
            assert slots(taken) == [model.popleft() for _ in range(min(amount, len(model)))]
        else:
            assert consumer.untaken() == list(model)
        assert consumer.waiting() == len(model)
        assert producer.room() == size - len(model)
        assert (consumer.tail - consumer.head) % 2**64 == len(model)


@pytest.mark.parametrize("start", POSITIONS)
@pytest.mark.parametrize("batch", [1, 7])
def test_two_processes_wrap_without_loss_or_tear(fork: Fork, start: int, batch: int) -> None:
    memory = begun_at(start, 64)
    child = fork(lambda: ring_stream(Ring(memory, 64), 20_000, batch))
    ring = Ring(memory, 64)
    assert ring_drain(ring, 20_000) == 0
    assert child.wait() == 0
    assert ring.tail == ring.head == (start + 20_000) % 2**64


def test_full_ring_asks_for_space_and_neither_loses_nor_deadlocks(fork: Fork) -> None:
    """Both sides sleep on doorbells only; a sleep that runs into its bound is a lost wake-up and fails."""
    size, count = 4, 20_000
    memory, bells = sparse(ring_bytes(size)), sparse(2 * BELL_BYTES)
    fds = [Doorbell.new_fd(), Doorbell.new_fd()]
    arrived, room = Doorbell(bells[:BELL_BYTES], fds[0]), Doorbell(bells[BELL_BYTES:], fds[1])

    def produce() -> None:
        ring = Ring(memory, size)
        for number in range(count):
            while not ring.push(slot(number)):
                if not ring.want_space():
                    assert room.wait(20_000, lambda: ring.room() > 0), f"nobody told of space at {number}"
                ring.want_space(False)
            arrived.ring()

    child = fork(produce)
    ring, seen, asked = Ring(memory, size), 0, 0
    while seen < count:
        taken, wants = ring.take(1 + seen % 5)
        if wants:
            asked += 1
            room.ring()
        for one in slots(taken):
            assert one == slot(seen)
            seen += 1
        if not taken:
            assert arrived.wait(20_000, lambda: ring.waiting() > 0), f"not woken for {seen}"
    assert child.wait() == 0
    assert asked, "the ring was never full: the test tests nothing"


def test_native_rounds_carry_every_slot() -> None:
    ring = Ring(sparse(ring_bytes(64)), 64)
    assert ring_rounds(ring, 1000, 64) == 64_000
    assert (ring.tail, ring.head) == (64_000, 64_000)
    with pytest.raises(ValueError, match="does not fit"):
        ring_rounds(ring, 1, 65)


def test_a_slot_that_was_staged_by_a_batch_too_large_is_not_published() -> None:
    memory = sparse(ring_bytes(4))
    producer, consumer = Ring(memory, 4), Ring(memory, 4)
    assert producer.push_batch(b"".join(slot(i) for i in range(9))) == 4
    assert slots(consumer.take()[0]) == [slot(i) for i in range(4)]
    assert producer.push(slot(99))
    assert slots(consumer.take()[0]) == [slot(99)]


def test_successor_goes_on_where_the_shared_words_stand() -> None:
    memory = sparse(ring_bytes(4))
    first, consumer = Ring(memory, 4), Ring(memory, 4)
    first.push_batch(slot(0) + slot(1) + slot(2))
    consumer.take(2)
    assert Ring(memory, 4).push_batch(slot(3) * 9) == 3
    assert slots(consumer.take()[0]) == [slot(2), slot(3), slot(3), slot(3)]


def test_a_reset_empties_at_once() -> None:
    """Who takes from it may look between any two stores: one word moves, and that to where nothing waits."""
    memory = sparse(ring_bytes(4))
    producer, consumer = Ring(memory, 4), Ring(memory, 4)
    producer.push_batch(slot(0) + slot(1) + slot(2))
    consumer.take(2)
    before = bytes(memory)
    producer.reset()
    assert struct.unpack_from("<Q", memory, 64) == (3,)
    assert [at for at in range(0, len(memory), 8) if memory[at : at + 8] != before[at : at + 8]] == [64]
    assert (consumer.waiting(), producer.room(), consumer.tail) == (0, 4, 3)


def test_after_a_reset_the_other_side_rebinds() -> None:
    memory = sparse(ring_bytes(2))
    producer, consumer = Ring(memory, 2), Ring(memory, 2)
    producer.push_batch(slot(0) + slot(1))
    producer.want_space()
    consumer.reset()
    producer.rebind()
    assert (producer.room(), consumer.waiting()) == (2, 0)
    assert producer.push(slot(5))
    assert consumer.take() == (slot(5), False)


@pytest.mark.parametrize("size", [0, 3, 6, 2**58, 2**63])
def test_impossible_sizes_are_refused(size: int) -> None:
    """2**58 slots are 2**64 bytes, which is 0 to a careless sum."""
    with pytest.raises(ValueError, match=r"power of two|needs"):
        Ring(sparse(4096), size)


def test_unsuitable_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="needs"):
        Ring(sparse(4096)[: HEADER_BYTES - 64], 1)
    with pytest.raises(ValueError, match="cache line"):
        Ring(sparse(4096)[8:], 1)
    with pytest.raises(ValueError, match="64 bytes"):
        Ring(sparse(4096), 1).push(b"short")
    with pytest.raises(ValueError, match="multiples"):
        Ring(sparse(4096), 1).push_batch(b"short")
