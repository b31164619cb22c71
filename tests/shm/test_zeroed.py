"""Zeroed arrays cost the pages that are used, also where the heap was used before."""

from __future__ import annotations

import os
import sys

import pytest

from mpbroker.handlers.hot_path.fetch_positions import FetchPositions
from tests.support.programs import ran

# The places of a handler's fetches take some 120 KB.
PROGRAM = """
from pathlib import Path
from mpbroker.handlers.hot_path.fetch_positions import FetchPositions

def resident_kib():
    return int(Path("/proc/self/smaps_rollup").read_text().split("Rss:")[1].split()[0])

used = [bytearray(1000) for _ in range(8000)]
end_of_heap = bytearray(1000)
del used
before = resident_kib()
places = [FetchPositions(bytes(8)) for _ in range(20)]
print(before - resident_kib())
"""


@pytest.mark.process
def test_used_memory_is_given_back() -> None:
    assert int(ran([sys.executable, "-c", PROGRAM], check=True).stdout) > 1000


def test_a_place_that_was_never_taken_has_no_files() -> None:
    places = FetchPositions(bytes(8))
    places.forget(0)
    places.forget_all()
    del places
    os.fstat(0)
