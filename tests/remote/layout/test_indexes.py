"""The parts of `.indexes`."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.remote.layout.indexes import (
    IndexesDamaged,
    IndexSizes,
    SegmentIndexes,
    epochs_within,
    leader_epochs_below,
    split_indexes,
)
from mpbroker.storage.checkpoints import read_epochs
from mpbroker.storage.names import LEADER_EPOCHS

PARTS = SegmentIndexes(b"offset", b"time", b"snapshot", b"epochs", b"txn")
EPOCHS = [(0, 0), (3, 10), (4, 20), (7, 20), (9, 40)]


def test_what_was_joined_is_split() -> None:
    assert PARTS.sizes == IndexSizes(6, 4, 8, 6, 3)
    assert PARTS.sizes.positions == (0, 6, 10, 18, 24)
    assert PARTS.joined == b"offsettimesnapshotepochstxn"
    assert split_indexes(PARTS.joined, PARTS.sizes) == PARTS
    bare = PARTS._replace(transactions=b"")
    assert split_indexes(bare.joined, list(bare.sizes)) == bare


@pytest.mark.parametrize("body", [PARTS.joined[:-1], PARTS.joined + b"x", b""])
def test_an_object_of_another_size_is_refused(body: bytes) -> None:
    with pytest.raises(IndexesDamaged, match=f"have {len(body)} bytes, not 27"):
        split_indexes(body, PARTS.sizes)


def test_leader_epochs_are_a_checkpoint_of_those_that_begin_before_the_end(tmp_path: Path) -> None:
    (tmp_path / LEADER_EPOCHS).write_bytes(leader_epochs_below(EPOCHS, 40))
    assert read_epochs(tmp_path) == EPOCHS[:-1]


@pytest.mark.parametrize(
    ("base", "end", "wanted"),
    [
        (0, 10, ((0, 0),)),
        (5, 11, ((0, 5), (3, 10))),
        (10, 20, ((3, 10),)),
        (19, 21, ((3, 19), (7, 20))),
        (30, 35, ((7, 30),)),
        (30, 50, ((7, 30), (9, 40))),
        (40, 41, ((9, 40),)),
    ],
)
def test_the_epochs_of_a_segment(base: int, end: int, wanted: tuple[tuple[int, int], ...]) -> None:
    assert epochs_within(EPOCHS, base, end) == wanted


def test_a_log_without_epochs() -> None:
    assert epochs_within([], 0, 10) == ()
