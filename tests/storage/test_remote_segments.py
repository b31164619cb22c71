"""The file of a partition's remote segments."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.storage.checkpoints import CheckpointCorrupt
from mpbroker.storage.names import REMOTE_SEGMENTS
from mpbroker.storage.remote_segments import (
    RemoteSegment,
    RemoteSegments,
    read_remote_segments,
    write_remote_segments,
)


def segment(base: int, end: int) -> RemoteSegment:
    return RemoteSegment(base, end, 100 * (end - base), 1000 + end, base.to_bytes(16))


# Compaction and transactions leave gaps between segments.
SEGMENTS = RemoteSegments([segment(5, 10), segment(10, 20), segment(25, 30)])


@pytest.mark.parametrize("segments", [SEGMENTS, RemoteSegments()])
def test_what_was_written_is_read(tmp_path: Path, segments: RemoteSegments) -> None:
    write_remote_segments(tmp_path, segments)
    found = read_remote_segments(tmp_path)
    assert found == segments
    assert (found.start, found.end) == ((5, 30) if segments else (0, 0))


def test_a_partition_without_a_file_has_no_segments(tmp_path: Path) -> None:
    assert read_remote_segments(tmp_path) == ()


@pytest.mark.parametrize(
    ("offset", "base"), [(0, 5), (5, 5), (9, 5), (10, 10), (19, 10), (20, 25), (29, 25), (30, None)]
)
def test_the_segment_of_an_offset(offset: int, base: int | None) -> None:
    found = SEGMENTS.find(offset)
    assert (found.base if found else None) == base


def test_nothing_is_found_without_segments() -> None:
    assert RemoteSegments().find(0) is None


def test_every_flipped_bit_and_every_cut_is_noticed(tmp_path: Path) -> None:
    write_remote_segments(tmp_path, SEGMENTS)
    path = tmp_path / REMOTE_SEGMENTS
    whole = path.read_bytes()
    flips = (whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(len(whole)))
    for damaged in (*flips, *(whole[:length] for length in range(len(whole))), whole + b"\0"):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointCorrupt, match=REMOTE_SEGMENTS):
            read_remote_segments(tmp_path)
