"""Wakes a reader when files in some directories are written, by Linux' inotify.

An alarm is set only while no records come, so that a broker under load is not slowed by reporting each write.
The kernel reports nothing for some file systems, such as those of a network: a reader must poll, too.
"""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Iterable
from pathlib import Path
from typing import Final

# IN_MODIFY, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE, IN_MOVE_SELF; IN_ONLYDIR (inotify.h).
_EVENTS: Final = 0x002 | 0x040 | 0x080 | 0x100 | 0x200 | 0x800 | 0x01000000


class FileAlarm:
    """Reports writes into files of these directories, and files that come and go there."""

    def __init__(self, directories: Iterable[Path]) -> None:
        """Set the alarm. Raises OSError if a directory does not exist or the kernel's limit is reached."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = _checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        try:
            for one in directories:
                _checked(self._libc.inotify_add_watch(self._fd, os.fsencode(one), _EVENTS), one)
        except OSError:
            self.close()
            raise

    def wait(self, timeout_s: float) -> bool:
        """Wait for a write, or for the timeout. Return whether there was a write since the alarm was set."""
        return bool(self._poll.poll(timeout_s * 1000))

    def close(self) -> None:
        """End the watch."""
        os.close(self._fd)


def _checked(result: int, path: Path | None = None) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), None if path is None else str(path))
    return result
