"""The segment files that answers are sent from: opened before an answer's first byte is written.

The turn's table has the open files (`files.pxd`); this module makes the system calls. Connections and files
share a process's descriptors, and each has its part: otherwise idle connections could take the last one, and
fetches would fail. (Kafka opens a segment once, when it loads the log.)
"""

from __future__ import annotations

import errno
import logging
import os
from typing import NamedTuple

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.slots import file_generation
from mpbroker.network.processor.channel import CloseReason
from mpbroker.network.processor.turn import ProcessorTurn
from mpbroker.network.processor.turn_files import FILES_MAX, TurnFiles
from shm.counters import CounterPage
from shm.procfs import descriptors_left

# Descriptors for other short uses: sockets on their way, directories, settings and keys.
SPARE_DESCRIPTORS = 16
FILES_SHARE = 4
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class Descriptors(NamedTuple):
    """The descriptors of a process for segment files and for connections."""

    files: int
    connections: int


def shares(free: int) -> Descriptors:
    """Divide the descriptors that are left. Connections get those that files will never need."""
    left = max(2, free - SPARE_DESCRIPTORS)
    files = max(1, min(FILES_MAX, left // FILES_SHARE))
    return Descriptors(files, left - files)


def own_shares() -> Descriptors:
    """Divide this process's descriptors. Call this before its first connection."""
    return shares(descriptors_left())


class SegmentFiles:
    """The segment files of one processor, at most `most` of them open."""

    def __init__(self, turn: ProcessorTurn, most: int, log: logging.Logger, counters: CounterPage) -> None:
        self.files = TurnFiles(turn)
        self.files.limit(most)
        self.turn = turn
        self.log = log
        self.counters = counters
        self.is_short = False

    def open(self) -> None:
        """Open the files that answers wait for. The fetch of a deleted file goes back to a handler."""
        for channel in self.files.opening():
            try:
                self._open_for(channel)
            except Exception:
                self.log.exception(
                    "the answer of channel %d cannot be sent: its connection is closed", channel
                )
                self.counters.add(Counter.COUNT_ERRORS)
                self.turn.close_connection(channel, CloseReason.CLOSED_FAILED)

    def _open_for(self, channel: int) -> None:
        missing = self.files.missing(channel)
        if missing is None:
            return
        for slot, slot_generation, segment_base, inode, path in missing:
            try:
                fd = self._descriptor(path)
            except OSError as error:
                if error.errno in OUT_OF_DESCRIPTORS:
                    self._complain(path, error)
                    self.files.wait(channel)
                    return
                self.log.info(
                    "cannot open segment %s: %s; the fetch is repeated", os.fsdecode(path), error.strerror
                )
                self.files.ask_again(channel)
                return
            if file_generation(os.fstat(fd)) != inode:
                os.close(fd)
                self.log.info("segment %s was replaced: the fetch is repeated", os.fsdecode(path))
                self.files.ask_again(channel)
                return
            self.files.opened(slot, slot_generation, segment_base, inode, fd)
        self.files.resume(channel)

    def _descriptor(self, path: bytes) -> int:
        """Open a segment, closing unused files if descriptors are short. Raises OSError."""
        while True:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                if error.errno not in OUT_OF_DESCRIPTORS or not self.files.forget():
                    raise
            else:
                self.is_short = False
                return fd

    def _complain(self, path: bytes, error: OSError) -> None:
        """Log an error once, until a file can be opened again."""
        if not self.is_short:
            self.log.error(
                "segment %s cannot be opened (%s): fetches wait. Raise the limit of open files (LimitNOFILE)",
                os.fsdecode(path),
                error.strerror,
            )
        self.is_short = True
