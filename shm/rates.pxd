"""Sums over a sliding window that many processes add to and any process reads: each writer has a page of its
own.

A measured thing has a key, 64 bits and not 0. A writer keeps the keys it has added to in its page; a reader
finds the key in every page and adds up. No writer allocates for another, and each word has one writer:

    0     used        u64 per writer: 1 once it has a row
    ...   pages       one per writer, on a page boundary:
              keys    u64 per row, 0: free. A key is in one of two groups of RATES_GROUP, a cache line
                      each
              rows    per row `samples` + 1 samples of 24 bytes

    sample    start_ms i64, value i64, last_ms i64 (0: not in use)

A sample begins with the first event that comes when the newest one is a window old. So all writers' samples
of a key begin at the same times, unless several writers begin one at once; beginnings less than a window
apart are one sample. The rate is Kafka's (stats.SampledStat, stats.Rate): samples count until their last
event is `samples` windows old, and their time span runs from the oldest one's beginning, with windows that
are missing at first added.

Times are milliseconds of CLOCK_MONOTONIC. A row without an event for `samples` windows counts for nothing and
is given to the next key. A killed writer leaves its page as it is: at any instruction it lacks at most the
event that was being added, or holds an expired sample as unused. Its successor continues the page; without
one it expires.
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
