"""The leading word, for native code. `leading.py` says what it means and who writes it."""
from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #include <stdint.h>
    #include <time.h>
    #define LEADS_ALWAYS INT64_MAX
    static inline uint64_t boottime_ns(void) {
        struct timespec t;
        clock_gettime(CLOCK_BOOTTIME, &t);
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    }
    """
    uint64_t LEADS_ALWAYS
    uint64_t boottime_ns() noexcept nogil

cdef inline bint is_past(uint64_t until_ns) noexcept nogil:
    """Return whether this value of the leading word has passed. Without a lease the clock is not read."""
    return until_ns != LEADS_ALWAYS and boottime_ns() >= until_ns
