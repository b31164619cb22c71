"""The counter page of one process, which alone writes it. Any process may read the page, without locks.

A turn is one pass of the process's event loop.

    0     heartbeat_ns    CLOCK_MONOTONIC of the last turn
    8     turns           number of turns
    64    status          192 bytes of UTF-8, zero-terminated
    256   last error      768 bytes of UTF-8, zero-terminated
    1024  counters        u64 each
    ...   histograms      HISTOGRAM_WORDS u64 each, aligned to a cache line

A histogram has HISTOGRAM_BUCKETS counts, four buckets of equal width per power of two, so that the middle of
a bucket is within 12.5 % of each counted value. The exact sum and the largest value follow. Readers may see a
half-written text, but never a half-written number.
"""
from libc.stdint cimport int64_t, uint8_t, uint64_t

from shm.atomics cimport load_relaxed, store_relaxed

cdef extern from *:
    """
    #include <time.h>
    static inline unsigned long long monotonic_ns(void) {
        struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }
    #define leading_zeros(x) __builtin_clzll(x)
    """
    uint64_t monotonic_ns() nogil
    int leading_zeros(uint64_t value) nogil

cdef enum:
    STATUS_AT = 64
    STATUS_BYTES = 192
    ERROR_AT = 256
    ERROR_BYTES = 768
    COUNTERS_AT = 1024
    HISTOGRAM_BUCKETS = 252
    HISTOGRAM_SUM = 252
    HISTOGRAM_MAX = 253
    HISTOGRAM_WORDS = 256

cdef struct CountersRef:
    uint64_t *heartbeat_ns
    uint64_t *turns
    uint64_t *counters
    uint64_t *histograms

cdef inline void counter_add(CountersRef *page, int counter, uint64_t amount) noexcept nogil:
    store_relaxed(&page.counters[counter], page.counters[counter] + amount)

cdef inline void counter_set(CountersRef *page, int counter, uint64_t value) noexcept nogil:
    store_relaxed(&page.counters[counter], value)

cdef inline int histogram_bucket(uint64_t value) noexcept nogil:
    cdef int order
    if value < 4:
        return <int>value
    order = 63 - leading_zeros(value)
    return (order - 1) * 4 + <int>((value >> (order - 2)) & 3)

cdef inline void histogram_note(uint64_t *histogram, uint64_t value, uint64_t times) noexcept nogil:
    """Count a value `times` times in a histogram."""
    cdef uint64_t *bucket = histogram + histogram_bucket(value)
    store_relaxed(bucket, bucket[0] + times)
    store_relaxed(&histogram[HISTOGRAM_SUM], histogram[HISTOGRAM_SUM] + value * times)
    if value > histogram[HISTOGRAM_MAX]:
        store_relaxed(&histogram[HISTOGRAM_MAX], value)

cdef inline void histogram_record(CountersRef *page, int histogram, uint64_t value) noexcept nogil:
    histogram_note(page.histograms + histogram * HISTOGRAM_WORDS, value, 1)

cdef inline void heartbeat(CountersRef *page, uint64_t now_ns) noexcept nogil:
    store_relaxed(page.heartbeat_ns, now_ns)
    store_relaxed(page.turns, page.turns[0] + 1)


cdef class CounterPage:
    cdef CountersRef ref
    cdef readonly int counter_count
    cdef readonly int histogram_count
    cdef bint readonly
    cdef object keep
    cdef _check(self, int counter)
    cdef _check_histogram(self, int histogram)
    cdef _check_writable(self)
    cdef _clear(self, size_t size)
    cdef _text(self, int at)
