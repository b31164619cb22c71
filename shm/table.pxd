"""Slots of fixed size that one process writes and any number of processes read, without locks.

    0     version    grows by one per write; its low bit names the valid copy
    64    copy 0     payload_bytes
    ...   copy 1     payload_bytes, starting on a cache line

The writer fills the other copy and then stores the new version with release order. A reader reads the valid
copy, loads the version again, and retries if it has changed, up to READ_TRIES times. A writer killed at any
instruction leaves the last consistent payload, so readers never wait for the writer.
"""
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy

from shm.atomics cimport fence_acquire, fence_release, load_acquire, load_relaxed, store_release

cdef enum:
    READ_TRIES = 1000

cdef struct TableRef:
    uint8_t *base
    uint64_t slots
    uint64_t payload_bytes
    uint64_t stride

cdef inline uint64_t copy_stride(uint64_t payload_bytes) noexcept nogil:
    return (payload_bytes + 63) & ~(<uint64_t>63)

cdef inline uint8_t *slot_copy(TableRef *table, uint64_t slot, uint64_t which) noexcept nogil:
    return table.base + slot * table.stride + 64 + (which & 1) * copy_stride(table.payload_bytes)

cdef inline uint64_t *slot_version(TableRef *table, uint64_t slot) noexcept nogil:
    return <uint64_t *>(table.base + slot * table.stride)

cdef inline void table_write(TableRef *table, uint64_t slot, const void *payload) noexcept nogil:
    cdef uint64_t *version = slot_version(table, slot)
    cdef uint64_t now = load_relaxed(version)
    # The payload must not become visible before the version that made this copy the stale one.
    fence_release()
    memcpy(slot_copy(table, slot, now + 1), payload, table.payload_bytes)
    store_release(version, now + 1)

cdef inline uint64_t table_read(TableRef *table, uint64_t slot, void *payload) noexcept nogil:
    """Copy the payload and return its version + 1; return 0 if it changed during all READ_TRIES tries."""
    cdef uint64_t *version = slot_version(table, slot)
    cdef uint64_t before
    cdef int _
    for _ in range(READ_TRIES):
        before = load_acquire(version)
        memcpy(payload, slot_copy(table, slot, before), table.payload_bytes)
        fence_acquire()
        if load_relaxed(version) == before:
            return before + 1
    return 0


cdef class SlotTable:
    cdef TableRef ref
    cdef bint readonly
    cdef object keep
