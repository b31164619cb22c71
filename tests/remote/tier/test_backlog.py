"""Which segments are ready, and in which order they go."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.ipc.table import PartitionFlag
from mpbroker.remote.tier.backlog import Candidate, Misfit, Sealed, in_turn, ready, sealed_ranges
from mpbroker.remote.tier.places import Place

SEGMENTS = [Sealed(0, 10, 1, 5), Sealed(10, 20, 1, 6), Sealed(20, 35, 1, 7)]


def place(
    partition: int = 0, *, log_start: int = 0, durable: int = 100, stable: int = 100, flags: int = 0
) -> Place:
    flags = flags or PartitionFlag.PARTITION_TIERED | PartitionFlag.PARTITION_LIVE
    at = (3, 1, "t", bytes(16), partition, Path(f"/logs/t-{partition}"))
    return Place(*at, flags, log_start, 35, durable, stable)


def test_the_newest_segment_is_not_sealed() -> None:
    assert sealed_ranges([0, 10, 20], 20) == [(0, 10), (10, 20)]
    assert sealed_ranges([0, 10, 20, 30], 20) == [(0, 10), (10, 20)]
    assert sealed_ranges([0], 0) == []
    assert sealed_ranges([], 0) == []


@pytest.mark.parametrize(
    ("remote_end", "limits", "bases"),
    [
        (0, {}, [0, 10, 20]),
        (10, {}, [10, 20]),
        (35, {}, []),
        (0, {"log_start": 9}, [0, 10, 20]),
        (0, {"log_start": 10}, [10, 20]),
        (0, {"stable": 20}, [0, 10]),
        (0, {"stable": 19}, [0]),
        (0, {"durable": 34}, [0, 10]),
        (20, {"log_start": 5}, [20]),
    ],
)
def test_ready_are_those_between_the_remote_end_and_the_stable_offset(
    remote_end: int, limits: dict[str, int], bases: list[int]
) -> None:
    assert [one.base for one in ready(SEGMENTS, place(**limits), remote_end)] == bases


def test_a_segment_that_is_uploaded_in_part_is_of_another_directory() -> None:
    with pytest.raises(Misfit, match=r"/logs/t-0: the segment of offset 10 begins before 15"):
        ready(SEGMENTS, place(), 15)


def test_who_was_sealed_first_goes_first_and_a_partition_in_its_order() -> None:
    def of(partition: int, *times: int) -> list[Candidate]:
        return [Candidate(place(partition), Sealed(n, n + 1, 1, at)) for n, at in enumerate(times)]

    order = [(one.place.partition, one.segment.base) for one in in_turn([of(0, 1, 9, 2), of(1, 3, 4)])]
    assert order == [(0, 0), (1, 0), (1, 1), (0, 1), (0, 2)]


@pytest.mark.parametrize(
    ("flags", "is_copied", "is_removed"),
    [
        (PartitionFlag.PARTITION_TIERED, True, False),
        (PartitionFlag.PARTITION_TIERED | PartitionFlag.PARTITION_COPY_DISABLED, False, False),
        (PartitionFlag.PARTITION_REMOTE_DELETED, False, True),
        (PartitionFlag.PARTITION_TIERED | PartitionFlag.PARTITION_REMOTE_DELETED, False, True),
    ],
)
def test_flags_say_what_becomes_of_a_partition(
    flags: PartitionFlag, is_copied: bool, is_removed: bool
) -> None:
    found = place(flags=flags | PartitionFlag.PARTITION_LIVE)
    assert (found.is_copied, found.is_removed) == (is_copied, is_removed)
