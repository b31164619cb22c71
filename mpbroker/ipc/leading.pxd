"""The leading word, for native code. `leading.py` says what it means and who writes it."""
from libc.stdint cimport uint64_t

from shm.atomics cimport load_relaxed

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

cdef inline bint leads(const uint64_t *leading) noexcept nogil:
    """Return whether the broker leads now. The clock is read only while there is a lease."""
    cdef uint64_t until_ns = load_relaxed(leading)
    return until_ns == LEADS_ALWAYS or boottime_ns() < until_ns
