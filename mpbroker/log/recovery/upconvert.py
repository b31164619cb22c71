"""Segments that brokers before 0.11 wrote become segments of record batches before anybody reads.

(Kafka reads messages of magic 0 and 1 as they are, and converted them for its clients.) All else here knows
one format. Offsets, timestamps, keys, values and codecs stay; what is not whole is taken over as it is, for
recovery to judge. The new segment takes the place of the old one as a compacted one does (`swap`), so a start
that is killed does it again, or has done it.

No checksum covers offsets. Of a segment that would reach beyond the next one nothing is done: the swap would
remove what lies in between.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from mpbroker.log.format import scan
from mpbroker.log.format.checkpoints import fsync_directory
from mpbroker.log.format.names import CLEANED_FILE_SUFFIX, SWAP_FILE_SUFFIX, segment_name
from mpbroker.log.partition.partition_log import sync
from mpbroker.log.partition.segment_swap import end_of, finish_swaps
from mpbroker.records.batch import BATCH_LENGTH_AT, LENGTH_COUNTS_FROM
from mpbroker.records.compression import Codec
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.legacy import LARGEST_DELTA, MAGIC_ENDS_AT, Entry, batch_of, entry_at, is_old
from mpbroker.records.record import LOG_APPEND_TIME, Record

if TYPE_CHECKING:
    from typing_extensions import Buffer

# What follows each other uncompressed becomes one batch of about this size.
TOGETHER_BYTES = 16 << 10
# So much is read at a time, and after so much it is said how far it is.
PIECE_BYTES = 1 << 20
SAID_EVERY_BYTES = 32 << 20
_log = logging.getLogger("mpbroker")


class OldMessages(Exception):
    """The log has messages of an old format."""


class OutOfPlace(Exception):
    """A segment of them has offsets that it cannot have."""


class _Reading:
    """A segment, in pieces: under a map a disk that cannot be read would end the process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.size = os.fstat(fd).st_size
        self._start, self._piece = 0, b""
        self._is_whole = True

    def at(self, position: int, count: int) -> memoryview:
        """So many bytes, or as many as there are. Raises OSError."""
        count = max(0, min(count, self.size - position))
        if position < self._start or position + count > self._start + len(self._piece):
            self._start, self._piece = position, self._read(position, max(count, PIECE_BYTES))
        at = position - self._start
        return memoryview(self._piece)[at : at + count]

    def _read(self, position: int, count: int) -> bytes:
        pieces: list[bytes] = []
        while count and (piece := os.pread(self._fd, count, position)):
            pieces.append(piece)
            position += len(piece)
            count -= len(piece)
        return b"".join(pieces)

    def entry_at(self, position: int) -> Entry | None:
        """None: no whole message of an old format begins there. Raises OSError."""
        head = self.at(position, MAGIC_ENDS_AT)
        if not is_old(head, 0) or not self._is_whole:
            return None
        length = _length_of(head)
        try:
            return entry_at(self.at(position, length), 0) if length <= self.size - position else None
        except CorruptBatch:
            return None

    def as_it_is(self, position: int) -> memoryview:
        """What begins there and is no message of an old format: a batch, or a piece of all that is left.
        Raises OSError.
        """
        head = self.at(position, MAGIC_ENDS_AT)
        length = _length_of(head)
        if is_old(head, 0) or not LENGTH_COUNTS_FROM < length <= self.size - position:
            # Whatever follows may begin anywhere.
            self._is_whole = False
        return self.at(position, length if self._is_whole else PIECE_BYTES)


def _length_of(head: memoryview) -> int:
    """Of a message or a batch: both have it at the same place."""
    return LENGTH_COUNTS_FROM + int.from_bytes(head[BATCH_LENGTH_AT:LENGTH_COUNTS_FROM], signed=True)


def has_old(fd: int, position: int) -> bool:
    """Whether a whole message of an old magic begins there. Raises OSError."""
    return _Reading(fd).entry_at(position) is not None


def begins_old(directory: str, base: int) -> bool:
    """Raises OSError."""
    fd = os.open(f"{directory}/{segment_name(base)}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return is_old(memoryview(os.pread(fd, MAGIC_ENDS_AT, 0)), 0) and has_old(fd, 0)
    finally:
        os.close(fd)


def upconvert(directory: Path, bases: Sequence[int], say: Callable[[str], None] = lambda _: None) -> bool:
    """Whether there was something to be done. Nothing of the partition is open. Raises OSError, OutOfPlace;
    what is done by then is done.
    """
    any_is_new = False
    for base, following in pairwise([*bases, sys.maxsize]):
        path = directory / segment_name(base)
        cleaned = path.with_name(path.name + CLEANED_FILE_SUFFIX)
        with path.open("rb") as source:
            first = _first_old(source.fileno())
            if first is None:
                continue
            say(f"converting {path}")
            _check_room(path)
            try:
                with cleaned.open("wb") as target:
                    messages = _convert(_Reading(source.fileno()), first, target, say)
                    target.flush()
                    # By which what has no timestamps grows old.
                    found = os.fstat(source.fileno())
                    os.utime(target.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))
                    sync(target.fileno())
                _check_end(path, end_of(cleaned, base), following)
            except (OSError, OutOfPlace):
                cleaned.unlink(missing_ok=True)
                raise
        _log.warning("%s has %d messages of an old format: they become record batches", path, messages)
        fsync_directory(directory)
        cleaned.rename(path.with_name(path.name + SWAP_FILE_SUFFIX))
        finish_swaps(directory)
        any_is_new = True
    return any_is_new


def _check_room(path: Path) -> None:
    """Or each try would find the disk full only when it has converted most of it. Raises OSError."""
    size, free = path.stat().st_size, shutil.disk_usage(path).free
    if free < size:
        raise OSError(
            errno.ENOSPC,
            f"{os.strerror(errno.ENOSPC)} to make record batches of its messages of an old format: "
            f"{size >> 20} MiB are needed, {free >> 20} MiB are free",
            os.fspath(path),
        )


def _check_end(path: Path, end: int, following: int) -> None:
    if end > following:
        raise OutOfPlace(
            f"{path} has messages of an old format, and ends at offset {end - 1}, behind the beginning of "
            f"the next segment, {following}. Restore the file, or delete the topic"
        )


def _first_old(fd: int) -> int | None:
    """Where the first message of an old format begins, behind batches alone. Raises OSError."""
    try:
        scan.find_offset(fd, 0, os.fstat(fd).st_size, sys.maxsize, strict=True)
    except CorruptBatch as end:
        return end.position if has_old(fd, end.position) else None
    return None


def _convert(source: _Reading, first: int, target: BinaryIO, say: Callable[[str], None]) -> int:
    """`first`: where the first message of an old format is; -> how many there were."""
    messages = said = 0
    for position in range(0, first, PIECE_BYTES):
        target.write(source.at(position, min(PIECE_BYTES, first - position)))
    for piece, count in _pieces(source, first):
        target.write(piece)
        messages += count
        if target.tell() - said >= SAID_EVERY_BYTES:
            said = target.tell()
            say(f"converting {target.name}, {messages} messages so far")
    return messages


def _pieces(source: _Reading, position: int) -> Iterator[tuple[Buffer, int]]:
    """What is written, and how many messages of an old format it was."""
    together: list[Record] = []
    size = 0
    while position < source.size:
        entry = source.entry_at(position)
        record = entry.records[0] if entry is not None and not entry.codec else None
        if together and (record is None or size > TOGETHER_BYTES or not _fits(together, record)):
            yield batch_of(together, Codec.NONE), len(together)
            together, size = [], 0
        if entry is None:
            piece = source.as_it_is(position)
            yield piece, 0
            position += len(piece)
            continue
        if record is None:
            yield batch_of(entry.records, entry.codec), len(entry.records)
        else:
            together.append(record)
            size += entry.length
        position += entry.length
    if together:
        yield batch_of(together, Codec.NONE), len(together)


def _fits(together: Sequence[Record], record: Record) -> bool:
    """Whether it may be in one batch with them. Offsets that are out of order are for recovery to find."""
    first, last = together[0], together[-1]
    if record.timestamp_type != first.timestamp_type:
        return False
    if not last.offset < record.offset <= first.offset + LARGEST_DELTA:
        return False
    return record.timestamp_type != LOG_APPEND_TIME or record.timestamp == first.timestamp
