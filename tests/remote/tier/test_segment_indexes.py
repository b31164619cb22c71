"""Indexes of sealed segments: as they are on disk, or as they would be."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from mpbroker.remote.tier.segment_indexes import IndexEntries, SegmentDamaged, read_indexes, rebuilt
from mpbroker.storage import scan
from mpbroker.storage.checkpoints import opened
from mpbroker.storage.names import (
    INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_name,
)
from mpbroker.storage.transaction_index import AbortedTransaction, packed
from tests.support.flipped_bits import flip
from tests.support.log_writer import T0, make_batch
from tests.support.tier_world import MakeWorld, TierWorld


@pytest.fixture
def small(worlds: MakeWorld) -> TierWorld:
    """Two sealed segments of many batches, with times that go back and forth, of two producers."""
    world = worlds()
    sequence = 0
    while len(world.segments()) < 3:
        for producer in (7, 8):
            late = 1000 * (sequence % 3)
            batch = make_batch(
                2, size=5_000, timestamp=T0 + 10 * sequence - late, producer=(producer, 0, 2 * sequence)
            )
            world.broker.produce(bytes(batch))
        sequence += 1
    return world


def read(world: TierWorld, number: int = 0) -> tuple[bytes, ...]:
    bases = [int(path.stem) for path in world.segments()]
    with opened(world.segments()[number]) as fd:
        found = read_indexes(world.directory(), bases[number], bases[number + 1], fd)
    return (*found.parts, str(found.largest_ms).encode(), str(found.epochs).encode())


def test_parts_are_the_files_on_disk(small: TierWorld) -> None:
    end = int(small.segments()[1].stem)
    offset, time, snapshot, epochs, aborted, largest_ms, _ = read(small)
    first = small.segments()[0]
    assert offset == first.with_suffix(INDEX_SUFFIX).read_bytes() != b""
    assert time == first.with_suffix(TIME_INDEX_SUFFIX).read_bytes() != b""
    assert snapshot == (small.directory() / segment_name(end, SNAPSHOT_SUFFIX)).read_bytes() != b""
    assert epochs == b"0\n1\n0 0\n"
    assert aborted == b""
    assert int(largest_ms) > T0


def test_indexes_that_are_rebuilt_are_those_that_were_there(small: TierWorld) -> None:
    for number in range(2):
        first = small.segments()[number]
        with opened(first) as fd:
            offsets, times = rebuilt(fd, int(first.stem))
        assert offsets == first.with_suffix(INDEX_SUFFIX).read_bytes()
        assert times == first.with_suffix(TIME_INDEX_SUFFIX).read_bytes()


@pytest.mark.parametrize("number", [0, 1])
def test_whatever_is_missing_is_rebuilt(small: TierWorld, number: int) -> None:
    before = read(small, number)
    path, end = small.segments()[number], small.segments()[number + 1].stem
    for missing in (
        path.with_suffix(INDEX_SUFFIX),
        path.with_suffix(TIME_INDEX_SUFFIX),
        small.directory() / f"{end}{SNAPSHOT_SUFFIX}",
    ):
        data = missing.read_bytes()
        missing.unlink()
        assert read(small, number) == before
        missing.write_bytes(data)
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        path.with_suffix(suffix).unlink()
    assert read(small, number) == before


def entries_are_right(path: Path, index: bytes) -> bool:
    """Compare an index with a segment's batches in pieces of three."""
    data = path.read_bytes()
    entries = IndexEntries(index, int(path.stem))
    ends = [batch.position + batch.length for batch in all_batches(path)]
    position = 0
    for end in (*ends[2::3], len(data)):
        entries.feed(memoryview(data)[position:end], position)
        position = end
    return entries.finish()


def all_batches(path: Path) -> list[scan.BatchAt]:
    with opened(path) as fd:
        return scan.batches(fd, 0, path.stat().st_size)


def test_an_index_is_right_if_all_of_its_entries_are(small: TierWorld) -> None:
    for path in small.segments()[:2]:
        index = path.with_suffix(INDEX_SUFFIX).read_bytes()
        assert len(index) > 10 * 8
        assert entries_are_right(path, index)
        assert entries_are_right(path, b"")
        assert not entries_are_right(path, index[:-1])
        assert not entries_are_right(path, index + bytes(8))
        assert not entries_are_right(path, index[:8] + index[:8] + index[16:])
        assert not entries_are_right(path, index + struct.pack(">ii", 1 << 30, path.stat().st_size))
        for bit in range(0, len(index) * 8, 7):
            flipped = bytearray(index)
            flipped[bit // 8] ^= 1 << bit % 8
            assert not entries_are_right(path, flipped), bit


def test_aborted_transactions_are_taken_over(small: TierWorld) -> None:
    entries = packed([AbortedTransaction(7, 0, 3, 4)])
    small.segments()[0].with_suffix(TXN_INDEX_SUFFIX).write_bytes(entries)
    assert read(small)[4] == entries


def test_a_damaged_segment_is_not_replayed(small: TierWorld) -> None:
    first, second = small.segments()[:2]
    (small.directory() / f"{second.stem}{SNAPSHOT_SUFFIX}").unlink()
    flip(first, 300)
    with pytest.raises(SegmentDamaged, match="at byte 0 a batch is bad"):
        read(small)
