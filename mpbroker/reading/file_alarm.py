"""Wakes a reader when somebody writes into some directories, by Linux' inotify.

An alarm is set only while no records come, so that a broker under load is not slowed by reporting each write.
For network file systems, among others, the kernel reports nothing: a reader must also look by itself.
"""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_IN_MODIFY: Final = 0x002
_IN_MOVED_FROM: Final = 0x040
_IN_MOVED_TO: Final = 0x080
_IN_CREATE: Final = 0x100
_IN_DELETE: Final = 0x200
_IN_MOVE_SELF: Final = 0x800
_IN_ONLYDIR: Final = 0x01000000
_EVENTS: Final = (
    _IN_MODIFY | _IN_MOVED_FROM | _IN_MOVED_TO | _IN_CREATE | _IN_DELETE | _IN_MOVE_SELF | _IN_ONLYDIR
)


class FileAlarm:
    """Reports writes into files of these directories, and files that come and go there."""

    def __init__(self, directories: Iterable[Path]) -> None:
        """Set the alarm. Raises OSError if a directory is gone, or the kernel watches no more of them."""
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
