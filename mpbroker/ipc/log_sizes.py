"""Sizes of log directories and partitions, and states of log directories, as the log workers measure them.

The public region has RECORD_BYTES for each log directory and two words for each partition slot. The log
workers measure sizes from time to time (`mpbroker.log.manager.size_metrics`). A directory has no size until
every log worker has measured its own partitions. Log worker 0 writes a directory's name and state when it
starts. The number of partitions in a directory is computed from the partition table (`partition_counts`).
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import IntEnum

from mpbroker.config.workers import MAX_LOG_DIRS
from shm.word import Words

RECORD_BYTES = 1024
DIRS_BYTES = MAX_LOG_DIRS * RECORD_BYTES
# Two words: slot generation << 32 | number of segments, and bytes.
PARTITION_BYTES = 16
_NAME_AT = 320


class DirState(IntEnum):
    NONE = 0
    WORKS = 1
    FAILED = 2


class _Word(IntEnum):
    """Indices of a directory's words. FIRST_… is log worker 0's word; the other workers' words follow it."""

    STATE = 0  # a DirState
    TOTAL_BYTES = 1  # size of its file system …
    USABLE_BYTES = 2  # … and the part of it that is left for the broker
    WORKERS = 3  # number of log workers
    FIRST_WORKER = 8  # bytes of its partitions plus one; 0: not measured
    FIRST_ERROR = 16  # errno for which it refuses produces, or that took the directory offline; 0: none
    FIRST_WAIT = 24  # since when a sync has not ended (CLOCK_MONOTONIC, ns); 0: none takes long
    FIRST_KEPT = 32  # bytes of its commit journal and its reserve


@dataclass(frozen=True)
class DirSeen:
    """The state of a log directory. A value of None has not been measured yet.

    `size_bytes` is the size of all segments, as in DescribeLogDirs. `error` is the errno of the error that
    makes a log worker refuse produces or took the directory offline; 0 if there is none. `waits_since_ns` is
    when a slow sync began that has not ended (CLOCK_MONOTONIC), or 0. `kept_bytes` is the size of commit
    journals and reserves.
    """

    name: str
    failed: bool
    total_bytes: int | None
    usable_bytes: int | None
    size_bytes: int | None
    error: int = 0
    waits_since_ns: int = 0
    kept_bytes: int = 0


class DirSizes:
    """The sizes and states of all log directories, in shared memory."""

    def __init__(self, block: memoryview) -> None:
        self._block = block

    def introduce(self, number: int, name: str, workers: int, *, failed: bool) -> None:
        """Write a directory's name and state. Only log worker 0 calls this.

        A restarted worker writes the same values again.
        """
        text = name.encode("utf-8", "surrogateescape")[: RECORD_BYTES - _NAME_AT]
        at = number * RECORD_BYTES + _NAME_AT
        self._block[at : at + len(text)] = text
        self._words(number).store(_Word.WORKERS, workers)
        self._words(number).store(_Word.STATE, DirState.FAILED if failed else DirState.WORKS)

    def put_volume(self, number: int, total_bytes: int, usable_bytes: int) -> None:
        words = self._words(number)
        words.store(_Word.TOTAL_BYTES, total_bytes)
        words.store(_Word.USABLE_BYTES, usable_bytes)

    def put_size(self, number: int, worker: int, size_bytes: int) -> None:
        """Write the total size of the partitions that one log worker has in a directory."""
        self._words(number).store(_Word.FIRST_WORKER + worker, size_bytes + 1)

    def put_kept(self, number: int, worker: int, kept_bytes: int) -> None:
        """Write the size of the commit journal and the reserve that one log worker has in a directory."""
        self._words(number).store(_Word.FIRST_KEPT + worker, kept_bytes)

    def put_error(self, number: int, worker: int, error: int) -> None:
        """Write the errno that makes a log worker refuse produces to a directory; 0 if it accepts them."""
        self._words(number).store(_Word.FIRST_ERROR + worker, error)

    def put_wait(self, number: int, worker: int, since_ns: int) -> None:
        """Write when the slow sync of a log worker began (CLOCK_MONOTONIC); 0 if no sync is slow."""
        self._words(number).store(_Word.FIRST_WAIT + worker, since_ns)

    def all(self) -> dict[int, DirSeen]:
        """Return the state of each introduced log directory, by the directory's number."""
        found = {}
        for number in range(MAX_LOG_DIRS):
            words = self._words(number)
            state = words.load(_Word.STATE)
            if state == DirState.NONE:
                continue
            at = number * RECORD_BYTES
            name = bytes(self._block[at + _NAME_AT : at + RECORD_BYTES]).rstrip(b"\0")
            found[number] = DirSeen(
                name.decode("utf-8", "backslashreplace"),
                state == DirState.FAILED,
                words.load(_Word.TOTAL_BYTES) or None,
                words.load(_Word.USABLE_BYTES) if words.load(_Word.TOTAL_BYTES) else None,
                _sum(words),
                # Other workers have a failure as EIO: the one that met it has the real errno.
                next(
                    (code for code in sorted(_each(words, _Word.FIRST_ERROR), key=errno.EIO.__eq__) if code),
                    0,
                ),
                min((since for since in _each(words, _Word.FIRST_WAIT) if since), default=0),
                sum(_each(words, _Word.FIRST_KEPT)),
            )
        return found

    def _words(self, number: int) -> Words:
        at = number * RECORD_BYTES
        return Words(self._block[at : at + _NAME_AT])


def _sum(words: Words) -> int | None:
    """Return the size of all workers' partitions in bytes, None until every worker has written its size."""
    sizes = [size - 1 for size in _each(words, _Word.FIRST_WORKER)]
    return None if min(sizes, default=-1) < 0 else sum(sizes)


def _each(words: Words, first: int) -> list[int]:
    """Return the words of all log workers, from the word of worker 0 at index `first` on."""
    return [words.load(first + worker) for worker in range(words.load(_Word.WORKERS))]


class PartitionSizes:
    """Sizes of partitions by slot of the partition table. The log worker of a slot writes its size."""

    def __init__(self, block: memoryview) -> None:
        self._words = Words(block)

    def put(self, slot: int, generation: int, segments: int, size_bytes: int) -> None:
        """Write a partition's size. The generation is 0 during the write, so that readers notice it."""
        self._words.store(2 * slot, 0)
        self._words.store(2 * slot + 1, size_bytes)
        self._words.store(2 * slot, generation << 32 | segments)

    def get(self, slot: int, generation: int) -> tuple[int, int] | None:
        """Return (number of segments, bytes); None if the partition is not measured or is being written."""
        before = self._words.load(2 * slot)
        size_bytes = self._words.load(2 * slot + 1)
        if before >> 32 != generation or self._words.load(2 * slot) != before:
            return None
        return before & 0xFFFFFFFF, size_bytes
