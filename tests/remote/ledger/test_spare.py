"""Files that are replaced on a full disk, by what was allocated before."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from mpbroker.remote.ledger import spare
from mpbroker.remote.ledger.spare import SPARE, write_or_spare
from tests.support.full_disk import failing_with


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file"


def spare_of(path: Path) -> Path:
    return path.with_name(path.name + SPARE)


def make_full(patch: pytest.MonkeyPatch, number: int = errno.ENOSPC) -> None:
    patch.setattr(spare, "write_whole", failing_with(number))
    patch.setattr(spare, "set_aside", lambda _fd, _position, _count: False)


def test_a_file_is_replaced_on_a_full_disk_again_and_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two inodes take turns, and keep their blocks, whether the file grows or shrinks."""
    write_or_spare(file, b"first")
    inodes = {file.stat().st_ino, spare_of(file).stat().st_ino}
    make_full(monkeypatch)
    for data in (bytes(100), b"short", bytes(4000), b"", bytes(4000)):
        write_or_spare(file, data)
        assert file.read_bytes() == data
        assert {file.stat().st_ino, spare_of(file).stat().st_ino} == inodes


def test_the_file_is_as_it_was_if_its_writer_is_killed_before_the_exchange(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_or_spare(file, b"first")
    make_full(monkeypatch)
    with monkeypatch.context() as killed:
        killed.setattr(spare, "exchange_names", failing_with(errno.EIO))
        with pytest.raises(OSError, match="No space left"):
            write_or_spare(file, b"second, and longer")
        assert file.read_bytes() == b"first"
    write_or_spare(file, b"third")
    assert file.read_bytes() == b"third"


@pytest.mark.parametrize("size", [5, 1 << 20])
def test_without_enough_room_in_the_spare_the_file_is_as_it_was(
    file: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    write_or_spare(file, b"first")
    if size == 5:
        spare_of(file).unlink()
    make_full(monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        write_or_spare(file, bytes(size))
    assert file.read_bytes() == b"first"


def test_a_broken_disk_is_not_a_full_one(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_or_spare(file, b"first")
    make_full(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        write_or_spare(file, b"second")
    assert file.read_bytes() == b"first"
