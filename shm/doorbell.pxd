"""A doorbell: any number of producers wake one sleeping consumer. It takes 64 bytes:

    0   armed   1 while the consumer sleeps or is about to; written by the consumer only

The consumer sets `armed`, fences, checks its rings again and sleeps on an eventfd. A producer publishes,
fences, and writes the eventfd only if `armed` is set. Without the memory fence on both sides, wake-ups would
be lost. A producer may be killed between publishing and ringing, so every sleep has a timeout.
"""
from libc.stdint cimport uint64_t
from posix.unistd cimport read, write

from shm.atomics cimport fence_full, load_relaxed, store_relaxed

cdef extern from "<poll.h>" nogil:
    cdef struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long count, int timeout_ms)
    short POLLIN

cdef enum:
    DOORBELL_BYTES = 64

cdef struct BellRef:
    uint64_t *armed
    int fd

cdef inline void bell_ring(BellRef *bell) noexcept nogil:
    cdef uint64_t one = 1
    fence_full()
    if load_relaxed(bell.armed):
        write(bell.fd, &one, sizeof(one))

cdef inline void bell_arm(BellRef *bell) noexcept nogil:
    store_relaxed(bell.armed, 1)
    fence_full()

cdef inline void bell_disarm(BellRef *bell) noexcept nogil:
    store_relaxed(bell.armed, 0)

cdef inline void bell_drain(BellRef *bell) noexcept nogil:
    cdef uint64_t count
    read(bell.fd, &count, sizeof(count))

cdef inline bint bell_sleep(BellRef *bell, int timeout_ms) noexcept nogil:
    """Sleep until a ring, a signal or the timeout; return True for a ring. Consumer only, after arming."""
    cdef pollfd waiter
    waiter.fd, waiter.events, waiter.revents = bell.fd, POLLIN, 0
    if poll(&waiter, 1, timeout_ms) <= 0:
        return False
    bell_drain(bell)
    return True


cdef class Doorbell:
    cdef BellRef ref
    cdef object keep
