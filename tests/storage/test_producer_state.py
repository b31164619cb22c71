"""The table of producers under ids that a client has chosen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mpbroker.storage.producer_state import Producers, bound_producers

# The inverse of a well-known multiplier, modulo 2**64: with a fixed hash such ids all had one place.
FACTOR = 0x9E3779B97F4A7C15
INVERSE = pow(FACTOR, -1, 1 << 64)
COUNT = 4096


@pytest.fixture
def bound() -> Iterator[int]:
    most = 64
    bound_producers(most)
    yield most
    bound_producers(0)


def signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


@pytest.mark.parametrize("kind", ["collide in a fixed hash", "equal low bits", "sequence"])
def test_chosen_ids_do_not_collide(kind: str) -> None:
    ids = {
        "collide in a fixed hash": [signed((n << 44) * INVERSE % (1 << 64)) for n in range(1, COUNT + 1)],
        "equal low bits": [n << 32 for n in range(1, COUNT + 1)],
        "sequence": list(range(COUNT)),
    }[kind]
    producers = Producers()
    for number in ids:
        producers.update(number, 0, 0, 1, 0, 0)
    assert len(producers) == len(set(ids)) == COUNT
    # Chance makes it some dozens; a table whose keys collide is walked through.
    assert producers.longest_search() < COUNT // 4


def test_the_oldest_are_forgotten(bound: int) -> None:
    """An eighth at once; whoever has written lately stays, and nobody with an open transaction goes."""
    producers = Producers()
    producers.update(1_000_000, 0, 0, 1, 0, 0, True)
    for offset in range(1, bound):
        producers.update(offset, 0, 0, 1, offset, 0)
    producers.update(1, 0, 1, 1, bound, 0)
    assert len(producers) == bound
    producers.update(5000, 0, 0, 1, bound + 1, 0)
    forgotten = (bound - 1) // 8
    assert len(producers) == bound + 1 - forgotten
    known = {entry[0] for entry in producers.entries()}
    assert set(range(2, 2 + forgotten)).isdisjoint(known)
    assert {1_000_000, 1, 2 + forgotten, 5000} <= known
    # A forgotten producer begins anew with any sequence; one that is known goes on.
    assert producers.check(2, 0, 7, 1)[0] == 0
    assert producers.check(1, 0, 2, 1)[0] == 0
    assert producers.check(1, 0, 7, 1)[0] == 45


def test_any_number_of_ids_is_bounded(bound: int) -> None:
    producers = Producers()
    for offset in range(50 * bound):
        producers.update(offset, 0, 0, 1, offset, 0)
        assert len(producers) <= bound
    assert producers.check(50 * bound - 1, 0, 0, 1)[0] == -1


def test_open_transactions_go_beyond_the_bound(bound: int) -> None:
    producers = Producers()
    for offset in range(2 * bound):
        producers.update(offset, 0, 0, 1, offset, 0, True)
    assert len(producers) == 2 * bound
    assert producers.first_open() == 0


def test_who_has_just_ended_a_transaction_is_not_the_oldest(bound: int) -> None:
    """A marker with a new epoch (KIP-890) leaves no batch behind, but the epoch that later batches need."""
    producers = Producers()
    for offset in range(bound - 1):
        producers.update(offset, 0, 0, 1, offset, 0)
    producers.update(7000, 0, 0, 1, bound, 0, True)
    producers.ended(7000, 1, 0, 0)
    producers.update(8000, 0, 0, 1, bound + 2, 0)
    assert {7000, 8000} <= {entry[0] for entry in producers.entries()}
    # A late batch of the old epoch is refused, also after a restart, which knows no offset of the producer.
    loaded = Producers()
    loaded.load(producers.snapshot())
    for offset in range(bound + 3, 3 * bound):
        loaded.update(offset, 0, 0, 1, offset, 0)
    assert loaded.check(7000, 0, 1, 1)[0] == 47


def test_few_that_can_be_forgotten_are_kept(bound: int) -> None:
    """Two producers beside open transactions do not push each other out."""
    producers = Producers()
    for offset in range(bound):
        producers.update(offset, 0, 0, 1, offset, 0, True)
    for offset in (bound, bound + 1):
        producers.update(offset, 0, 0, 1, offset, 0)
    assert len(producers) == bound + 2


def test_a_table_of_another_process_has_another_key() -> None:
    """`carry` gives each producer its place anew."""
    producers, copy = Producers(), Producers()
    for number in range(100):
        producers.update(number, 0, 0, 1, number, 0)
    copy.carry(producers.carried())
    assert copy.entries() == producers.entries()
    assert copy.snapshot() == producers.snapshot()


def test_a_snapshot_with_too_many(bound: int) -> None:
    """A start does not bring back what was too much."""
    bound_producers(0)
    producers = Producers()
    for offset in range(4 * bound):
        producers.update(offset, 0, 0, 1, offset, 0)
    bound_producers(bound)
    loaded = Producers()
    loaded.load(producers.snapshot())
    assert len(loaded) <= bound
    assert {entry[0] for entry in loaded.entries()} <= set(range(3 * bound - bound // 4, 4 * bound))
