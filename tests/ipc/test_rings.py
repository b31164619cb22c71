"""Rings as Python uses them: nothing blocks, nothing is lost or turned around, whoever dies."""

from __future__ import annotations

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.process import ProcessContext
from mpbroker.ipc.rings import Outbox, RingPair
from mpbroker.ipc.topology import CLEANER, LOG, SharedMemory
from shm.region import sparse
from shm.ring import Ring, ring_bytes

SLOTS = 4


def slot(number: int) -> bytes:
    return number.to_bytes(64, "little")


class Rung:
    def __init__(self) -> None:
        self.ring = Ring(sparse(ring_bytes(SLOTS)), SLOTS)
        self.times = 0
        self.unsent: set[Outbox] = set()
        self.outbox = Outbox(self.ring, self._bell, self.unsent)

    def _bell(self) -> None:
        self.times += 1

    def taken(self, most: int = 1024) -> tuple[list[int], bool]:
        slots, wants = self.ring.take(most)
        return [int.from_bytes(slots[at : at + 64], "little") for at in range(0, len(slots), 64)], wants


def test_what_a_turn_pushes_is_published_with_one_ring() -> None:
    rung = Rung()
    for number in range(3):
        rung.outbox.push(slot(number))
    assert rung.taken() == ([], False)
    assert rung.outbox.flush()
    assert (rung.taken(), rung.times) == (([0, 1, 2], False), 1)
    assert rung.outbox.flush()
    assert rung.times == 1
    assert rung.unsent == set()


def test_what_does_not_fit_waits_in_its_order_and_asks_for_room() -> None:
    rung = Rung()
    for number in range(SLOTS + 3):
        rung.outbox.push(slot(number))
    assert not rung.outbox.flush()
    assert (len(rung.outbox), rung.outbox.can_publish, rung.outbox.times_full) == (3, False, 1)
    assert rung.taken(2) == ([0, 1], True)
    assert rung.outbox.can_publish
    assert not rung.outbox.flush()
    assert rung.taken() == ([2, 3, 4, 5], True)
    assert rung.outbox.flush()
    assert rung.taken() == ([6], False)
    assert (rung.outbox.times_full, rung.unsent) == (1, set())


def test_what_is_pushed_quietly_is_published_without_a_ring() -> None:
    rung = Rung()
    rung.outbox.push_quietly(slot(0))
    assert rung.outbox.flush()
    assert (rung.taken(), rung.times, rung.unsent) == (([0], False), 0, set())
    rung.outbox.push(slot(1))
    rung.outbox.push_quietly(slot(2))
    assert rung.outbox.flush()
    assert (rung.taken(), rung.times) == (([1, 2], False), 1)
    rung.outbox.push_quietly(slot(3))
    assert rung.outbox.flush()
    assert rung.times == 1


def test_a_ring_that_is_full_of_what_was_pushed_quietly_wakes_its_consumer() -> None:
    rung = Rung()
    for number in range(SLOTS):
        rung.outbox.push_quietly(slot(number))
    assert rung.outbox.flush()
    assert rung.times == 0
    rung.outbox.push_quietly(slot(SLOTS))
    assert not rung.outbox.flush()
    assert rung.times == 1
    assert rung.taken() == ([0, 1, 2, 3], True)
    assert rung.outbox.flush()
    assert (rung.taken(), rung.unsent) == (([SLOTS], False), set())


def test_what_is_urgent_and_finds_the_ring_full_rings_once_it_is_published() -> None:
    rung = Rung()
    for number in range(SLOTS):
        rung.outbox.push_quietly(slot(number))
    rung.outbox.flush()
    rung.outbox.push(slot(SLOTS))
    assert not rung.outbox.flush()
    rung.taken()
    before = rung.times
    assert rung.outbox.flush()
    assert rung.times == before + 1


def test_what_waits_for_a_dead_consumer_is_dropped() -> None:
    rung = Rung()
    for number in range(SLOTS + 1):
        rung.outbox.push(slot(number))
    rung.outbox.flush()
    rung.ring.reset()
    rung.outbox.rebind()
    assert (len(rung.outbox), rung.unsent) == (0, set())
    rung.outbox.push(slot(9))
    assert rung.outbox.flush()
    assert rung.taken() == ([9], False)


def test_two_processes_have_each_other_s_rings(memory: SharedMemory) -> None:
    here = RingPair(ProcessContext(CLEANER, memory, BrokerConfig()), LOG)
    there = RingPair(ProcessContext(LOG, memory, BrokerConfig()), CLEANER)
    here.push(slot(1))
    assert (here.has_unsent, there.waiting()) == (True, False)
    here.flush()
    assert (here.has_unsent, there.waiting(), there.take()) == (False, True, [slot(1)])
    there.push(slot(2))
    there.flush()
    assert here.waiting()
    here.drop()
    assert not here.waiting()
    here.push(slot(3))
    here.rebind()
    here.flush()
    assert there.take() == []
