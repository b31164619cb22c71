"""Whether something is there, on a disk that may fail.

From Python 3.14 on Path.exists and Path.is_dir say no to whatever fails. What cannot be looked at must not be
taken for missing where something would be made anew, overwritten or believed because of it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

# Also a link that leads nowhere, or to itself.
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError as error:
        if error.errno in _MISSING:
            return None
        raise


def is_there(path: Path) -> bool:
    """Raises OSError."""
    return _status(path) is not None


def is_directory(path: Path) -> bool:
    """Raises OSError."""
    status = _status(path)
    return status is not None and stat.S_ISDIR(status.st_mode)
