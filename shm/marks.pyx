"""Marks of processes that wait for a slot. `marks.pxd` has the layout and is the native interface."""
from shm.atomics cimport fence_full
from shm.marks cimport MARK_ROW_BYTES, mark_clear, mark_set, marks_waiting

ROW_BYTES = MARK_ROW_BYTES
MAX_WAITERS = MARK_ROW_BYTES


cdef class WaitingMarks:
    def __init__(self, unsigned char[::1] block, uint64_t slots):
        if slots > <uint64_t>block.shape[0] // MARK_ROW_BYTES:
            raise ValueError(f"{slots} rows of {MARK_ROW_BYTES} bytes do not fit into {block.shape[0]}")
        if <size_t>&block[0] % 64:
            raise ValueError("waiting marks must start on a cache line")
        self.keep = block
        self.ref.base = &block[0]
        self.ref.slots = slots

    def mark(self, uint64_t slot, uint64_t waiter) -> None:
        """Set a waiter's mark. The waiter calls this, and then reads the slot once more."""
        self._check(slot, waiter)
        mark_set(&self.ref, slot, waiter)

    def clear(self, uint64_t slot, uint64_t waiter) -> None:
        self._check(slot, waiter)
        mark_clear(&self.ref, slot, waiter)

    def waiting(self, uint64_t slot) -> int:
        """Return the waiters of a slot as a bit set. The slot's writer calls this after publishing."""
        self._check(slot, 0)
        fence_full()
        return marks_waiting(&self.ref, slot)

    def clear_waiter(self, uint64_t waiter) -> None:
        """Clear a waiter's marks for all slots. The successor of a dead waiter calls this."""
        cdef uint64_t slot
        if waiter >= MARK_ROW_BYTES:
            raise IndexError(f"waiter {waiter} of {MARK_ROW_BYTES}")
        for slot in range(self.ref.slots):
            mark_clear(&self.ref, slot, waiter)

    cdef _check(self, uint64_t slot, uint64_t waiter):
        if slot >= self.ref.slots or waiter >= MARK_ROW_BYTES:
            raise IndexError(f"slot {slot} of {self.ref.slots}, waiter {waiter} of {MARK_ROW_BYTES}")
