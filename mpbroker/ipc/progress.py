"""The progress of log workers in opening the partitions on disk: a row of words per worker and log directory.

A log worker writes its own rows. The supervisor reads the rows for the terminal and for `ctl status`. When
the partitions of a directory are open, the rows keep the last values.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import IntEnum

from mpbroker.config.workers import MAX_LOG_DIRS
from shm.word import Words

ROW_WORDS = 8
BYTES = MAX_LOG_DIRS * ROW_WORDS * 8


class _Word(IntEnum):
    GOES_ON = 0  # 1: the directory is being opened
    PARTITIONS = 1
    PARTITIONS_DONE = 2
    BYTES = 3  # to be checked; 0: not known, or nothing
    BYTES_DONE = 4
    STARTED_NS = 5  # time.monotonic_ns()


@dataclass(frozen=True)
class Progress:
    """The progress in one log directory. `bytes`: the total to check. `goes_on`: it is not finished."""

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
        """Return the estimated time left: by bytes if bytes are left to be checked, else by partitions.

        Return None if nothing is done yet.
        """
        if self.bytes_left and self.bytes_done:
            return self.bytes_left * self.passed_s / self.bytes_done
        if self.partitions_done:
            return self.partitions_left * self.passed_s / self.partitions_done
        return None


def write_progress(words: Words, worker: int, now: Progress) -> None:
    at = _row(worker, now.log_dir)
    words.store(at + _Word.PARTITIONS, now.partitions)
    words.store(at + _Word.PARTITIONS_DONE, now.partitions_done)
    words.store(at + _Word.BYTES, now.bytes)
    words.store(at + _Word.BYTES_DONE, now.bytes_done)
    words.store(at + _Word.STARTED_NS, max(0, time.monotonic_ns() - int(now.passed_s * 1e9)))
    words.store(at + _Word.GOES_ON, int(now.goes_on))


def read_progress(words: Words, log_workers: int, log_dir: int) -> Progress:
    """Return the progress in a log directory, summed over all log workers."""
    at = [_row(worker, log_dir) for worker in range(log_workers)]

    def total(word: _Word) -> int:
        return sum(words.load(row + word) for row in at)

    began_ns = min(
        (words.load(row + _Word.STARTED_NS) for row in at if words.load(row + _Word.STARTED_NS)), default=0
    )
    return Progress(
        log_dir,
        bool(total(_Word.GOES_ON)),
        total(_Word.PARTITIONS),
        total(_Word.PARTITIONS_DONE),
        total(_Word.BYTES),
        total(_Word.BYTES_DONE),
        (time.monotonic_ns() - began_ns) / 1e9,
    )


def _row(worker: int, log_dir: int) -> int:
    return (worker * MAX_LOG_DIRS + log_dir) * ROW_WORDS
