"""Readers of `.index` and `.timeindex` files, also of growing files. `index.pxd` describes the entries."""
from libc.stdint cimport int32_t, int64_t, uint8_t
from posix.fcntl cimport O_CLOEXEC, O_RDONLY
from posix.unistd cimport pread

import os

from mpbroker.records.wire cimport load_u32, load_u64
from mpbroker.storage.index cimport OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

OFFSET_ENTRY = OFFSET_ENTRY_BYTES
TIME_ENTRY = TIME_ENTRY_BYTES


cdef inline bint unused(const uint8_t *entry, int size) noexcept nogil:
    cdef int i
    for i in range(size):
        if entry[i]:
            return False
    return True


cdef inline int64_t key_of(const uint8_t *entry, int size) noexcept nogil:
    """Return the key that entries are sorted by: the relative offset, or the timestamp."""
    return <int32_t>load_u32(entry) if size == OFFSET_ENTRY_BYTES else <int64_t>load_u64(entry)


cdef int64_t floor_entry(int fd, int64_t count, int size, int64_t key, uint8_t *found) noexcept nogil:
    """Copy the last entry whose key is at most `key` to `found`; return the entry's number, from 0.

    Returns -1 if there is no such entry, -2 on a read error.
    """
    cdef uint8_t entry[16]
    cdef int64_t low = 0, high = count, middle, result = -1
    while low < high:
        middle = (low + high) // 2
        if pread(fd, entry, size, middle * size) != size:
            return -2
        # Zeros after the first entry are the unused tail, thus above every key.
        if (middle > 0 and unused(entry, size)) or key_of(entry, size) > key:
            high = middle
        else:
            result = middle
            low = middle + 1
            for i in range(size):
                found[i] = entry[i]
    return result


def entry_count(int fd, int size) -> int:
    """Return the number of `size`-byte entries in a file, not counting a tail of zeros. Raises OSError."""
    cdef int64_t low = 0, high = os.fstat(fd).st_size // size, middle
    cdef uint8_t entry[16]
    while low < high:
        middle = (low + high) // 2
        read_entry(fd, middle, size, entry)
        if middle > 0 and unused(entry, size):
            high = middle
        else:
            low = middle + 1
    # A first entry of zeros is of an empty preallocated file: position 0 is never indexed.
    if low == 1 and pread(fd, entry, size, 0) == size and unused(entry, size):
        return 0
    return low


def last_offset_entry(int fd, int64_t base) -> tuple[int, int, int]:
    """Return (number of entries, last entry's offset and position) of an `.index`.

    The file must not have a tail of zeros. Returns (0, base - 1, 0) for an empty file. Raises OSError.
    """
    cdef uint8_t entry[16]
    cdef int64_t count = os.fstat(fd).st_size // OFFSET_ENTRY_BYTES
    if count == 0:
        return 0, base - 1, 0
    read_entry(fd, count - 1, OFFSET_ENTRY_BYTES, entry)
    return count, base + <int32_t>load_u32(entry), <int32_t>load_u32(entry + 4)


def last_time_entry(int fd, int64_t base) -> tuple[int, int, int]:
    """Return (number of entries, last entry's timestamp and offset) of a `.timeindex`.

    The file must not have a tail of zeros. Returns (0, -1, base) for an empty file. Raises OSError.
    """
    cdef uint8_t entry[16]
    cdef int64_t count = os.fstat(fd).st_size // TIME_ENTRY_BYTES
    if count == 0:
        return 0, -1, base
    read_entry(fd, count - 1, TIME_ENTRY_BYTES, entry)
    return count, <int64_t>load_u64(entry), base + <int32_t>load_u32(entry + 8)


cdef int read_entry(int fd, int64_t place, int size, uint8_t *entry) except -1:
    if pread(fd, entry, size, place * size) != size:
        raise OSError(f"entry {place} of an index cannot be read")
    return 0


def offset_floor(int fd, int64_t base, int64_t target) -> tuple[int, int]:
    """Return (offset, position) of the last entry whose offset is at most `target`, or (base, 0)."""
    cdef uint8_t found[16]
    cdef int64_t place
    cdef int64_t count = os.fstat(fd).st_size // OFFSET_ENTRY_BYTES
    with nogil:
        place = floor_entry(fd, count, OFFSET_ENTRY_BYTES, target - base, found)
    if place < 0 or <int32_t>load_u32(found + 4) < 0:
        return base, 0          # a negative position comes from a flipped bit
    return base + <int32_t>load_u32(found), <int32_t>load_u32(found + 4)


def offset_ceiling(int fd, int64_t base, int64_t position) -> int | None:
    """Return the offset of the first entry whose position is at least `position`, or None."""
    cdef uint8_t entry[16]
    cdef int64_t count = os.fstat(fd).st_size // OFFSET_ENTRY_BYTES, low = 0, high = count, middle, found = -1
    with nogil:
        while low < high:
            middle = (low + high) // 2
            if pread(fd, entry, OFFSET_ENTRY_BYTES, middle * OFFSET_ENTRY_BYTES) != OFFSET_ENTRY_BYTES:
                break
            if unused(entry, OFFSET_ENTRY_BYTES):
                high = middle       # the unused tail, or an empty file
            elif <int32_t>load_u32(entry + 4) >= position:
                high, found = middle, <int32_t>load_u32(entry)
            else:
                low = middle + 1
    return None if found < 0 else base + found


cdef bytes whole_file(int fd):
    """Read the whole file. Raises OSError."""
    cdef int64_t size = os.fstat(fd).st_size
    return os.pread(fd, size, 0) if size else b""


def sound_entries(int fd, int64_t base, int64_t below, int64_t size) -> tuple[int, int, int]:
    """Return (number of sound entries of an `.index`, offset and position of the last sound entry).

    The sound entries are the first ones, as long as offsets and positions rise, offsets are below `below` and
    positions below `size`. Pages that were never synced may have become zeros in a crash. Raises OSError.
    """
    cdef int64_t count = 0, offset = base - 1, position = 0, next_offset, next_position
    cdef const uint8_t *p
    cdef bytes data = whole_file(fd)
    cdef int64_t room = len(data) // OFFSET_ENTRY_BYTES
    p = data
    while count < room:
        next_offset = base + <int32_t>load_u32(p + count * OFFSET_ENTRY_BYTES)
        next_position = <int32_t>load_u32(p + count * OFFSET_ENTRY_BYTES + 4)
        if (
            next_offset <= offset or next_position <= position
            or next_offset >= below or next_position >= size
        ):
            break
        offset, position = next_offset, next_position
        count += 1
    return count, offset, position


def sound_times(int fd, int64_t base, int64_t below) -> tuple[int, int, int]:
    """Return (number of sound entries of a `.timeindex`, timestamp and offset of the last sound entry).

    The sound entries are the first ones, as long as timestamps and offsets rise and offsets are at most
    `below`. Raises OSError.
    """
    cdef int64_t count = 0, timestamp = -1, offset = base - 1, next_timestamp, next_offset
    cdef const uint8_t *p
    cdef bytes data = whole_file(fd)
    cdef int64_t room = len(data) // TIME_ENTRY_BYTES
    p = data
    while count < room:
        next_timestamp = <int64_t>load_u64(p + count * TIME_ENTRY_BYTES)
        next_offset = base + <int32_t>load_u32(p + count * TIME_ENTRY_BYTES + 8)
        if next_timestamp <= timestamp or next_offset <= offset or next_offset > below:
            break
        timestamp, offset = next_timestamp, next_offset
        count += 1
    return count, timestamp, offset


def time_floor(int fd, int64_t base, int64_t target_ms) -> tuple[int, int]:
    """Return (timestamp, offset) of the last entry whose timestamp is at most `target_ms`, or (-1, base)."""
    cdef uint8_t found[16]
    cdef int64_t place
    cdef int64_t count = os.fstat(fd).st_size // TIME_ENTRY_BYTES
    with nogil:
        place = floor_entry(fd, count, TIME_ENTRY_BYTES, target_ms, found)
    if place < 0:
        return -1, base
    return <int64_t>load_u64(found), base + <int32_t>load_u32(found + 8)


def read_offset_entries(path: Path, int64_t base) -> list[tuple[int, int]]:
    """Return all entries of an `.index` as (offset, position), for tools and tests. Raises OSError."""
    return [
        (base + int.from_bytes(e[:4], "big", signed=True), int.from_bytes(e[4:], "big"))
        for e in _entries(path, OFFSET_ENTRY_BYTES)
    ]


def read_time_entries(path: Path, int64_t base) -> list[tuple[int, int]]:
    """Return all entries of a `.timeindex` as (timestamp, offset), for tools and tests. Raises OSError."""
    return [
        (int.from_bytes(e[:8], "big", signed=True), base + int.from_bytes(e[8:], "big", signed=True))
        for e in _entries(path, TIME_ENTRY_BYTES)
    ]


def _entries(path, int size):
    cdef int fd = os.open(path, O_RDONLY | O_CLOEXEC)
    try:
        return [os.pread(fd, size, i * size) for i in range(entry_count(fd, size))]
    finally:
        os.close(fd)
