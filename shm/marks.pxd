"""Marks of processes that wait for a slot (such as one of `table`) to change: a byte per slot and waiter.

    Each slot has a row of 64 bytes. Byte w of the row belongs to waiter w, which alone writes it. The
    successor of a dead waiter clears its bytes in all rows.

A waiter sets its mark, fences and reads the slot again; the slot's writer publishes, fences and reads the
row. So either the waiter sees the new state or the writer sees the mark. Unlike messages, marks cannot
overflow, and do not get lost if a process dies.
"""
from libc.stdint cimport uint8_t, uint64_t

from shm.atomics cimport fence_full, load_byte, load_relaxed, store_byte

cdef enum:
    MARK_ROW_BYTES = 64

cdef struct MarksRef:
    uint8_t *base
    uint64_t slots

cdef inline void mark_set(MarksRef *marks, uint64_t slot, uint64_t waiter) noexcept nogil:
    store_byte(marks.base + slot * MARK_ROW_BYTES + waiter, 1)
    fence_full()

cdef inline void mark_clear(MarksRef *marks, uint64_t slot, uint64_t waiter) noexcept nogil:
    store_byte(marks.base + slot * MARK_ROW_BYTES + waiter, 0)

cdef inline uint64_t marks_waiting(MarksRef *marks, uint64_t slot) noexcept nogil:
    """Return the waiters of a slot as a bit set. The slot's writer calls this after the memory fence."""
    cdef uint8_t *row = marks.base + slot * MARK_ROW_BYTES
    cdef uint64_t waiting = 0
    cdef int word, byte
    for word in range(8):
        if load_relaxed(<uint64_t *>row + word):
            for byte in range(8):
                if load_byte(row + word * 8 + byte):
                    waiting |= (<uint64_t>1) << (word * 8 + byte)
    return waiting


cdef class WaitingMarks:
    cdef MarksRef ref
    cdef object keep
    cdef _check(self, uint64_t slot, uint64_t waiter)
