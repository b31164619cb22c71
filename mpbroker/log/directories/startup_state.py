"""Facts that the first log worker found out about the last run, for the others and for successors.

The first worker alone puts in order what that run left (`LogDirectory.take_over`); the others begin when it
has. What it says here outlives it, but not the broker. So a worker that finds it said is the successor of
one that died, or begins beside one that has done all of it. A first worker that is killed before it says so
leaves nothing to undo: nobody has appended anything, and its successor does the same again.
"""

from __future__ import annotations

from collections.abc import Iterable

from mpbroker.ipc.topology import CLEAN_DIRS, IS_TAKEN_OVER
from mpbroker.log.directories.log_directory import LogDirectory
from shm.word import Words


class StartupState:
    """The take-over as far as the first worker has come. `words`: the shared `taken_over`, written by it."""

    def __init__(self, words: Words) -> None:
        self._words = words

    @property
    def is_done(self) -> bool:
        return self._words.load(IS_TAKEN_OVER) != 0

    def done(self, log_dirs: Iterable[LogDirectory]) -> None:
        clean = sum(1 << log_dir.number for log_dir in log_dirs if log_dir.clean)
        self._words.store(CLEAN_DIRS, clean)
        self._words.store(IS_TAKEN_OVER, 1)

    def was_clean(self, log_dir: LogDirectory) -> bool:
        """Tell whether the last run closed the directory cleanly."""
        return bool(self._words.load(CLEAN_DIRS) >> log_dir.number & 1)
