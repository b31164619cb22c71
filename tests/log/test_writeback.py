"""What the journal has goes to its segment piece by piece, long before the kernel would begin with that."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.log.node import Journaled
from tests.log.rig import ensure
from tests.polling import until

pytestmark = pytest.mark.usefixtures("tidy")
CACHESTAT = 451
PIECE_BYTES = 1 << 18


class _Range(ctypes.Structure):
    _fields_ = (("from", ctypes.c_uint64), ("bytes", ctypes.c_uint64))


class _Cached(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recent")
    )


def unwritten_pages(path: Path, begin: int, count: int) -> int:
    """In the page cache and not on the disk, of so many bytes of a file (Linux 6.5: cachestat)."""
    libc, found = ctypes.CDLL(None, use_errno=True), _Cached()
    with path.open("rb") as file:
        wanted = _Range(begin, count)
        if libc.syscall(CACHESTAT, file.fileno(), ctypes.byref(wanted), ctypes.byref(found), 0):
            code = ctypes.get_errno()
            if code == errno.ENOSYS:
                pytest.skip("this kernel does not tell what of a file is dirty")
            raise OSError(code, os.strerror(code))
    return int(found.dirty + found.writeback)


def test_whole_pieces_are_written_back_and_the_rest_waits(
    journaled: Callable[..., Journaled], batch: Callable[..., bytearray]
) -> None:
    node = journaled()
    node.boot(log_journal_bytes=16 << 20)
    (target,) = node.open(ensure(1))
    data = batch(size=30_000)
    count = (2 * PIECE_BYTES + PIECE_BYTES // 2) // len(data)
    assert node.produce(target, data, 1) == [0]
    for _ in range(count):
        assert node.produce(target, data) == [0]
    until(lambda: not unwritten_pages(node.segment(), 0, 2 * PIECE_BYTES), "whole pieces are written back")
    assert unwritten_pages(node.segment(), 2 * PIECE_BYTES, PIECE_BYTES), "whoever wrote it took all"
