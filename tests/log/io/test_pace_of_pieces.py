"""Pieces of background work are as large as makes them hardly slower, on whatever disk."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from mpbroker.log.io.pace import ROUND, PieceSize

KIB, MIB = 1 << 10, 1 << 20
LEAST = 64 * KIB
ROUNDS = 20

Disk = Callable[[int], float]


def disk(begins_s: float, bytes_per_s: float) -> Disk:
    return lambda count: begins_s + count / bytes_per_s


def sizes(size: PieceSize, disk: Disk, rounds: int = ROUNDS) -> list[int]:
    """Return the sizes of the pieces of so many rounds."""
    given = []
    for _ in range(rounds * ROUND):
        given.append(size.bytes)
        size.took(size.bytes, disk(size.bytes))
    return given


@pytest.mark.parametrize(
    ("begins_s", "bytes_per_s", "usual"),
    [
        (60e-6, 1e9, {LEAST, 128 * KIB}),
        (1e-3, 250e6, {128 * KIB, 256 * KIB}),
        (8e-3, 150e6, {512 * KIB}),
        (30e-3, 1e9, {MIB}),
        (0.0, 5e9, {LEAST, 128 * KIB}),
    ],
    ids=["flash", "network", "turning", "far", "memory"],
)
def test_what_it_comes_to(begins_s: float, bytes_per_s: float, usual: set[int]) -> None:
    size = PieceSize(LEAST, MIB)
    last = sizes(size, disk(begins_s, bytes_per_s))[-5 * ROUND :]
    most = {each for each in last if last.count(each) > ROUND // 2}
    assert most <= usual | {LEAST}
    assert max(usual) in last


def test_it_begins_small() -> None:
    size = PieceSize(LEAST, MIB)
    assert sizes(size, disk(8e-3, 150e6), 1) == [LEAST] * ROUND


def test_another_disk_is_found_out() -> None:
    """Check that the size adapts if a cache in front of the disk is full, or the machine has moved."""
    size = PieceSize(LEAST, MIB)
    assert max(sizes(size, disk(8e-3, 150e6))) == 512 * KIB
    assert max(sizes(size, disk(60e-6, 1e9))[-4 * ROUND :]) <= 128 * KIB
    assert max(sizes(size, disk(8e-3, 150e6))) == 512 * KIB


def test_some_that_waited_behind_others_change_nothing() -> None:
    chance = random.Random(1)

    def busy(count: int) -> float:
        return disk(60e-6, 1e9)(count) * (30 if chance.random() < 0.2 else 1)

    assert set(sizes(PieceSize(LEAST, MIB), busy)) == {LEAST, 128 * KIB}


def test_what_says_nothing() -> None:
    """Check that reads from memory, at the end of a file, or of one larger batch do not count."""
    size = PieceSize(LEAST, MIB)
    for _ in range(3 * ROUND):
        size.took(LEAST, 0.0)
        size.took(LEAST - 1, 1e-6)
        size.took(LEAST + 1, 1e-6)
    assert size.bytes == LEAST
    assert sizes(size, disk(8e-3, 150e6), 1) == [LEAST] * ROUND


def test_a_size_that_nobody_needs_is_given_up() -> None:
    """Check that a size that no buffer reaches is given up, and tried again later."""
    size, turning = PieceSize(LEAST, MIB), disk(8e-3, 150e6)
    assert max(sizes(size, turning)) == 512 * KIB
    given = []
    for _ in range(8 * ROUND):
        given.append(size.bytes)
        held = min(size.bytes, 300 * KIB)
        size.took(held, turning(held))
    largest = [max(given[at : at + ROUND]) for at in range(0, len(given), ROUND)]
    assert largest == [512 * KIB, 256 * KIB] * 4, "it is tried again, and judged in between"


@pytest.mark.parametrize("most", [LEAST, 100 * KIB, 3 * LEAST])
def test_bounds(most: int) -> None:
    given = sizes(PieceSize(LEAST, most), disk(1.0, 1e12))
    assert (min(given), max(given)) == (LEAST, most)
