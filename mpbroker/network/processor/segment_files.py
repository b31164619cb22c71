"""The segment files that answers are sent from: opened when one needs them, before its first byte is written.

What is open is in the turn's table (`files.pxi`); here is what asks the system. Connections and files share
a process's descriptors, so each has its part of them: otherwise idle connections could take the last, and
nobody could fetch. (Kafka opens a segment once, when it loads the log.)
"""

from __future__ import annotations

import errno
import logging
import os
import resource
from pathlib import Path
from typing import NamedTuple

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.slots import file_generation
from mpbroker.network.processor.channel import CloseReason
from mpbroker.network.processor.turn import MOST_FILES, ProcessorTurn, TurnFiles
from shm.counters import CounterPage

# What a process needs beside them for moments: sockets on their way, directories, settings and keys.
SPARE_DESCRIPTORS = 16
FILES_SHARE = 4
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class Descriptors(NamedTuple):
    """How many of a process's descriptors are for segment files and for connections."""

    files: int
    connections: int


def shares(limit: int, in_use: int) -> Descriptors:
    """Of the descriptors that are left; connections get what files will never need."""
    left = max(2, limit - in_use - SPARE_DESCRIPTORS)
    files = max(1, min(MOST_FILES, left // FILES_SHARE))
    return Descriptors(files, left - files)


def own_shares() -> Descriptors:
    """Of this process, as it is now: before its first connection."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        limit = 1 << 30
    return shares(limit, sum(1 for _ in Path("/proc/self/fd").iterdir()))


class SegmentFiles:
    """One processor's; `most` files may be open."""

    def __init__(self, turn: ProcessorTurn, most: int, log: logging.Logger, counters: CounterPage) -> None:
        self.files = TurnFiles(turn)
        self.files.limit(most)
        self.turn = turn
        self.log = log
        self.counters = counters
        self.is_short = False

    def open(self) -> None:
        """Opens what answers wait for; what is not there any more goes back to a handler."""
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
                    "segment %s is gone (%s): the fetch is answered anew", os.fsdecode(path), error.strerror
                )
                self.files.ask_again(channel)
                return
            if file_generation(os.fstat(fd)) != inode:
                os.close(fd)
                self.log.info("segment %s was replaced: the fetch is answered anew", os.fsdecode(path))
                self.files.ask_again(channel)
                return
            self.files.opened(slot, slot_generation, segment_base, inode, fd)
        self.files.resume(channel)

    def _descriptor(self, path: bytes) -> int:
        """Files that nobody needs now make room for it."""
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
        """Once, until one can be opened again."""
        if not self.is_short:
            self.log.error(
                "segment %s cannot be opened (%s): fetches wait. Raise the limit of open files (LimitNOFILE)",
                os.fsdecode(path),
                error.strerror,
            )
        self.is_short = True
