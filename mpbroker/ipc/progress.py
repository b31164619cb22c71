"""How far the log process is with opening what it found: a row of words per log directory, its own.

The supervisor reads them for the terminal and for `ctl status`. A row means something while its directory is
at it, and afterwards says what it came to.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import IntEnum

from shm.word import Words

MOST_DIRS = 64
ROW_WORDS = 8
BYTES = MOST_DIRS * ROW_WORDS * 8


class _Word(IntEnum):
    GOES_ON = 0  # 1: it is at it
    PARTITIONS = 1
    PARTITIONS_DONE = 2
    BYTES = 3  # to be checked; 0: not known, or nothing
    BYTES_DONE = 4
    STARTED_NS = 5  # time.monotonic_ns()


@dataclass(frozen=True)
class Progress:
    """Of one log directory."""

    log_dir: int
    goes_on: bool
    partitions: int
    partitions_done: int
    bytes: int
    bytes_done: int
    passed_s: float

    @property
    def partitions_left(self) -> int:
        return max(0, self.partitions - self.partitions_done)

    @property
    def bytes_left(self) -> int:
        return max(0, self.bytes - self.bytes_done)

    @property
    def seconds_left(self) -> float | None:
        """As it went so far: by bytes where there are any to be checked; None before there is anything."""
        if self.bytes_left and self.bytes_done:
            return self.bytes_left * self.passed_s / self.bytes_done
        if self.partitions_done:
            return self.partitions_left * self.passed_s / self.partitions_done
        return None


def write_progress(words: Words, log_dir: int, now: Progress) -> None:
    at = log_dir * ROW_WORDS
    words.store(at + _Word.PARTITIONS, now.partitions)
    words.store(at + _Word.PARTITIONS_DONE, now.partitions_done)
    words.store(at + _Word.BYTES, now.bytes)
    words.store(at + _Word.BYTES_DONE, now.bytes_done)
    words.store(at + _Word.STARTED_NS, max(0, time.monotonic_ns() - int(now.passed_s * 1e9)))
    words.store(at + _Word.GOES_ON, int(now.goes_on))


def read_progress(words: Words, log_dir: int) -> Progress:
    row = [words.load(log_dir * ROW_WORDS + word) for word in _Word]
    passed_s = (time.monotonic_ns() - row[_Word.STARTED_NS]) / 1e9
    return Progress(log_dir, bool(row[0]), row[1], row[2], row[3], row[4], passed_s)
