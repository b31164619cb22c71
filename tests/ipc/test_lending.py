"""Blocks that a process lends: each is given back once, whoever says so and however late."""

import pytest

from mpbroker.ipc.lending import Lender
from mpbroker.ipc.topology import CLEANER, COORDINATOR, log_worker
from shm.arena import Arena, ArenaFull
from shm.region import sparse

MIB = 1 << 20
BORROWER = log_worker(0)


@pytest.fixture
def arena() -> Arena:
    return Arena(sparse(4 * MIB), MIB, 256 << 10)


@pytest.fixture
def lender(arena: Arena) -> Lender:
    return Lender(arena, COORDINATOR)


def test_a_block_has_the_bytes_until_it_is_returned(arena: Arena, lender: Lender) -> None:
    block, generation = lender.lend(b"hello", BORROWER)
    assert arena.check(block, generation)
    assert bytes(lender.view(block)) == b"hello"
    lender.end(block, generation)
    assert lender.in_use_bytes == 0


def test_a_lease_ends_once(lender: Lender) -> None:
    block, generation = lender.lend(b"first", BORROWER)
    lender.end(block, generation)
    lender.end(block, generation)
    again, _ = lender.lend(b"second", BORROWER)
    assert again == block
    lender.end(block, generation)
    assert bytes(lender.view(block)) == b"second"


def test_what_somebody_else_of_the_process_has_lent_is_not_ours_to_free(arena: Arena, lender: Lender) -> None:
    block = arena.allocate(5)
    generation = arena.lend(block, BORROWER)
    lender.end(block, generation)
    assert arena.lent_to(BORROWER) == [block]


def test_behind_a_fence_only_the_dead_give_back(arena: Arena, lender: Lender) -> None:
    dead, alive = lender.lend(b"dead", BORROWER), lender.lend(b"alive", CLEANER)
    lender.reclaim(BORROWER)
    assert arena.lent_to(BORROWER) == []
    assert bytes(lender.view(alive[0])) == b"alive"
    # It had sent this before it died.
    lender.end(*dead)
    lender.end(*alive)
    assert lender.in_use_bytes == 0


def test_a_full_arena_lends_nothing_and_keeps_nothing(lender: Lender) -> None:
    block, generation = lender.lend(bytes(MIB), BORROWER)
    with pytest.raises(ArenaFull):
        lender.lend(b"more", BORROWER)
    lender.end(block, generation)
    assert lender.in_use_bytes == 0
    assert lender.lend(b"more", BORROWER)
