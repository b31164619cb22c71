"""Sums over a sliding window, to which many processes add and which any process reads.

Each measured value has a key, a 64-bit number other than 0. Each writer has a page with the keys to which it
has added. A reader finds the key in every page and adds up the values. Each word has one writer:

    0     used        u64 per writer: 1 once its page has a row
    ...   pages       one per writer, on a page boundary:
              keys    u64 per row, 0: free. A key is in one of two groups of RATES_GROUP, a cache line
                      each
              rows    per row `samples` + 1 samples of 24 bytes

    sample    start_ms i64, value i64, last_ms i64 (0: not in use)

An event begins a new sample if the newest sample began at least a window ago. Writers begin a key's samples
at the same times, except when several begin one at once: samples that begin less than a window apart count as
one. The rate is computed as in Kafka (stats.SampledStat, stats.Rate). A sample counts until its last event is
`samples` windows old. The time span begins with the oldest sample, and is at least `samples` - 1 windows.

Times are milliseconds of CLOCK_MONOTONIC. A row without an event for `samples` windows has expired, and the
next key may take it. The page of a writer killed at any instruction is valid: it lacks at most the event that
was being added. The writer's successor continues the page; without a successor its rows expire.
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    RATES_GROUP = 8

cdef struct Sample:
    uint64_t start_ms
    uint64_t value              # signed
    uint64_t last_ms

cdef struct Span:
    int64_t start_ms
    int64_t last_ms
    int64_t value

cdef struct RatesRef:
    uint8_t *base
    uint64_t page_bytes
    uint64_t pages_at
    uint64_t rows_at            # in a page
    uint64_t rows
    uint32_t writers
    uint32_t samples
    int64_t window_ms
    uint32_t own                # the page of the process that records
    Span *spans                 # scratch of the reader
    uint32_t span_count
    uint32_t span_room

cdef struct Measured:
    int64_t total
    int64_t window_ms           # at least 1

cdef bint rates_record(RatesRef *rates, uint64_t key, int64_t value, int64_t now_ms) noexcept nogil
cdef Measured rates_measure(RatesRef *rates, uint64_t key, int64_t now_ms) noexcept nogil


cdef class SharedRates:
    cdef RatesRef ref
    cdef object keep
