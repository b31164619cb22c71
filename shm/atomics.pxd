from libc.stdint cimport uint8_t, uint64_t

cdef extern from "shm/atomics.h" nogil:
    uint64_t load_acquire(const uint64_t *word)
    uint64_t load_relaxed(const uint64_t *word)
    void store_release(uint64_t *word, uint64_t value)
    void store_relaxed(uint64_t *word, uint64_t value)
    uint8_t load_byte(const uint8_t *byte)
    void store_byte(uint8_t *byte, uint8_t value)
    void fence_full()
    void fence_acquire()
    void fence_release()
