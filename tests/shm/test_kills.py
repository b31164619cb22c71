"""SIGKILL at random moments: nothing published is lost, nothing half-done is seen, a successor just goes on.

Each round forks a process, lets it run into the middle of its work, kills it, and looks at what it left.
"""

from __future__ import annotations

import os
import random
import signal
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shm._bench import ring_stream, table_storm, table_verify
from shm.arena import Arena
from shm.region import sparse
from shm.ring import Ring
from shm.table import SlotTable, slot_bytes
from shm.word import Words
from tests.shm.test_ring import begun_at

Fork = Callable[[Callable[[], None]], Any]
Effort = Callable[[int], int]
ROUNDS = 100
ENDLESS = 2**62


def kills(least: int, in_the_middle: list[int]) -> Iterator[int]:
    """Number the kills: at least so many, and more until one was in the middle of something."""
    for attempt in range(10 * max(least, ROUNDS)):
        if attempt >= least and in_the_middle:
            return
        yield attempt
    pytest.fail("every kill came at rest: the test tests nothing")


def numbers(taken: bytes) -> list[int]:
    return [words[0] for words in struct.iter_unpack("<Q56x", taken)]


def check_word(number: int, place: int) -> int:
    return (number ^ place << 56) * 0x9E3779B97F4A7C15 % 2**64


def test_a_killed_producer_leaves_whole_slots(fork: Fork, dice: random.Random, effort: Effort) -> None:
    """Each producer numbers from 0: what can be taken is 0..n, each slot whole; its successor follows."""
    memory = begun_at(2**64 - 5000, 64)
    consumer = Ring(memory, 64)
    in_the_middle: list[int] = []
    for attempt in kills(effort(ROUNDS), in_the_middle):
        batch, enough = dice.choice((1, 3, 16)), dice.randrange(400)
        child = fork(lambda batch=batch: ring_stream(Ring(memory, 64), ENDLESS, batch))  # type: ignore[misc]
        due = 0
        while due < enough:
            taken = numbers(consumer.take(dice.randrange(1, 40))[0])
            assert taken == list(range(due, due + len(taken))), f"round {attempt}"
            due += len(taken)
            if not taken:
                os.sched_yield()
        child.kill()
        left = consumer.untaken()
        if 0 < len(left) < 64:
            in_the_middle.append(attempt)
        for one in left:
            words = struct.unpack("<8Q", one)
            assert words == (due, *[check_word(due, place) for place in range(1, 8)]), f"round {attempt}"
            due += 1
        assert len(consumer.take()[0]) == 64 * len(left)
        assert consumer.waiting() == 0


def test_a_killed_consumer_leaves_taken_and_untaken_apart(
    fork: Fork, dice: random.Random, effort: Effort
) -> None:
    """A slot's number is its position: the successor begins with the first that was not taken."""
    start = 2**32 - 10_000
    memory, word = begun_at(start, 32), sparse(4096)
    producer, wrong, number = Ring(memory, 32), Words(word), start

    def consume(most: int) -> None:
        ring = Ring(memory, 32)
        at = ring.head
        while True:
            for found in numbers(ring.take(most)[0]):
                wrong.store(0, wrong.load(0) + (found != at))
                at += 1

    for attempt in range(effort(ROUNDS)):
        most, enough = dice.choice((1, 5, 32)), dice.randrange(300)
        child = fork(lambda most=most: consume(most))  # type: ignore[misc]
        until = number + enough
        while number < until:
            if producer.push(struct.pack("<Q56x", number)):
                number += 1
            else:
                os.sched_yield()  # on a busy machine it would spin until its time is over
        child.kill()
        assert numbers(b"".join(producer.untaken())) == list(range(producer.head, number)), f"round {attempt}"
        assert producer.tail == number
        assert wrong.load(0) == 0, f"round {attempt}"


def test_a_killed_table_writer_leaves_a_whole_payload(
    fork: Fork, dice: random.Random, effort: Effort
) -> None:
    memory = sparse(slot_bytes(1024))
    table = SlotTable(memory, 1, 1024)
    torn_copies: list[int] = []
    for attempt in kills(effort(ROUNDS), torn_copies):
        child = fork(lambda: table_storm(SlotTable(memory, 1, 1024), 0, ENDLESS) and None)
        until = table.version(0) + dice.randrange(200)
        while table.version(0) < until:
            assert table_verify(table, 0, 5)[0] == 0, f"round {attempt}"
        child.kill()
        version = table.version(0)
        assert table.read(0) == version.to_bytes(8, "little") * 128, f"round {attempt}"
        other = bytes(memory[64 + 1024 * ((version + 1) & 1) :][:1024])
        if len(set(struct.unpack("<128Q", other))) > 1:
            torn_copies.append(attempt)


def test_a_killed_arena_owner_leaves_memory_that_its_successor_can_use(
    fork: Fork, dice: random.Random, effort: Effort
) -> None:
    """Whatever headers the dead left, its descriptors are stale and the successor's blocks are good."""
    memory, word = sparse(8 << 20), sparse(4096)
    published = Words(word)

    def churn(seed: int) -> None:
        arena, rolls, held = Arena(memory, 4 << 20, 0), random.Random(seed), []
        while True:
            if len(held) < 20:
                size = rolls.choice((10, 5000, 70_000))
                block = arena.allocate(size)
                arena.view(block, size)[:] = b"\xff" * size
                published.store(1, arena.lend(block, 5))
                published.store(0, block)
                held.append((block, size, arena.generation(block)))
            else:
                block, size, generation = held.pop(rolls.randrange(20))
                assert arena.take_back(block, generation)
                arena.free(block, size)

    for attempt in range(effort(ROUNDS)):
        published.store(0, 0)
        child = fork(lambda: churn(dice.randrange(2**32)))
        for _ in range(dice.randrange(1, 3000)):
            published.load(0)
        while published.load(0) == 0:
            pass
        child.kill()
        newest = published.load(1)
        successor = Arena(memory, 4 << 20, 0)
        if attempt % 2:
            successor.reset()
        blocks = [successor.allocate(size) for size in (10, 5000, 70_000)]
        assert min(successor.generation(block) for block in blocks) > newest, f"round {attempt}"
        assert successor.lent_to(5) == []


def test_nothing_is_left_to_reap(fork: Fork) -> None:
    child = fork(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert child.wait() == -signal.SIGKILL
    try:
        assert os.waitpid(-1, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return
