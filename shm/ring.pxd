"""A ring (a queue of fixed size) of 64-byte slots, with a single producer and a single consumer.

    0     tail        positions published; written by the producer only
    64    head        positions taken; written by the consumer only
    128   want_space  1 while the producer waits for room; written by the producer only
    192   slots       `size` (a power of two) of 64 bytes

Positions have 64 bits and only grow, also when a successor replaces a process. A slot's index is its position
modulo `size`. A producer publishes with one release store, and a consumer reads the tail with one acquire
load. A producer killed between writing a slot and publishing it has published nothing.
"""
from libc.stdint cimport uint64_t

from shm.atomics cimport fence_full, load_acquire, load_relaxed, store_relaxed, store_release

cdef enum:
    RING_HEADER_BYTES = 192
    SLOT_BYTES = 64

cdef struct Slot:
    uint64_t word[8]

cdef struct RingRef:
    uint64_t *tail
    uint64_t *head
    uint64_t *want_space
    Slot *slots
    uint64_t size
    uint64_t staged         # producer: position of the next slot to fill, published or not
    uint64_t head_seen      # producer: the last value of `head` it read

cdef inline void ring_bind(RingRef *ring, void *block, uint64_t size) noexcept nogil:
    cdef char *base = <char *>block
    ring.tail = <uint64_t *>base
    ring.head = <uint64_t *>(base + 64)
    ring.want_space = <uint64_t *>(base + 128)
    ring.slots = <Slot *>(base + RING_HEADER_BYTES)
    ring.size = size
    ring.staged = load_relaxed(ring.tail)
    ring.head_seen = load_acquire(ring.head)

cdef inline bint ring_stage(RingRef *ring, const Slot *slot) noexcept nogil:
    """Fill the next slot without publishing it; return False if the ring is full. Producer only."""
    if ring.staged - ring.head_seen >= ring.size:
        ring.head_seen = load_acquire(ring.head)
        if ring.staged - ring.head_seen >= ring.size:
            return False
    ring.slots[ring.staged & (ring.size - 1)] = slot[0]
    ring.staged += 1
    return True

cdef inline void ring_publish(RingRef *ring) noexcept nogil:
    """Make all staged slots visible with one release store. Producer only."""
    store_release(ring.tail, ring.staged)

cdef inline bint ring_push(RingRef *ring, const Slot *slot) noexcept nogil:
    if not ring_stage(ring, slot):
        return False
    ring_publish(ring)
    return True

cdef inline uint64_t ring_room(RingRef *ring) noexcept nogil:
    """Return how many slots `ring_stage` can fill now. Producer only."""
    ring.head_seen = load_acquire(ring.head)
    return ring.size - (ring.staged - ring.head_seen)

cdef inline void ring_want_space(RingRef *ring, bint wanted) noexcept nogil:
    """Ask the consumer to ring when there is room. Producer only: it must then call `ring_room` once more."""
    store_relaxed(ring.want_space, 1 if wanted else 0)
    fence_full()

cdef inline uint64_t ring_waiting(RingRef *ring) noexcept nogil:
    """Return how many published slots are not taken yet. Consumer only."""
    return load_acquire(ring.tail) - load_relaxed(ring.head)

cdef inline Slot *ring_peek(RingRef *ring, uint64_t ahead) noexcept nogil:
    """Return the slot `ahead` positions after the head; it is valid until it is taken. Consumer only."""
    return &ring.slots[(load_relaxed(ring.head) + ahead) & (ring.size - 1)]

cdef inline bint ring_advance(RingRef *ring, uint64_t count) noexcept nogil:
    """Take `count` slots; return whether to ring the producer, which waits for room. Consumer only."""
    store_release(ring.head, load_relaxed(ring.head) + count)
    fence_full()
    return load_relaxed(ring.want_space) != 0


cdef class Ring:
    cdef RingRef ref
    cdef object keep
