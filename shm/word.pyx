"""Shared 64-bit words with acquire and release order, for state that is one number, such as an epoch."""
from libc.stdint cimport uint64_t

from shm.atomics cimport fence_full, load_acquire, store_release


cdef class Words:
    """An array of u64 in shared memory. If it is mapped read-only, `store` raises TypeError.

    Each word must have one writer only.
    """
    cdef uint64_t *base
    cdef bint readonly
    cdef readonly int count
    cdef object keep

    def __init__(self, const unsigned char[::1] block):
        if <size_t>&block[0] % 8:
            raise ValueError("words must be aligned to 8 bytes")
        self.keep = block
        self.base = <uint64_t *>&block[0]
        self.count = block.shape[0] // 8
        self.readonly = memoryview(block).readonly

    def load(self, int index) -> int:
        if not 0 <= index < self.count:
            raise IndexError(f"word {index} of {self.count}")
        return load_acquire(self.base + index)

    def load_some(self, int first, int count) -> tuple[int, ...]:
        """Return `count` consecutive words from index `first` on, loaded one after the other."""
        if first < 0 or count < 0 or first + count > self.count:
            raise IndexError(f"words {first} to {first + count} of {self.count}")
        return tuple([load_acquire(self.base + index) for index in range(first, first + count)])

    def store(self, int index, uint64_t value) -> None:
        if not 0 <= index < self.count:
            raise IndexError(f"word {index} of {self.count}")
        if self.readonly:
            raise TypeError("these words are mapped for reading only")
        store_release(self.base + index, value)


def fence() -> None:
    """Issue a full memory fence, as needed between a store to one word and a load of another."""
    fence_full()
