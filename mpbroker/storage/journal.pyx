"""Reads and resets the file of a commit journal, for a starting broker. `journal.h` has the layout."""
import errno
import os
import re
from typing import NamedTuple, TYPE_CHECKING
from cpython.bytearray cimport PyByteArray_Resize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset
from posix.unistd cimport close

from mpbroker.storage.disk_errors import NO_ROOM

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = JOURNAL_NAME.decode()  # type: str
_OF_A_WORKER = re.compile(re.escape(NAME) + r"(?:\.([1-9]\d*))?")
RING_AT = JOURNAL_RING_AT
BLOCK_BYTES = JOURNAL_BLOCK_BYTES
cdef enum:
    LOOKED_AT_BYTES = 1 << 20


# The bytes of one segment that a round made durable; `end_offset` is after the last record in them.
class Extent(NamedTuple):
    topic_id: bytes
    partition: int
    segment_base: int
    position: int
    end_offset: int
    data: memoryview


# The bytes that one round wrote. `is_first`: its process had written no record before, so it proves nothing
# about the one in front of it.
class Record(NamedTuple):
    is_first: bool
    extents: list[Extent]


class JournalDamaged(Exception):
    """Raised when a file is not a journal, or neither of its heads is whole."""


def name_of(int worker) -> str:
    """Return the file name of a log worker's journal. Worker 0's file name has no number."""
    return f"{NAME}.{worker}" if worker else NAME


def worker_of(str name) -> int | None:
    """Return the number of the worker whose journal has this file name; None for any other file name."""
    found = _OF_A_WORKER.fullmatch(name)
    return int(found[1] or 0) if found else None


def make(int fd, int64_t ring_bytes) -> None:
    """Write the first head of a journal into a file of zeros, without a sync. Raises OSError."""
    cdef int error = journal_put_head(fd, 1, fresh_nonce(), ring_bytes, 0)
    if error:
        raise OSError(error, os.strerror(error))


cdef uint64_t fresh_nonce():
    return int.from_bytes(os.urandom(8), "little") | 1


cdef class JournalFile:
    """An open journal file; owns the fd."""

    def __cinit__(self, *_) -> None:
        self.fd = self.write_fd = -1

    def __dealloc__(self) -> None:
        if self.write_fd != self.fd:
            close(self.write_fd)
        if self.fd >= 0:
            close(self.fd)

    def __init__(self, path: Path) -> None:
        """Open the journal at `path` and read its heads.

        Raises FileNotFoundError, OSError, JournalDamaged.
        """
        cdef JournalHead found
        cdef int error
        self.path = path
        self.fd = self.write_fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        memset(&self.head, 0, sizeof(self.head))
        size = os.fstat(self.fd).st_size
        for at in (0, JOURNAL_HEAD_BYTES):
            if size < JOURNAL_RING_AT:
                break
            error = journal_pread(self.fd, <uint8_t *>&found, sizeof(found), at)
            if error:
                self.close()
                raise OSError(error, os.strerror(error), str(path))
            if journal_head_valid(&found) and found.version > self.head.version:
                self.head = found
        if self.head.version == 0 or size < <int64_t>(JOURNAL_RING_AT + self.head.ring_bytes):
            self.close()
            raise JournalDamaged(f"{path} is not a commit journal, or it is damaged")

    @property
    def ring_bytes(self) -> int:
        return self.head.ring_bytes

    @property
    def version(self) -> int:
        return self.head.version

    @property
    def nonce(self) -> int:
        return self.head.nonce

    @property
    def start(self) -> int:
        return self.head.start

    def records(self) -> Iterator[Record]:
        """Yield the records, oldest first, up to the first record that is not whole.

        Raises OSError, JournalDamaged.
        """
        cdef JournalRecord *found
        cdef uint64_t sequence = self.head.start
        while True:
            record = bytearray()
            found = self.next_record(record, sequence)
            if found == NULL:
                self.refuse_later(sequence)
                return
            sequence += found.bytes
            yield record_of(record)

    def survey(self) -> tuple[int, list[tuple[bytes, int, int]]]:
        """Read all records; return the next record's sequence, and the segments that the records name.

        A segment is (topic id, partition, base offset). Raises OSError, JournalDamaged.
        """
        cdef JournalRecord *found
        cdef const JournalExtent *extent
        cdef uint64_t sequence = self.head.start
        cdef uint32_t i
        record = bytearray()
        named = set()
        while True:
            found = self.next_record(record, sequence)
            if found == NULL:
                self.refuse_later(sequence)
                return sequence, sorted(named)
            extent = <const JournalExtent *>(found + 1)
            for i in range(found.extents):
                named.add((
                    (<const char *>extent[i].topic_id)[:16], extent[i].partition, extent[i].segment_base))
            sequence += found.bytes

    cdef JournalRecord *next_record(self, bytearray room, uint64_t sequence) except? NULL:
        """Read the record at `sequence` into `room`; return NULL if there is no whole record."""
        # In a ring that is full to the last byte, the next record would be the first one again.
        if sequence - self.head.start >= self.head.ring_bytes:
            return NULL
        return self.record_at(room, sequence)

    cdef int refuse_later(self, uint64_t sequence) except -1:
        """Raise JournalDamaged if a whole record follows the record at `sequence`, which is not whole.

        The last record may be torn if a crash interrupted its commit round. A later whole record proves that
        the round was finished: then the record at `sequence` is not torn but damaged.
        """
        cdef uint64_t at, inner
        cdef const JournalRecord *found
        cdef const uint8_t *p
        cdef bytes piece
        room = bytearray()
        for at in range(0, self.head.ring_bytes, LOOKED_AT_BYTES):
            piece = os.pread(
                self.fd, min(<uint64_t>LOOKED_AT_BYTES, self.head.ring_bytes - at), JOURNAL_RING_AT + at)
            p = piece
            for inner in range(0, len(piece), JOURNAL_BLOCK_BYTES):
                found = <const JournalRecord *>(p + inner)
                if (found.nonce != self.head.nonce or found.sequence <= sequence
                        or found.sequence % self.head.ring_bytes != at + inner):
                    continue
                if self.record_at(room, found.sequence) != NULL:
                    place = JOURNAL_RING_AT + sequence % self.head.ring_bytes
                    raise JournalDamaged(
                        f"{self.path} is damaged at byte {place}: the record there is not whole, "
                        f"and one behind it is")
        return 0

    cdef JournalRecord *record_at(self, bytearray room, uint64_t sequence) except? NULL:
        """Read the record at `sequence` into `room`; return NULL if it has another nonce or is not whole."""
        cdef JournalRecord found
        cdef uint8_t *p
        self.get(<uint8_t *>&found, sizeof(found), sequence)
        if not journal_expected(&found, self.head.nonce, sequence, self.head.ring_bytes):
            return NULL
        if PyByteArray_Resize(room, found.bytes) < 0:
            return NULL
        p = room
        self.get(p, found.bytes, sequence)
        return <JournalRecord *>p if journal_intact(p, found.bytes) else NULL

    cdef int get(self, uint8_t *to, uint64_t count, uint64_t sequence) except -1:
        cdef int error = journal_get(self.fd, to, count, sequence, self.head.ring_bytes)
        if error:
            raise OSError(error, os.strerror(error), str(self.path))
        return 0

    def reset(self) -> None:
        """Discard every record, durably. Raises OSError.

        This rewrites both heads. If one head is damaged later, the other must not restore the old records.
        """
        cdef uint64_t nonce = fresh_nonce()
        for _ in range(2):
            self.put_head(self.head.version + 1, nonce)

    cdef int put_head(self, uint64_t version, uint64_t nonce) except -1:
        cdef int error
        error = journal_put_head(self.fd, version, nonce, self.head.ring_bytes, 0)
        if error:
            raise OSError(error, os.strerror(error), str(self.path))
        os.fdatasync(self.fd)
        error = journal_pread(
            self.fd, <uint8_t *>&self.head, sizeof(self.head), (version & 1) * JOURNAL_HEAD_BYTES)
        if error:
            raise OSError(error, os.strerror(error), str(self.path))
        return 0

    def write_directly(self) -> bool:
        """Use direct I/O for later commit rounds, which saves a copy and makes syncs faster.

        Return False if the file system or the disk does not support direct I/O in blocks of BLOCK_BYTES.
        Raises OSError.
        """
        cdef int fd, failed
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return False
        # A file system that opens the file that way may still refuse the first write. Try one: a head that
        # is the same as the last.
        failed = journal_put_head(
            fd, self.head.version + 1, self.head.nonce, self.head.ring_bytes, self.head.start)
        if failed == errno.EINVAL:
            os.close(fd)
            return False
        self.write_fd = fd
        if failed and failed not in NO_ROOM:
            raise OSError(failed, os.strerror(failed), str(self.path))
        if not failed:
            # Sync this head before the last one is overwritten.
            os.fdatasync(fd)
            self.head.version += 1
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return True

    def close(self) -> None:
        if self.fd >= 0:
            if self.write_fd != self.fd:
                os.close(self.write_fd)
            os.close(self.fd)
            self.fd = self.write_fd = -1


cdef object record_of(bytearray record):
    cdef const uint8_t *p = record
    cdef const JournalRecord *head = <const JournalRecord *>p
    cdef const JournalExtent *extent
    cdef uint64_t at = sizeof(JournalRecord) + head.extents * sizeof(JournalExtent)
    cdef uint32_t i
    found = []
    data = memoryview(record)
    for i in range(head.extents):
        extent = <const JournalExtent *>(p + sizeof(JournalRecord) + i * sizeof(JournalExtent))
        found.append(Extent(
            (<const char *>extent.topic_id)[:16], extent.partition, extent.segment_base, extent.position,
            extent.end_offset,
            data[at:at + extent.bytes]))
        at += extent.bytes
    return Record(head.first != 0, found)
