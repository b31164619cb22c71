"""Nobody sleeps through what was meant for it: doorbells, waiting marks, requests for space, two processes.

The lockstep tests race the two halves of each protocol natively, a few cycles apart. That they can fail was
tried with changed headers on two x86-64 cores. Without any full fence, of three runs (of an earlier pacing)
the marks and the requests for space failed in all (35 to 453 misses in 100 000 rounds), the doorbell in two
(4 and 7). Without the fence
of one side only, each fails in some runs and not in others, the less often the busier the machine is: both
sides must really run at once. A green run on a busy machine is therefore no proof;
The long form has 20 times the rounds.
A missing second look is rarely met by chance (no burst of 10 000 was lost), so it has tests of its own:
`test_what_came_before_arming_is_found` and `test_wait_disarms_whatever_happens`.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shm._bench import Lockstep
from shm.doorbell import BYTES as BELL_BYTES
from shm.doorbell import Doorbell
from shm.marks import MAX_WAITERS, ROW_BYTES, WaitingMarks
from shm.region import sparse
from shm.ring import Ring, ring_bytes
from shm.table import SlotTable, slot_bytes
from shm.word import Words, fence
from tests.support.polling import is_readable

Fork = Callable[[Callable[[], None]], Any]
Effort = Callable[[int], int]
ROUNDS = 100_000


@pytest.fixture
def bell() -> Iterator[Doorbell]:
    fd = Doorbell.new_fd()
    yield Doorbell(sparse(BELL_BYTES), fd)
    os.close(fd)


def race(fork: Fork, misses: Callable[[Lockstep], int]) -> None:
    """Both sides of one protocol, in two processes, at the same time."""
    pace = sparse(256)

    def other_side() -> None:
        assert misses(Lockstep(pace, 1)) == 0

    child = fork(other_side)
    assert misses(Lockstep(pace, 0)) == 0
    assert child.wait() == 0


def test_lockstep_doorbell_never_misses(fork: Fork, bell: Doorbell, effort: Effort) -> None:
    memory = sparse(ring_bytes(8))
    race(fork, lambda lockstep: lockstep.bell_misses(bell, Ring(memory, 8), effort(ROUNDS // 2)))


def test_lockstep_marks_never_miss(fork: Fork, effort: Effort) -> None:
    rows, memory = sparse(ROW_BYTES), sparse(slot_bytes(64))
    marks, table = WaitingMarks(rows, 1), SlotTable(memory, 1, 64)
    race(fork, lambda lockstep: lockstep.mark_misses(marks, table, effort(ROUNDS)))


def test_lockstep_request_for_space_is_never_missed(fork: Fork, effort: Effort) -> None:
    memory = sparse(ring_bytes(4))
    race(fork, lambda lockstep: lockstep.space_misses(Ring(memory, 4), effort(ROUNDS)))


def test_every_burst_wakes_the_consumer(
    fork: Fork, bell: Doorbell, dice: random.Random, effort: Effort
) -> None:
    """The producer waits until a burst is taken: no later ring can make up for a lost one."""
    bursts = [(dice.randrange(1, 6), dice.choice((0, 1, 5, 20, 60))) for _ in range(effort(10_000))]
    memory = sparse(ring_bytes(8))

    def produce() -> None:
        ring = Ring(memory, 8)
        for burst, pause in bursts:
            while ring.room() < 8:
                pass
            for _ in range(pause):
                pass
            ring.push_batch(bytes(64 * burst))
            bell.ring()

    child = fork(produce)
    ring, left = Ring(memory, 8), sum(burst for burst, _ in bursts)
    while left:
        taken, _ = ring.take()
        left -= len(taken) // 64
        if not taken:
            assert bell.wait(10_000, lambda: ring.waiting() > 0), (
                f"slept through a burst, {left} slots to come"
            )
    assert child.wait() == 0


def test_bounded_sleep_finds_what_a_killed_producer_published(fork: Fork, bell: Doorbell) -> None:
    memory, word = sparse(ring_bytes(8)), sparse(4096)
    looked = Words(word)

    def look() -> bool:
        found = Ring(memory, 8).waiting() > 0
        looked.store(0, 1)
        return found

    def die_before_ringing() -> None:
        while looked.load(0) == 0:
            pass
        Ring(memory, 8).push(b"x" * 64)
        os.kill(os.getpid(), signal.SIGKILL)

    child = fork(die_before_ringing)
    assert not bell.wait(300, look), "nobody rang"
    assert child.wait() == -signal.SIGKILL
    assert Ring(memory, 8).take() == (b"x" * 64, False)


def test_nobody_pays_for_waking_who_is_awake(bell: Doorbell) -> None:
    bell.ring()
    assert not is_readable(bell.fd)
    bell.arm()
    bell.ring()
    bell.ring()
    assert is_readable(bell.fd)
    bell.drain()
    assert not is_readable(bell.fd)
    bell.disarm()
    bell.ring()
    assert not is_readable(bell.fd)


def test_what_came_before_arming_is_found(bell: Doorbell) -> None:
    """Rung while the consumer was awake: nothing will wake it, only the second look finds it."""
    ring = Ring(sparse(ring_bytes(8)), 8)
    ring.push(bytes(64))
    bell.ring()
    assert bell.wait(0, lambda: ring.waiting() > 0)


def test_a_ring_for_what_the_look_has_found_does_not_end_the_next_sleep(bell: Doorbell) -> None:
    def look() -> bool:
        bell.ring()
        return True

    assert bell.wait(0, look)
    assert not is_readable(bell.fd)


def test_wait_disarms_whatever_happens() -> None:
    memory, fd = sparse(BELL_BYTES), Doorbell.new_fd()
    bell, armed = Doorbell(memory, fd), Words(memory)

    def explode() -> bool:
        assert armed.load(0) == 1
        raise RuntimeError("the look failed")

    try:
        with pytest.raises(RuntimeError, match="the look failed"):
            bell.wait(10, explode)
        assert armed.load(0) == 0
        assert bell.wait(10, lambda: True)
        assert armed.load(0) == 0
        assert not bell.wait(0, lambda: False)
        assert armed.load(0) == 0
    finally:
        os.close(fd)


def test_marks_are_a_bit_per_waiter(dice: random.Random) -> None:
    marks = WaitingMarks(sparse(ROW_BYTES * 40), 40)
    model: set[tuple[int, int]] = set()
    for _ in range(3000):
        at = dice.randrange(40), dice.randrange(MAX_WAITERS)
        if dice.random() < 0.5:
            marks.mark(*at)
            model.add(at)
        else:
            marks.clear(*at)
            model.discard(at)
        assert marks.waiting(at[0]) == sum(1 << waiter for slot, waiter in model if slot == at[0])
    marks.clear_waiter(7)
    for slot in range(40):
        assert marks.waiting(slot) == sum(1 << waiter for s, waiter in model if s == slot and waiter != 7)


def test_marks_of_several_processes_do_not_disturb_each_other(fork: Fork) -> None:
    """Neighbouring bytes of one word: a store that rewrote the whole word would undo the neighbour's."""
    rows = sparse(ROW_BYTES)

    def blink(waiter: int) -> None:
        marks = WaitingMarks(rows, 1)
        for _ in range(30_000):
            marks.mark(0, waiter)
            assert marks.waiting(0) >> waiter & 1
            marks.clear(0, waiter)
            assert not marks.waiting(0) >> waiter & 1

    children = [fork(lambda waiter=waiter: blink(waiter)) for waiter in (3, 4)]  # type: ignore[misc]
    assert [child.wait() for child in children] == [0, 0]


def test_words_keep_all_64_bits_and_their_bounds() -> None:
    words = Words(sparse(4096)[:32])
    assert words.count == 4
    words.store(3, 2**64 - 1)
    fence()
    assert [words.load(i) for i in range(4)] == [0, 0, 0, 2**64 - 1]
    for index in (-1, 4):
        with pytest.raises(IndexError):
            words.load(index)
        with pytest.raises(IndexError):
            words.store(index, 1)
    assert words.load_some(2, 2) == (0, 2**64 - 1)
    for first, count in ((-1, 2), (3, 2), (0, -1)):
        with pytest.raises(IndexError):
            words.load_some(first, count)
    with pytest.raises(OverflowError):
        words.store(0, 2**64)


def test_two_processes_never_see_half_a_word(fork: Fork) -> None:
    memory = sparse(4096)
    values = (0, 2**64 - 1, 0x00000000FFFFFFFF, 0xFFFFFFFF00000000)

    def write() -> None:
        words = Words(memory)
        for i in range(200_000):
            words.store(0, values[i & 3])
        words.store(1, 1)

    child, words, seen = fork(write), Words(memory), set()
    while not words.load(1):
        seen.add(words.load(0))
    assert seen <= set(values)
    assert child.wait() == 0


def test_unsuitable_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="cache line"):
        Doorbell(sparse(4096)[8:], 0)
    with pytest.raises(ValueError, match="needs"):
        Doorbell(sparse(4096)[:32], 0)
    with pytest.raises(ValueError, match="fit"):
        WaitingMarks(sparse(4096), 65)
    with pytest.raises(ValueError, match="fit"):
        WaitingMarks(sparse(4096), 2**58)
    with pytest.raises(IndexError):
        WaitingMarks(sparse(4096), 64).mark(64, 0)
    with pytest.raises(IndexError):
        WaitingMarks(sparse(4096), 64).mark(0, MAX_WAITERS)
    with pytest.raises(ValueError, match="aligned"):
        Words(sparse(4096)[4:])
