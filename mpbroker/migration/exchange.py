"""Exchanges the names of two directories in one atomic step (renameat2)."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Final

from mpbroker.migration.errors import CannotMove
from mpbroker.storage.checkpoints import fsync_directory

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


def check_exchange(one: Path, other: Path) -> None:
    """Check that the file system can exchange names: make, exchange and remove directories `one` and `other`.

    Raises CannotMove if the file system cannot do that, OSError.
    """
    try:
        one.mkdir(exist_ok=True)
        other.mkdir(exist_ok=True)
        exchange(one, other)
    finally:
        for path in (one, other):
            if path.exists():
                path.rmdir()


def exchange(one: Path, other: Path) -> None:
    """Exchange the names of two directories with the same parent. The exchange is durable on return.

    Raises CannotMove if the file system cannot do that, OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        code = ctypes.get_errno()
        if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise CannotMove(
                f"the file system of {one.parent} cannot exchange two directories in one step: copy the log "
                "directories to ext4, XFS, btrfs or tmpfs first"
            )
        raise OSError(code, os.strerror(code), str(one))
    fsync_directory(one.parent)
