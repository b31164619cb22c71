"""The arena: blocks never overlap, leases and generations hold, the books are right, big blocks give back."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shm.arena import HEADER_BYTES, Arena, ArenaFull
from shm.region import sparse
from shm.ring import Ring, ring_bytes
from tests.support.forms import rounds

Fork = Callable[[Callable[[], None]], Any]
MIB = 1 << 20
SIZES = st.one_of(
    st.integers(0, 5000),
    st.integers(5000, 200_000),
    st.sampled_from([1984, 1985, 4032, 4033, 65_472, 65_473]),
)


def resident_bytes(memory: memoryview) -> int:
    """Pages of the mapping that exist, by mincore."""
    libc = ctypes.CDLL(None, use_errno=True)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    pages = (len(memory) + mmap.PAGESIZE - 1) // mmap.PAGESIZE
    vector = (ctypes.c_ubyte * pages)()
    assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(len(memory)), vector) == 0, os.strerror(
        ctypes.get_errno()
    )
    return sum(page & 1 for page in vector) * mmap.PAGESIZE


class ArenaMachine(RuleBasedStateMachine):
    """Against a dictionary: every block is filled with its own number and must still be when it is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(sparse(4 * MIB), MIB, 256 << 10)
        self.blocks: dict[int, tuple[int, int, int | None, int]] = {}
        self.number = 0
        self.stale: list[tuple[int, int]] = []

    @rule(size=SIZES)
    def allocate(self, size: int) -> None:
        used = sum(s for s, _, _, _ in self.blocks.values())
        if used >= MIB:
            with pytest.raises(ArenaFull):
                self.arena.allocate(size)
            return
        try:
            block = self.arena.allocate(size)
        except ArenaFull:
            assert self.blocks, "an empty arena must grant one block"
            return
        self.number = (self.number + 1) % 255
        assert block not in self.blocks
        assert block % HEADER_BYTES == 0
        assert self.arena.capacity(block) >= size
        self.arena.view(block, size)[:] = bytes([self.number + 1]) * size
        self.blocks[block] = (size, self.number + 1, None, self.arena.generation(block))

    @precondition(lambda self: self.blocks)
    @rule(data=st.data(), borrower=st.integers(0, 3))
    def lend(self, data: st.DataObject, borrower: int) -> None:
        block = data.draw(st.sampled_from(sorted(self.blocks)))
        size, number, _, generation = self.blocks[block]
        assert self.arena.lend(block, borrower) == generation
        self.blocks[block] = (size, number, borrower, generation)

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def give_back_and_free(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.blocks)))
        size, number, borrower, generation = self.blocks[block]
        if borrower is not None:
            with pytest.raises(ValueError, match="is lent to"):
                self.arena.free(block, size)
            assert not self.arena.take_back(block, generation - 1)
            assert self.arena.take_back(block, generation)
        assert not self.arena.take_back(block, generation)
        assert bytes(self.arena.view(block, size)) == bytes([number]) * size
        self.arena.free(block, size)
        del self.blocks[block]
        self.stale.append((block, generation))
        with pytest.raises(ValueError, match="is free"):
            self.arena.free(block, size)

    @rule(borrower=st.integers(0, 3))
    def fence(self, borrower: int) -> None:
        lent = [block for block, (_, _, to, _) in self.blocks.items() if to == borrower]
        assert sorted(self.arena.lent_to(borrower)) == sorted(lent)
        for block in lent:
            size, number, _, generation = self.blocks[block]
            assert self.arena.take_back(block, self.arena.generation(block))
            self.blocks[block] = (size, number, None, generation)

    @invariant()
    def books_are_right(self) -> None:
        assert self.arena.in_use_bytes == sum(size for size, _, _, _ in self.blocks.values())
        ends = sorted((block - HEADER_BYTES, block + self.arena.capacity(block)) for block in self.blocks)
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))
        for block, (_, _, _, generation) in self.blocks.items():
            assert self.arena.check(block, generation)
        assert self.arena.warm_bytes <= 256 << 10

    @invariant()
    def ended_leases_are_stale(self) -> None:
        for block, generation in self.stale:
            assert not self.arena.take_back(block, generation)


TestArenaMachine = ArenaMachine.TestCase
TestArenaMachine.settings = settings(
    max_examples=rounds(60), stateful_step_count=40, deadline=None, derandomize=True
)


def test_a_buffer_is_never_reused_while_lent(fork: Fork, dice: random.Random) -> None:
    """What another process reads in each lent block never changes under it, while the owner churns."""
    memory, there, back = sparse(64 * MIB), sparse(ring_bytes(16)), sparse(ring_bytes(16))

    def borrow() -> None:
        arena, inbox, outbox, left = Arena(memory, MIB), Ring(there, 16), Ring(back, 16), 3000
        while left:
            taken, _ = inbox.take(1)
            if not taken:
                continue
            block, generation, size, number = struct.unpack_from("<4Q", taken)
            for _ in range(2):
                assert arena.check(block, generation)
                assert bytes(arena.view(block, size)) == number.to_bytes(8, "little") * (size // 8)
            assert outbox.push(taken)
            left -= 1

    child = fork(borrow)
    arena, inbox, outbox = Arena(memory, 32 * MIB, 128 << 10), Ring(back, 16), Ring(there, 16)
    given = returned = under_way = 0
    while returned < 3000:
        if given < 3000 and under_way < 16:
            size = dice.choice((8, 1000, 5000, 70_000)) // 8 * 8
            block = arena.allocate(size)
            arena.view(block, size)[:] = given.to_bytes(8, "little") * (size // 8)
            generation = arena.lend(block, 1)
            assert outbox.push(struct.pack("<4Q32x", block, generation, size, given))
            given += 1
            under_way += 1
        for block, generation, size, _ in struct.iter_unpack("<4Q32x", inbox.take()[0]):
            assert arena.take_back(block, generation)
            arena.free(block, size)
            returned += 1
            under_way -= 1
        assert child.code is None
    assert child.wait() == 0
    assert arena.in_use_bytes == 0
    assert arena.lent_to(1) == []


@pytest.mark.parametrize("before", [[], [100], [100, 100, 100], [5000], [100, 5000, 100]])
@pytest.mark.parametrize("size", [65_000, 100_000, 900_000])
def test_large_blocks_give_their_pages_back(before: list[int], size: int) -> None:
    """Also those that were cut after small ones, whose place would not be a page bound."""
    memory = sparse(16 * MIB)
    arena = Arena(memory, 8 * MIB, 0)
    small = [(arena.allocate(s), s) for s in before]
    block = arena.allocate(size)
    after = arena.allocate(100)
    for one, length in (*small, (after, 100)):
        arena.view(one, length)[:] = b"s" * length
    arena.view(block, size)[:] = b"L" * size
    assert resident_bytes(memory) >= size
    generation = arena.generation(block)
    arena.free(block, size)
    assert resident_bytes(memory) <= 4096 * (len(before) + 3) * 2
    assert arena.generation(block) > generation, "the header's page stays"
    for one, length in (*small, (after, 100)):
        assert bytes(arena.view(one, length)) == b"s" * length, "a neighbour lost its bytes"
    assert arena.allocate(size) == block
    assert bytes(arena.view(block, size))[4096:] == bytes(size - 4096), "given back"


def test_the_warm_reserve_is_kept_and_bounded() -> None:
    memory = sparse(64 * MIB)
    arena = Arena(memory, 32 * MIB, 2 * MIB)
    size = MIB - HEADER_BYTES
    for _ in range(5):
        blocks = [arena.allocate(size) for _ in range(8)]
        for block in blocks:
            arena.view(block, size)[:] = b"x" * size
        for block in blocks:
            arena.free(block, size)
        assert arena.warm_bytes == 2 * MIB
        assert 2 * MIB <= resident_bytes(memory) <= 2 * MIB + 8 * 4096
        # Cold blocks come last, whatever the order of releases was: a warm one is worth a copy.
        block = arena.allocate(size)
        assert bytes(arena.view(block, 16384)[8192:]) == b"x" * 8192
        arena.free(block, size)


def test_an_extent_full_of_small_blocks_still_takes_a_large_one() -> None:
    arena = Arena(sparse(MIB), MIB)
    small = [arena.allocate(1900) for _ in range(MIB // 2048)]
    stale = [(block, arena.generation(block)) for block in small]
    with pytest.raises(ArenaFull, match="0 of the extent's"):
        arena.allocate(1900)
    for block in small[:-1]:
        arena.free(block, 1900)
    with pytest.raises(ArenaFull):
        arena.allocate(900_000)
    arena.free(small[-1], 1900)
    block = arena.allocate(900_000)
    assert arena.capacity(block) >= 900_000
    assert not any(arena.check(*lease) for lease in stale)
    arena.free(block, 900_000)
    # The other way round a large free block serves: it need not wait for all to be free.
    assert arena.capacity(arena.allocate(10)) >= 10


def test_free_neighbours_become_a_large_block_while_others_are_used() -> None:
    arena = Arena(sparse(4 * MIB), 8 * MIB)
    small = [arena.allocate(1900) for _ in range(4 * MIB // 2048)]
    kept = {small[700]: arena.generation(small[700]), small[1499]: arena.generation(small[1499])}
    for block in kept:
        arena.view(block, 1900)[:] = b"k" * 1900
    for block in small:
        if block not in kept:
            arena.free(block, 1900)
    with pytest.raises(ArenaFull):
        arena.allocate(2 * MIB)
    # Between the two, 1.6 MB are free.
    large = arena.allocate(MIB - HEADER_BYTES)
    arena.view(large, MIB - HEADER_BYTES)[:] = b"l" * (MIB - HEADER_BYTES)
    # What was left of them is there as well, up to the last byte.
    rest: list[int] = []
    for _ in range(len(small) - len(kept) - MIB // 2048):
        rest.append(arena.allocate(1984))
        arena.view(rest[-1], 1984)[:] = b"r" * 1984
    with pytest.raises(ArenaFull):
        arena.allocate(1984)
    for block, generation in kept.items():
        assert arena.check(block, generation)
        assert bytes(arena.view(block, 1900)) == b"k" * 1900
    assert bytes(arena.view(large, MIB - HEADER_BYTES)) == b"l" * (MIB - HEADER_BYTES)


def test_a_large_free_block_is_split() -> None:
    arena = Arena(sparse(MIB), 2 * MIB)
    large = arena.allocate(MIB - HEADER_BYTES)
    arena.free(large, MIB - HEADER_BYTES)
    kept = arena.allocate(5000)
    blocks = [arena.allocate(1984) for _ in range((MIB - 8192) // 2048)]
    assert len({kept, *blocks}) == len(blocks) + 1
    with pytest.raises(ArenaFull):
        arena.allocate(1)
    for block in blocks:
        arena.free(block, 1984)
    # Nothing was freed since: it is not looked for again, what fits is still found.
    for _ in range(2):
        with pytest.raises(ArenaFull):
            arena.allocate(MIB - HEADER_BYTES)
    assert arena.capacity(arena.allocate(500_000)) >= 500_000


class CrowdedMachine(ArenaMachine):
    """An extent that is used up before the limit: blocks are joined and split all the time."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(sparse(MIB // 2), MIB, 256 << 10)


TestCrowdedMachine = CrowdedMachine.TestCase
TestCrowdedMachine.settings = settings(
    max_examples=rounds(100), stateful_step_count=60, deadline=None, derandomize=True
)


def test_one_block_of_any_size_is_granted_below_the_limit() -> None:
    arena = Arena(sparse(16 * MIB), 1000)
    first = arena.allocate(999)
    second = arena.allocate(8 * MIB - HEADER_BYTES)
    with pytest.raises(ArenaFull, match="no room for 1 bytes"):
        arena.allocate(1)
    arena.free(second, 8 * MIB - HEADER_BYTES)
    arena.free(first, 999)
    assert arena.in_use_bytes == 0


@pytest.mark.parametrize("size", [2**30 - HEADER_BYTES + 1, 2**63, 2**64 - 1])
def test_sizes_beyond_the_largest_class_are_refused(size: int) -> None:
    with pytest.raises(ArenaFull):
        Arena(sparse(MIB), 2**64 - 1).allocate(size)


def test_the_largest_block_can_be_had() -> None:
    arena = Arena(sparse(2 << 30), 1)
    block = arena.allocate(2**30 - HEADER_BYTES)
    arena.view(block, 2**30 - HEADER_BYTES)[-1:] = b"!"
    arena.free(block, 2**30 - HEADER_BYTES)


@given(size=st.integers(0, 2**20))
@settings(deadline=None)
def test_size_classes_waste_less_than_half(size: int) -> None:
    arena = Arena(sparse(4 * MIB), MIB)
    capacity = arena.capacity(arena.allocate(size))
    assert size <= capacity
    assert capacity + HEADER_BYTES == max(2048, 1 << (size + HEADER_BYTES - 1).bit_length())


@pytest.mark.parametrize("block", [0, 1, 63, 65, MIB, MIB + 64, 2**64 - 64, 2**64 - 1])
def test_a_descriptor_may_be_anything(block: int) -> None:
    """What comes from another process is checked, not followed."""
    arena = Arena(sparse(MIB), MIB)
    arena.allocate(100)
    assert not arena.check(block, 1)
    for use in (
        lambda: arena.view(block, 1),
        lambda: arena.take_back(block, 1),
        lambda: arena.free(block, 1),
        lambda: arena.lend(block, 1),
        lambda: arena.generation(block),
        lambda: arena.capacity(block),
    ):
        with pytest.raises(ValueError, match="no block of an arena"):
            use()


def test_views_stay_in_their_block() -> None:
    arena = Arena(sparse(MIB), MIB)
    block = arena.allocate(100)
    assert len(arena.view(block, 1984)) == 1984
    for length in (1985, MIB, 2**64 - block, 2**64 - 1):
        with pytest.raises(ValueError, match="outside the block"):
            arena.view(block, length)
    with pytest.raises(ValueError, match="was not allocated for"):
        arena.free(block, 2000)
    with pytest.raises(ValueError, match="is free"):
        arena.lend(arena.extent_bytes // 2, 1)


def test_reset_gives_everything_back_and_makes_old_leases_stale() -> None:
    memory = sparse(8 * MIB)
    arena = Arena(memory, 8 * MIB)
    block = arena.allocate(MIB)
    arena.view(block, MIB)[:] = b"x" * MIB
    old = arena.lend(block, 4)
    arena.reset()
    assert (resident_bytes(memory), arena.in_use_bytes, arena.lent_to(4)) == (0, 0, [])
    again = arena.allocate(MIB)
    assert again == block
    assert not arena.check(block, old)
    assert not arena.take_back(block, old)


def test_pages_that_cannot_be_given_back_count_as_warm(tmp_path: Path) -> None:
    """A file that is no tmpfs' takes no hole through private memory; the books must tell the truth."""
    file = tmp_path / "arena"
    file.write_bytes(bytes(MIB))
    with file.open("r+b") as handle:
        memory = memoryview(mmap.mmap(handle.fileno(), MIB, flags=mmap.MAP_PRIVATE))
    arena = Arena(memory, MIB, 0)
    arena.free(arena.allocate(100_000), 100_000)
    assert arena.warm_bytes == 128 << 10
    assert arena.allocate(100_000) == HEADER_BYTES
    assert arena.warm_bytes == 0
    with pytest.raises(OSError, match="could not be given back"):
        arena.reset()


def test_unsuitable_memory_is_refused() -> None:
    for memory in (sparse(8192)[64:], sparse(4096)[:100]):
        with pytest.raises(ValueError, match="page"):
            Arena(memory, 1)
