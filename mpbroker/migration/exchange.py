"""Exchanges the names of two directories, where a move needs that."""

from __future__ import annotations

import errno
from pathlib import Path

from mpbroker.migration.errors import CannotMove
from mpbroker.storage.exchange import exchange_names


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
    try:
        exchange_names(one, other)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise CannotMove(
                f"the file system of {one.parent} cannot exchange two directories in one step: copy the log "
                "directories to ext4, XFS, btrfs or tmpfs first"
            ) from error
        raise
