"""Some of the flips of `tests.support.flips`, which makes thousands; and those that hit rare places."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.log.manager.measuring import measure
from mpbroker.log.partition.partition_log import Sealed
from mpbroker.storage.names import TIME_INDEX_SUFFIX
from tests.support import flips
from tests.support.flipped_bits import flip
from tests.support.forms import pick

SEEDS = pick("flips", short=40, long=4_000)
# In files that a start can make from others.
STRIDE = int(pick("the stride between flipped bytes is", short="3", long="1"))
# By its place in what `flips.make_images` returns.
EACH_IMAGE = pytest.mark.parametrize("number", [0, 1], ids=["crashed", "stopped"])


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[Path, list[flips.Image]]]:
    with flips.workplace() as made:
        yield made


@pytest.mark.parametrize("first", range(0, SEEDS, 40))
def test_one_flipped_bit_is_found_or_harmless(place: tuple[Path, list[flips.Image]], first: int) -> None:
    """Check it for random bits.

    A failure names the seed: `python -m tests.support.flips --first SEED --seeds 1`.
    """
    scratch, images = place
    came = {flips.trial(images, seed, scratch) for seed in range(first, first + 40)}
    assert len(came) > 1, "nothing was ever flipped that matters"


def test_no_flip_makes_a_segment_older(place: tuple[Path, list[flips.Image]]) -> None:
    """Check it: retention would delete the segment."""
    directory = place[1][0].directory / "t-0"
    first = min(directory.glob("*.log"))
    known = [Sealed(int(first.stem))]
    measure(directory, known)
    index = first.with_suffix(TIME_INDEX_SUFFIX)
    for at in range(index.stat().st_size):
        for bit in range(8):
            flip(index, at, 1 << bit)
            again = [Sealed(int(first.stem))]
            measure(directory, again)
            assert again == known, f"byte {at}, bit {bit}"
            flip(index, at, 1 << bit)


def test_a_flipped_topic_id_is_no_other_topic(place: tuple[Path, list[flips.Image]]) -> None:
    scratch, images = place
    for image in images:
        one = flips.Flip(-1, image, "t-1/partition.metadata", 23, 0x10)
        outcome, _, _ = flips.life(one, scratch)
        assert "a bit has flipped. Write topic_id: " in outcome.partitions[1].offline
        assert outcome.partitions[0].records == image.records[0]


@EACH_IMAGE
def test_no_flip_in_what_says_which_were_aborted_shows_one(
    place: tuple[Path, list[flips.Image]], number: int
) -> None:
    """Check that no committed record is hidden silently either."""
    scratch, images = place
    image = images[number]
    for path in sorted(image.directory.glob("t-3/*.txnindex")):
        for at in range(image.directory.name == "crashed", path.stat().st_size, 7 * STRIDE):
            one = flips.Flip(-1, image, f"t-3/{path.name}", at, 1 << at % 8)
            flips.judge(one, *flips.life(one, scratch))


def test_what_says_which_were_aborted_is_made_anew(place: tuple[Path, list[flips.Image]]) -> None:
    """Check the steps that an operator is told to take."""
    scratch, images = place
    for image in images:
        work = scratch / "work"
        shutil.copytree(image.directory, work)
        before = {path.name: path.read_bytes() for path in work.glob("t-3/*.txnindex")}
        assert len(before) > 2
        for name in before:
            (work / "t-3" / name).unlink()
            (work / "t-3" / name).with_suffix(".index").unlink()
        outcome = flips.run(work, scratch)
        assert [one.committed for one in outcome.partitions] == image.committed
        assert {path.name: path.read_bytes() for path in work.glob("t-3/*.txnindex")} == before
        shutil.rmtree(work)


@EACH_IMAGE
def test_no_flip_in_what_says_which_epochs_there_were_costs_a_record(
    place: tuple[Path, list[flips.Image]], number: int
) -> None:
    """Check that the file is made anew from the batches, which have the epochs, too."""
    scratch, images = place
    image = images[number]
    name = "t-1/leader-epoch-checkpoint"
    for at in range(0, (image.directory / name).stat().st_size, STRIDE):
        for bit in range(at % 3, 8, 3):
            one = flips.Flip(-1, image, name, at, 1 << bit)
            outcome, segments, lines = flips.life(one, scratch)
            flips.judge(one, outcome, segments, lines)
            got = outcome.partitions[1]
            assert not got.offline, f"byte {at}, bit {bit}: {got.offline}"
            assert not got.refused, f"byte {at}, bit {bit}: {len(got.refused)} offsets are refused"
            assert {record[3] for record in got.records.values()} == {0}
