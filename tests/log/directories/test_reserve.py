"""Room that is kept for a full disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mpbroker.log.directories.reserve import (
    BLOCK_BYTES,
    METADATA_BYTES,
    PIECE_BYTES,
    Reserve,
    keep_room_at_end,
)
from mpbroker.log.io.file_system import set_aside
from tests.support.full_disk import failing_with
from tests.support.log_writer import MakeWriter

pytestmark = pytest.mark.usefixtures("tidy")
SIZE = 3 * PIECE_BYTES + 1000


def full(left: int) -> Callable[[int, int, int], None]:
    """A disk with room for so many pieces more."""
    calls = iter(range(left))

    def allocate(_fd: int, _at: int, _count: int) -> None:
        if next(calls, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return allocate


class Write:
    """Fails as often as it is said, with that error; knows what was held each time."""

    def __init__(self, reserve: Reserve, *errors: int) -> None:
        self.reserve = reserve
        self.errors = list(errors)
        self.held: list[int] = []

    def __call__(self) -> None:
        self.held.append(self.reserve.held_bytes)
        if self.errors:
            error = self.errors.pop(0)
            raise OSError(error, os.strerror(error))


@pytest.fixture
def reserve(tmp_path: Path) -> Reserve:
    found = Reserve(tmp_path, SIZE)
    found.take()
    if not found.held_bytes:
        pytest.skip("this file system has no files without a name")
    return found


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_it_has_no_name_and_goes_with_its_owner(reserve: Reserve, tmp_path: Path) -> None:
    assert reserve.is_whole
    assert reserve.held_bytes == SIZE
    assert list(tmp_path.iterdir()) == []
    before = descriptors()
    reserve.close()
    assert descriptors() == before - 1
    reserve.take()
    assert descriptors() == before - 1, "it is not taken again behind the end"


def test_a_disk_that_is_nearly_full_gives_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = Reserve(tmp_path, SIZE)
    monkeypatch.setattr(os, "posix_fallocate", full(2))
    reserve.take()
    assert reserve.held_bytes == 2 * PIECE_BYTES
    assert not reserve.is_whole
    monkeypatch.setattr(os, "posix_fallocate", full(2))
    reserve.take()
    assert reserve.is_whole
    reserve.close()


def test_what_finds_no_room_gets_that_which_was_kept(reserve: Reserve) -> None:
    write = Write(reserve, errno.ENOSPC)
    reserve.lend(write)
    assert write.held == [SIZE, 0]
    assert reserve.is_whole, "it is there for the next one"


@pytest.mark.parametrize("errors", [(errno.EIO,), (errno.ENOSPC, errno.ENOSPC), (errno.ENOSPC, errno.EIO)])
def test_what_fails_all_the_same_is_told(reserve: Reserve, errors: tuple[int, ...]) -> None:
    write = Write(reserve, *errors)
    with pytest.raises(OSError, match=r"space|error") as raised:
        reserve.lend(write)
    assert raised.value.errno == errors[-1]
    assert len(write.held) == len(errors)
    assert reserve.is_whole


def test_without_it_nothing_is_tried_twice(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path, 0)
    reserve.take()
    write = Write(reserve, errno.ENOSPC)
    with pytest.raises(OSError, match="space"):
        reserve.lend(write)
    assert write.held == [0]


def test_a_file_system_without_such_files_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = Reserve(tmp_path, SIZE)
    monkeypatch.setattr(os, "open", failing_with(errno.EOPNOTSUPP))
    reserve.take()
    assert reserve.held_bytes == 0
    assert reserve.is_whole, "it is not tried again"


def test_room_behind_the_end_of_a_file_is_not_seen(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    with path.open("rb+") as file:
        if not set_aside(file.fileno(), 3, 1 << 20):
            pytest.skip("this file system sets no room aside")
    assert path.read_bytes() == b"abc"
    assert path.stat().st_blocks * 512 >= 1 << 20


def test_the_metadata_log_gets_its_room_again(writer: MakeWriter) -> None:
    """Check that the reserve is made again after a failed write was cut off together with it."""
    log = writer().log

    def room() -> int:
        return os.fstat(log.state.fd).st_blocks * BLOCK_BYTES - log.state.size

    keep_room_at_end(log)
    if room() < METADATA_BYTES:
        pytest.skip("this file system sets no room aside")
    assert room() >= 2 * METADATA_BYTES
    os.ftruncate(log.state.fd, log.state.size)
    assert room() < METADATA_BYTES
    keep_room_at_end(log)
    assert room() >= 2 * METADATA_BYTES
    log.close_files()
    keep_room_at_end(log)
