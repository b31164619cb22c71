"""Background work and the disk: reads and writes are waited for, and leave the page cache as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.log.io import background_io
from mpbroker.storage.residency import resident
from tests.support.page_cache import evict, unwritten_pages

SIZE = (1 << 20) + 5

pytestmark = pytest.mark.disk


@pytest.fixture(name="content")
def _content() -> bytes:
    return os.urandom(SIZE)


@pytest.fixture(name="fd")
def _fd(tmp_path: Path, content: bytes) -> Iterator[int]:
    """Open a file that is on the disk and not in the page cache."""
    path = tmp_path / "file"
    path.write_bytes(content)
    evict(path)
    fd = os.open(path, os.O_RDWR)
    background_io.no_read_ahead(fd)
    yield fd
    os.close(fd)


def test_what_the_disk_gives_is_told_with_the_time_it_took(fd: int, content: bytes) -> None:
    data, disk_s = background_io.read(fd, 200_000, 1000)
    assert data == content[1000:201_000]
    assert disk_s > 0
    if not resident(fd, 1000, 200_000):
        pytest.skip("memory is short: what was just read is not in the page cache")
    again, disk_s = background_io.read(fd, 200_000, 1000)
    assert (again, disk_s) == (data, 0.0)


def test_nothing_is_read_ahead(fd: int) -> None:
    background_io.read(fd, 100_000, 0)
    assert not resident(fd, 500_000, 1)


def test_what_was_not_in_the_page_cache_leaves_it_again(fd: int, content: bytes) -> None:
    os.pread(fd, 8192, 0)
    data, disk_s = background_io.read(fd, 100_000, 0, leaves_cache=True)
    assert data == content[:100_000]
    assert disk_s > 0
    assert not resident(fd, 16_384, 1)
    background_io.read(fd, 100_000, 0)
    assert resident(fd, 16_384, 1)


def test_nothing_of_a_page_that_two_reads_share_stays(fd: int) -> None:
    for position in range(0, 100_000, 10_000):
        background_io.read(fd, 10_000, position, leaves_cache=True)
    assert not any(resident(fd, page, 4096) for page in range(0, 98_304, 4096))


def test_a_file_leaves_the_page_cache(fd: int, content: bytes) -> None:
    assert os.pread(fd, SIZE, 0) == content
    background_io.leave_cache(fd)
    assert not any(resident(fd, page, min(4096, SIZE - page)) for page in range(0, SIZE, 4096))


def test_the_end_of_the_file_ends_a_read(fd: int, content: bytes) -> None:
    for _ in range(2):
        data, _disk_s = background_io.read(fd, 5000, SIZE - 100)
        assert data == content[-100:]
    assert background_io.read(fd, 5000, SIZE)[0] == b""


def test_a_read_that_fails_is_told() -> None:
    directory = os.open("/", os.O_RDONLY)
    with pytest.raises(IsADirectoryError):
        background_io.read(directory, 10, 0)
    os.close(directory)


def test_what_is_written_is_on_its_way_no_more(tmp_path: Path) -> None:
    path = tmp_path / "new"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    pieces = [os.urandom(background_io.PIECE_BYTES), os.urandom(1000)]
    position = 0
    for piece in pieces:
        assert background_io.write(fd, memoryview(piece), position) > 0
        position += len(piece)
        assert unwritten_pages(path, 0, position) == 0
    os.close(fd)
    assert path.read_bytes() == b"".join(pieces)


def test_a_write_that_fails_is_told() -> None:
    fd = os.open("/dev/full", os.O_RDWR)
    with pytest.raises(OSError, match="No space left"):
        background_io.write(fd, memoryview(b"x"), 0)
    os.close(fd)
