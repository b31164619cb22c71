"""Small files that are read and replaced as a whole."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from mpbroker.storage import checkpoints


@pytest.mark.parametrize("size", [0, 1, (16 << 10) - 1, 16 << 10, (16 << 10) + 1, 5 << 20])
def test_a_file_is_read_whole_and_in_few_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Check the number of pieces: a large snapshot read in many once held up a start."""
    path, data, asked = tmp_path / "file", random.Random(1).randbytes(size), []
    path.write_bytes(data)
    read = os.read

    def counted(fd: int, length: int) -> bytes:
        asked.append(length)
        return read(fd, length)

    monkeypatch.setattr(os, "read", counted)
    assert checkpoints.read_whole(path) == data
    assert len(asked) <= 3


def test_what_stands_between_the_words_of_a_line_does_not_count(tmp_path: Path) -> None:
    path, offsets = tmp_path / "offsets", {("t", 0): 5, ("a-b", 7): 1 << 40}
    checkpoints.write_offsets(path, offsets)
    assert checkpoints.read_offsets(path) == offsets
    path.write_text(path.read_text().replace("t 0 5", "t  0 5 "))
    assert checkpoints.read_offsets(path) == offsets
    path.write_text(path.read_text().replace("t  0 5 ", "t  0 4 "))
    with pytest.raises(checkpoints.CheckpointCorrupt, match="checksum"):
        checkpoints.read_offsets(path)


@pytest.mark.parametrize("line", ["t 0 99999999999999999999", "t 0 -1", "t x 1", "t 0"])
def test_a_line_that_no_partition_has(tmp_path: Path, line: str) -> None:
    path = tmp_path / "offsets"
    path.write_text(f"0\n1\n{line}\n")
    with pytest.raises(checkpoints.CheckpointCorrupt, match="malformed"):
        checkpoints.read_offsets(path)
