"""Ends a move of log directories before any change of a file, as a kill does it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "ctypes.dlsym")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_DIRECTORY  # a directory is opened to be synced


def killed_at(move: Callable[[], object], step: int) -> bool:
    """Move in a process that is killed before its `step`th change of a file; False if it ended first."""
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
        return os.WIFSIGNALED(status)
    left = step

    def count(event: str, words: tuple[Any, ...]) -> None:
        nonlocal left
        if event in CHANGES or (event == "open" and words[2] & WRITES):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        sys.addaudithook(count)
        move()
    except BaseException:  # noqa: BLE001 - the fork exits in any case
        os._exit(1)
    os._exit(0)
