"""Files of a log that go: in small pieces, and their names like any other's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpbroker.log.io import background_io
from mpbroker.log.io.background_io import STEP_BYTES, remove_file, remove_tree
from mpbroker.storage.residency import resident

SIZE = 3 * STEP_BYTES + 5


@pytest.fixture(name="segment")
def _segment(tmp_path: Path) -> Path:
    """Large, on the disk, and all of it in the page cache."""
    path = tmp_path / "topic-0" / f"{0:020d}.log"
    path.parent.mkdir()
    path.write_bytes(os.urandom(SIZE))
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    return path


def test_a_file_leaves_the_page_cache_step_by_step(segment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that others get the CPU in between, and that a process with the file open reads on."""
    fd = os.open(segment, os.O_RDONLY)
    before = os.pread(fd, SIZE, 0)
    if not resident(fd, 0, SIZE):
        pytest.skip("memory is short: what was just read is not in the page cache")
    left: list[bool] = []

    def look() -> None:
        left.append(resident(fd, SIZE - 4096, 4096))

    monkeypatch.setattr(background_io.Stints, "rest_if_due", lambda _self: look())
    remove_file(segment)
    assert len(left) == 4
    assert left[0]
    assert not segment.exists()
    assert os.pread(fd, SIZE, 0) == before
    os.close(fd)


def test_what_is_gone_is_no_error(tmp_path: Path) -> None:
    remove_file(tmp_path / "none")
    remove_tree(tmp_path / "none")
    (tmp_path / "nowhere").symlink_to(tmp_path / "none")
    remove_file(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").is_symlink()


def test_a_tree_goes_with_all_that_is_in_it(segment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that nothing but plain files of the partition is opened."""
    directory, rests = segment.parent, []
    (directory / "sub").mkdir()
    (directory / "sub" / "file").write_bytes(b"1")
    outside = directory.parent / "outside"
    outside.write_bytes(b"1")
    (directory / "link").symlink_to(outside)
    os.mkfifo(directory / "fifo")
    monkeypatch.setattr(background_io.Stints, "rest_if_due", lambda _self: rests.append(1))
    remove_tree(directory)
    assert not directory.exists()
    assert outside.exists()
    assert len(rests) >= 4
