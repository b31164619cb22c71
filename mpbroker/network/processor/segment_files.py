"""Opens the segment files that answers are sent from, before the first byte of an answer is written.

The native turn has the table of open files (`files.pxd`); this module opens them. Connections and files have
separate shares of the process's descriptors, since otherwise idle connections could take all of them, and
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
    """How many descriptors of a process are for segment files, and how many for connections."""

    files: int
    connections: int


def shares(free: int) -> Descriptors:
    """Divide `free` descriptors: a quarter for files, FILES_MAX at most, and the others for connections."""
    left = max(2, free - SPARE_DESCRIPTORS)
    files = max(1, min(FILES_MAX, left // FILES_SHARE))
    return Descriptors(files, left - files)


def own_shares() -> Descriptors:
    """Divide the free descriptors of this process. Call this before its first connection."""
    return shares(descriptors_left())


class SegmentFiles:
    """Opens the segment files of one processor, at most `most` at a time."""

    def __init__(self, turn: ProcessorTurn, most: int, log: logging.Logger, counters: CounterPage) -> None:
        self.files = TurnFiles(turn)
        self.files.limit(most)
        self.turn = turn
        self.log = log
        self.counters = counters
        self.is_short = False

    def open(self) -> None:
        """Open the files that answers wait for. If one is gone or replaced, a handler repeats the fetch."""
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
        """Open a segment, closing unused files if no descriptor is left. Return its fd. Raise OSError."""
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
        """Log that a segment cannot be opened, but only once until a file can be opened again."""
        if not self.is_short:
            self.log.error(
                "segment %s cannot be opened (%s): fetches wait. Raise the limit of open files (LimitNOFILE)",
                os.fsdecode(path),
                error.strerror,
            )
        self.is_short = True
