"""What log workers say of log directories and partitions: how large they are, and whether a directory works.

A record per log directory and two words per partition slot, in the public region. Sizes are as of the last
look that their log worker took (`mpbroker.log.manager.size_metrics`), and not there before each has taken
one; whether the directory works, and its name, the first log worker says at once. How many partitions are in
it, the partition table says (`partition_counts`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from mpbroker.config.workers import MAX_LOG_DIRS
from shm.word import Words

RECORD_BYTES = 1024
DIRS_BYTES = MAX_LOG_DIRS * RECORD_BYTES
# Generation of its slot << 32 | segments, then bytes.
PARTITION_BYTES = 16
_NAME_AT = 256


class DirState(IntEnum):
    NONE = 0
    WORKS = 1
    FAILED = 2


class _Word(IntEnum):
    """The first log worker's, and then one of each worker."""

    STATE = 0  # DirState
    TOTAL_BYTES = 1  # of its file system …
    USABLE_BYTES = 2  # … of these, what is left for the broker
    WORKERS = 3  # how many there are
    FIRST_WORKER = 8  # bytes of its partitions, and one more


@dataclass(frozen=True)
class DirSeen:
    """`size_bytes`: segments, as in DescribeLogDirs, of all log workers together. None: not looked at yet."""

    name: str
    failed: bool
    total_bytes: int | None
    usable_bytes: int | None
    size_bytes: int | None


class DirSizes:
    """The records of all log directories."""

    def __init__(self, block: memoryview) -> None:
        self._block = block

    def introduce(self, number: int, name: str, workers: int, *, failed: bool) -> None:
        """By the first log worker; a successor writes what is there already."""
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
        """By each log worker, of its own partitions."""
        self._words(number).store(_Word.FIRST_WORKER + worker, size_bytes + 1)

    def all(self) -> dict[int, DirSeen]:
        """By number."""
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
            )
        return found

    def _words(self, number: int) -> Words:
        at = number * RECORD_BYTES
        return Words(self._block[at : at + _NAME_AT])


def _sum(words: Words) -> int | None:
    """None until every worker has said its own."""
    sizes = [words.load(_Word.FIRST_WORKER + worker) - 1 for worker in range(words.load(_Word.WORKERS))]
    return None if min(sizes, default=-1) < 0 else sum(sizes)


class PartitionSizes:
    """By slot of the partition table; written by the slot's log worker."""

    def __init__(self, block: memoryview) -> None:
        self._words = Words(block)

    def put(self, slot: int, generation: int, segments: int, size_bytes: int) -> None:
        """A reader takes the size for what it is only between two equal looks at the word before it."""
        self._words.store(2 * slot, 0)
        self._words.store(2 * slot + 1, size_bytes)
        self._words.store(2 * slot, generation << 32 | segments)

    def get(self, slot: int, generation: int) -> tuple[int, int] | None:
        """-> segments, bytes; None: nobody has looked at that partition yet, or it is being written."""
        before = self._words.load(2 * slot)
        size_bytes = self._words.load(2 * slot + 1)
        if before >> 32 != generation or self._words.load(2 * slot) != before:
            return None
        return before & 0xFFFFFFFF, size_bytes
