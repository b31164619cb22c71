"""Bytes of a segment are checked before the last of them leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.records.batch import checksum
from mpbroker.remote.tier.segment_indexes import IndexEntries, SegmentDamaged
from mpbroker.remote.tier.uploader import CheckedPieces
from mpbroker.storage.checkpoints import opened
from tests.support.flipped_bits import flip
from tests.support.tier_world import TierWorld

LEADER_EPOCH_AT = 15


def pieces(path: Path, end: int = 3, epochs: tuple[tuple[int, int], ...] = ((0, 0),)) -> bytes:
    counted: list[int] = []
    with opened(path) as fd:
        found = CheckedPieces(fd, 0, end, epochs, IndexEntries(b"", 0), counted.append)
        data = b"".join(found)
        assert found.checksum == checksum(data)
        assert sum(counted) == found.size == len(data)
    return data


def test_whole_segments_pass(world: TierWorld) -> None:
    path = world.segments()[0]
    assert pieces(path) == path.read_bytes()


@pytest.mark.parametrize("at", [0, 8, 30, 61, -1])
def test_a_flipped_bit_anywhere_is_damage(world: TierWorld, at: int) -> None:
    path = world.segments()[0]
    flip(path, at % path.stat().st_size)
    with pytest.raises(SegmentDamaged, match="a batch is bad"):
        pieces(path)


def test_offsets_beyond_the_segment_are_damage(world: TierWorld) -> None:
    with pytest.raises(SegmentDamaged, match="reach beyond 2"):
        pieces(world.segments()[0], end=2)


def test_a_wrong_leader_epoch_is_damage_unless_the_checkpoint_is_wrong(world: TierWorld) -> None:
    path = world.segments()[0]
    assert pieces(path, epochs=((5, 0),)) == path.read_bytes()
    data = path.read_bytes()
    path.write_bytes(data + world.segments()[1].read_bytes())
    assert pieces(path, end=6)
    flip(path, len(data) + LEADER_EPOCH_AT, 0x01)
    with pytest.raises(SegmentDamaged, match="leader epoch"):
        pieces(path, end=6)


def test_a_file_that_becomes_shorter_is_no_segment(world: TierWorld) -> None:
    path = world.segments()[0]
    with opened(path) as fd:
        found = CheckedPieces(fd, 0, 3, (), IndexEntries(b"", 0), lambda _count: None)
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(SegmentDamaged, match="shorter"):
            list(found)
