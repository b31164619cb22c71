"""Exchanges two names of a file system in one atomic step (renameat2)."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

from mpbroker.storage.checkpoints import fsync_directory

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


def exchange_names(one: Path, other: Path) -> None:
    """Exchange the names of two files or directories with the same parent, durably.

    Raises OSError, with EINVAL, ENOSYS or ENOTSUP if the file system cannot do that.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(one))
    fsync_directory(one.parent)
