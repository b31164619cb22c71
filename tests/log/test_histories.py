"""Histories of a partition: all readers agree with the model, record by record.

`make histories` walks others. A history that once failed is kept in EXAMPLES, without needless steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.forms import pick, rounds
from tests.support.partition_walk import Step, Walker, walker

HISTORIES = pick("histories", short=rounds(150), long=5000)
PARTS = 4

EXAMPLES: dict[str, tuple[str, list[Step]]] = {
    # The cleaner read the aborted transactions of the segments that it cleaned, and no later ones: an aborted
    # record took the place of a committed one.
    "aborted by a marker in a later segment": (
        "compact",
        [("put", 1, 0, 4), ("roll",), ("abort", 1), ("clean",)],
    ),
    # A transaction of the clean part, whose marker the map's walk over the dirty part did not meet, hid
    # later ones of its producer.
    "aborted in the clean part, committed in the dirty one": (
        "compact",
        [
            *(("put", 1, 0, 1), ("abort", 1), ("roll",), ("put", 0, 4, 1), ("clean",)),
            *(("put", 1, 1, 1), ("commit", 1), ("roll",), ("put", 0, 4, 1), ("clean",)),
        ],
    ),
    # NOT_LEADER_OR_FOLLOWER for ever: the position remembered was the end of the deleted segment.
    "a reader at the beginning of a segment behind a deleted one": (
        "delete",
        [
            *(("put", 0, 0, 1), ("read", 0, 1), ("roll",), ("put", 0, 1, 1), ("roll",), ("put", 0, 2, 1)),
            *(("roll",), ("put", 0, 3, 1), ("roll",), ("put", 0, 4, 1), ("roll",), ("put", 0, 0, 2)),
            *(("compare",), ("delete", 2), ("read", 0, 1)),
        ],
    ),
    # Records were missed in silence, or CORRUPT_MESSAGE: the position remembered was one of the old file.
    "a reader within a segment that is compacted": (
        "compact",
        [
            *(("put", 0, 0, 1), ("put", 0, 1, 1), ("roll",), ("put", 0, 2, 1), ("roll",), ("put", 0, 3, 1)),
            *(("roll",), ("put", 0, 4, 1), ("roll",), ("put", 0, 0, 1), ("roll",), ("put", 0, 0, 1)),
            *(("read", 0, 1), ("compare",), ("clean",), ("read", 0, 1)),
        ],
    ),
    # Aborted records came as committed: the index of a segment behind the bound's was not looked for.
    "aborted by a marker behind the last stable offset's segment": (
        "delete",
        [
            *(("put", 3, 0, 1), ("abort", 3), ("put", 3, 1, 1), ("put", 2, 2, 1), ("read", 1, 5)),
            *(("roll",), ("abort", 3), ("read", 1, 5)),
        ],
    ),
    # ValueError of zip(), and no compaction until a restart: the active segment was to be cleaned.
    "the log starts within the only segment": (
        "compact",
        [("put", 1, 3, 1), ("delete", 8), ("put", 3, 4, 1), ("clean",)],
    ),
    # CleaningFailed ("the 0 keys that the buffer takes"), and no compaction until a restart.
    "the log starts within an open transaction": (
        "compact",
        [("put", 2, 2, 2), ("roll",), ("delete", 4), ("put", 0, 2, 1), ("clean",)],
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walker]:
    with walker(tmp_path_factory.mktemp("histories")) as found:
        yield found


@pytest.mark.parametrize("name", EXAMPLES)
def test_histories_that_once_failed(made: Walker, name: str) -> None:
    made.walk(*EXAMPLES[name])


@pytest.mark.parametrize("part", range(PARTS))
def test_random_histories(made: Walker, part: int) -> None:
    made.check(range(part, HISTORIES, PARTS))
