"""Removal of log files in the log process's I/O thread, without delaying clients.

Unlinking a file drops all its pages from the page cache at once, 60 us for each MiB, and the kernel hardly
lets other threads run meanwhile: tens of milliseconds for a segment, many times when a topic is deleted. So
the pages are dropped first, in small steps with rests. A process that still has the file open reads it from
the disk.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from mpbroker.log.io.background_io import leave_cache


def remove_file(path: Path) -> None:
    """Remove a file if it is there. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        if path.is_file() and not path.is_symlink():
            _leave_cache(path)
        path.unlink()


def remove_tree(directory: Path) -> None:
    """Remove a directory; some or all of it may be gone already. Raises OSError."""
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
