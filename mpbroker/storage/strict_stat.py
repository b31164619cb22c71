"""Tests for existence that raise on a failing disk.

From Python 3.14 on, Path.exists and Path.is_dir return False for any error. A path that cannot be checked
must not count as missing if something would then be created, overwritten or trusted.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

# Includes a link that leads nowhere, or to itself.
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError as error:
        if error.errno in _MISSING:
            return None
        raise


def is_there(path: Path) -> bool:
    """Return whether a path exists. Raises OSError if it cannot be checked."""
    return _status(path) is not None


def is_directory(path: Path) -> bool:
    """Return whether a path is a directory. Raises OSError if it cannot be checked."""
    status = _status(path)
    return status is not None and stat.S_ISDIR(status.st_mode)
