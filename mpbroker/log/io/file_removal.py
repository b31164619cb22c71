"""Removing files of logs, in the helper thread of the log process, beside all that clients wait for.

Unlinking a file takes its pages out of the page cache in one go, 60 us for each MiB, and the kernel hardly
lets anybody in between: tens of milliseconds for a segment, again and again where a topic goes. So the pages
go first, in small steps with rests. Who still has the file open reads it on, from the disk.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from mpbroker.log.io.background_io import leave_cache


def remove_file(path: Path) -> None:
    """Raises OSError, but not where it is gone already."""
    with contextlib.suppress(FileNotFoundError):
        if path.is_file() and not path.is_symlink():
            _leave_cache(path)
        path.unlink()


def remove_tree(directory: Path) -> None:
    """Whoever removed some or all of it before us did no harm. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        for path in list(directory.iterdir()):
            if not path.is_dir() or path.is_symlink():
                remove_file(path)
        shutil.rmtree(directory)


def _leave_cache(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        leave_cache(fd)
    finally:
        os.close(fd)
