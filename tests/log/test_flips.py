"""Some of the flips of `tests.log.flips`, which makes thousands; and those that hit what is rarely hit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.log.deletion import _measure
from mpbroker.log.names import TIME_INDEX_SUFFIX
from mpbroker.log.retention import Sealed
from tests.log import flips
from tests.log.test_scrub import flip

SEEDS = 160


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[Path, list[flips.Image]]]:
    with flips.workplace() as made:
        yield made


@pytest.mark.parametrize("first", range(0, SEEDS, 40))
def test_one_flipped_bit_is_found_or_harmless(place: tuple[Path, list[flips.Image]], first: int) -> None:
    """A failure names the seed: `python -m tests.log.flips --first SEED --seeds 1`."""
    scratch, images = place
    came = {flips.trial(images, seed, scratch) for seed in range(first, first + 40)}
    assert len(came) > 1, "nothing was ever flipped that matters"


def test_no_flip_makes_a_segment_older(place: tuple[Path, list[flips.Image]]) -> None:
    """Retention would take it."""
    directory = place[1][0].directory / "t-0"
    first = sorted(directory.glob("*.log"))[0]
    known = [Sealed(int(first.stem))]
    _measure(directory, known)
    index = first.with_suffix(TIME_INDEX_SUFFIX)
    for at in range(index.stat().st_size):
        for bit in range(8):
            flip(index, at, 1 << bit)
            again = [Sealed(int(first.stem))]
            _measure(directory, again)
            assert again == known, f"byte {at}, bit {bit}"
            flip(index, at, 1 << bit)


def test_a_flipped_topic_id_is_no_other_topic(place: tuple[Path, list[flips.Image]]) -> None:
    scratch, images = place
    for image in images:
        one = flips.Flip(-1, image, "t-1/partition.metadata", 23, 0x10)
        outcome, _, _ = flips.life(one, scratch)
        assert "a bit has flipped. Write topic_id: " in outcome.partitions[1].offline
        assert outcome.partitions[0].records == image.records[0]
