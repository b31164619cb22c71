"""Unnamed files for a partition's next segment: a roll only names them.

Creating a file takes a file system some ten times as long as naming one, and a roll delays all partitions. An
unnamed file (O_TMPFILE) disappears with the process that has it open, also after a crash.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from mpbroker.storage import names
from mpbroker.storage.checkpoints import write_all

# The log file comes last: it makes the segment.
_SUFFIXES = (names.SNAPSHOT_SUFFIX, names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX, names.LOG_SUFFIX)
_UNNAMED = os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC


class Begun(NamedTuple):
    """A segment just begun. `segment`: the fds of its .log, .index and .timeindex.

    `to_sync`: the fds of the producer snapshot and of the directory.
    """

    segment: tuple[int, int, int]
    to_sync: list[int]


class Prepared:
    """A segment's unnamed files. Their directory may be renamed. `__del__` closes unused files."""

    __slots__ = ("_fds", "directory")

    def __init__(self, directory: Path) -> None:
        """Create unnamed files for a segment and its producer snapshot in `directory`. Raises OSError."""
        self.directory = directory
        self._fds: list[int] = []
        self._fds.append(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for _ in _SUFFIXES:
            self._fds.append(os.open(".", _UNNAMED, 0o644, dir_fd=self._fds[0]))

    def __del__(self) -> None:
        for fd in self._fds:
            os.close(fd)

    def begin(self, base: int, snapshot: bytes) -> Begun | None:
        """Name the files as the segment of `base`; None if a name is taken or the disk is full.

        In that case no file is named; the caller creates the files itself and gets the error. Raises
        OSError if names cannot be removed again.
        """
        directory, *files = self._fds
        given: list[str] = []
        try:
            write_all(files[0], snapshot)
            for fd, suffix in zip(files, _SUFFIXES, strict=True):
                name = names.segment_name(base, suffix)
                os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=directory)
                given.append(name)
        except OSError:
            for name in reversed(given):
                os.unlink(name, dir_fd=directory)
            return None
        self._fds = []
        snapshot_fd, index, time_index, log = files
        return Begun((log, index, time_index), [snapshot_fd, directory])
