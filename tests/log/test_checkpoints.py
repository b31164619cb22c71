"""Small files that are read and replaced as a whole."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from mpbroker.log import checkpoints


@pytest.mark.parametrize("size", [0, 1, (16 << 10) - 1, 16 << 10, (16 << 10) + 1, 5 << 20])
def test_a_file_is_read_whole_and_in_few_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Put together of many pieces, each behind a copy of all before it, a large snapshot held up a start."""
    path, data, asked = tmp_path / "file", random.Random(1).randbytes(size), []
    path.write_bytes(data)
    read = os.read

    def counted(fd: int, length: int) -> bytes:
        asked.append(length)
        return read(fd, length)

    monkeypatch.setattr(os, "read", counted)
    assert checkpoints.read_whole(path) == data
    assert len(asked) <= 3
