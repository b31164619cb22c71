"""Where the bytes of a round lie, also where earlier segments are gone or were replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.ipc.unshipped import Place, Unsent
from mpbroker.remote.tier.ranges import _pieces
from mpbroker.storage.names import segment_name

SIZES = {0: 100, 10: 200, 25: 0, 30: 50}


@pytest.mark.parametrize(
    ("bases", "begin", "end", "pieces"),
    [
        ((30,), Place(31, 30, 10), Place(35, 30, 50), [(30, 10, 40)]),
        ((0, 10, 30), Place(12, 10, 40), Place(35, 30, 50), [(10, 40, 160), (30, 0, 50)]),
        # A roll without a record behind it.
        ((10, 25), Place(12, 10, 40), Place(25, 25, 0), [(10, 40, 160)]),
        ((0, 10, 25, 30), Place(2, 0, 60), Place(35, 30, 50), [(0, 60, 40), (10, 0, 200), (30, 0, 50)]),
        # All of the segment where it begins was in the store: it was cleaned into an earlier one, or is gone.
        ((0, 30), Place(30, 10, 200), Place(35, 30, 50), [(30, 0, 50)]),
        ((30,), Place(30, 10, 200), Place(35, 30, 50), [(30, 0, 50)]),
        # An offset alone is known: what is shipped twice is the same.
        ((0, 10, 30), Place(12, 0, 0), Place(35, 30, 50), [(10, 0, 200), (30, 0, 50)]),
        # A log start that moves.
        ((30,), Place(35, 30, 50), Place(35, 30, 50), []),
    ],
)
def test_pieces(
    tmp_path: Path, bases: tuple[int, ...], begin: Place, end: Place, pieces: list[tuple[int, int, int]]
) -> None:
    for base in bases:
        (tmp_path / segment_name(base)).write_bytes(bytes(SIZES[base]))
    assert list(_pieces(tmp_path, Unsent(1, 1, 0, begin, end))) == pieces
