"""Native loops over the primitives, for benchmarks and for stress tests that Python is too slow for.

With `Lockstep` two processes run the halves of a "store own word, fence, load the other's" protocol at the
same time, repeatedly. In each round at least one process must see the other's store; a round in which neither
does is a lost wake-up. The layout of the block:

    0     round of side 0       written by side 0
    64    round of side 1       written by side 1
    128   seen                  whether side 1 saw side 0 in this round; written by side 1
"""
from libc.stdint cimport uint8_t, uint64_t
from posix.unistd cimport read

from shm.atomics cimport fence_full, load_acquire, load_relaxed, store_release
from shm.doorbell cimport Doorbell, bell_arm, bell_disarm, bell_ring
from shm.marks cimport WaitingMarks, mark_clear, mark_set, marks_waiting
from shm.ring cimport (
    Ring, Slot, ring_advance, ring_peek, ring_publish, ring_push, ring_room, ring_stage, ring_waiting,
    ring_want_space,
)
from shm.table cimport SlotTable, slot_version, table_read, table_write

cdef extern from "<sched.h>" nogil:
    int sched_yield()


cdef struct Pace:
    uint64_t *mine
    uint64_t *theirs
    uint64_t *seen
    uint64_t seed


cdef inline void meet(Pace *pace, uint64_t round) noexcept nogil:
    """Wait until both sides are in the round, then for a random time of at most about one cache miss."""
    cdef uint64_t spins = 0, _
    store_release(pace.mine, round)
    while load_acquire(pace.theirs) < round:
        spins += 1
        if spins % 512 == 0:
            sched_yield()
    pace.seed = pace.seed * <uint64_t>6364136223846793005u + <uint64_t>1442695040888963407u
    for _ in range((pace.seed >> 33) % 512):
        load_relaxed(pace.mine)


cdef class Lockstep:
    """Side 0 or 1 of the module's protocol: 0 announces a wait, 1 publishes and looks for an announcement."""
    cdef Pace pace
    cdef int side
    cdef object keep

    def __init__(self, unsigned char[::1] block, int side):
        if block.shape[0] < 256 or side not in (0, 1):
            raise ValueError("a lockstep needs 256 bytes and side 0 or 1")
        self.keep = block
        self.side = side
        self.pace.mine = <uint64_t *>&block[64 * side]
        self.pace.theirs = <uint64_t *>&block[64 * (1 - side)]
        self.pace.seen = <uint64_t *>&block[128]
        self.pace.seed = side + 1

    def mark_misses(self, WaitingMarks marks, SlotTable table, uint64_t rounds) -> int:
        """Count lost wake-ups. Side 0 marks and reads a slot; side 1 writes the slot and reads the marks."""
        cdef uint64_t round, base = load_relaxed(self.pace.mine), misses = 0, before, saw
        cdef uint64_t *version = slot_version(&table.ref, 0)
        cdef uint8_t payload[64]
        with nogil:
            for round in range(base // 2 + 1, base // 2 + rounds + 1):
                if self.side == 0:
                    before = load_acquire(version)
                    meet(&self.pace, 2 * round - 1)
                    mark_set(&marks.ref, 0, 5)
                    saw = load_acquire(version) != before
                    meet(&self.pace, 2 * round)
                    misses += not saw and not load_acquire(self.pace.seen)
                    mark_clear(&marks.ref, 0, 5)
                else:
                    meet(&self.pace, 2 * round - 1)
                    table_write(&table.ref, 0, payload)
                    fence_full()
                    saw = marks_waiting(&marks.ref, 0) != 0
                    store_release(self.pace.seen, saw)
                    meet(&self.pace, 2 * round)
        return misses

    def bell_misses(self, Doorbell bell, Ring ring, uint64_t rounds) -> int:
        """Count lost wake-ups. Side 0 arms `bell` and reads `ring`; side 1 pushes a slot and rings `bell`."""
        cdef uint64_t round, base = load_relaxed(self.pace.mine), misses = 0, saw, count
        cdef Slot slot
        with nogil:
            for round in range(base // 2 + 1, base // 2 + rounds + 1):
                # Bring the words near first: the load must outrun the core's own store.
                saw = ring_waiting(&ring.ref) if self.side == 0 else load_relaxed(bell.ref.armed)
                meet(&self.pace, 2 * round - 1)
                if self.side == 0:
                    bell_arm(&bell.ref)
                    saw = ring_waiting(&ring.ref)
                    meet(&self.pace, 2 * round)
                    misses += read(bell.ref.fd, &count, sizeof(count)) < 0 and not saw
                    bell_disarm(&bell.ref)
                    ring_advance(&ring.ref, 1)
                else:
                    ring_push(&ring.ref, &slot)
                    bell_ring(&bell.ref)
                    meet(&self.pace, 2 * round)
        return misses

    def space_misses(self, Ring ring, uint64_t rounds) -> int:
        """Count lost wake-ups. Side 0 asks for space in a full ring; side 1 takes a slot out of the ring."""
        cdef uint64_t round, base = load_relaxed(self.pace.mine), misses = 0, saw
        cdef Slot slot
        with nogil:
            for round in range(base // 2 + 1, base // 2 + rounds + 1):
                if self.side == 0:
                    while ring_push(&ring.ref, &slot):
                        pass
                    meet(&self.pace, 2 * round - 1)
                    ring_want_space(&ring.ref, True)
                    saw = ring_room(&ring.ref)
                    meet(&self.pace, 2 * round)
                    misses += not saw and not load_acquire(self.pace.seen)
                    ring_want_space(&ring.ref, False)
                else:
                    meet(&self.pace, 2 * round - 1)
                    store_release(self.pace.seen, ring_advance(&ring.ref, 1))
                    meet(&self.pace, 2 * round)
        return misses


cdef inline uint64_t check_word(uint64_t number, uint64_t place) noexcept nogil:
    return (number ^ (place << 56)) * <uint64_t>0x9E3779B97F4A7C15


def ring_stream(Ring ring, uint64_t count, uint64_t batch) -> None:
    """Push `count` numbered slots with checksums, publishing `batch` at a time. Producer only."""
    cdef uint64_t number, place, staged = 0
    cdef Slot slot
    with nogil:
        for number in range(count):
            slot.word[0] = number
            for place in range(1, 8):
                slot.word[place] = check_word(number, place)
            while not ring_stage(&ring.ref, &slot):
                ring_publish(&ring.ref)
                sched_yield()
            staged += 1
            if staged == batch:
                ring_publish(&ring.ref)
                staged = 0
        ring_publish(&ring.ref)


def ring_drain(Ring ring, uint64_t count) -> int:
    """Take `count` slots of a `ring_stream`; return how many have wrong contents. Consumer only."""
    cdef uint64_t number = 0, waiting, i, place, wrong = 0
    cdef Slot *slot
    cdef bint good
    with nogil:
        while number < count:
            waiting = ring_waiting(&ring.ref)
            if waiting == 0:
                sched_yield()
                continue
            for i in range(waiting):
                slot = ring_peek(&ring.ref, i)
                good = slot.word[0] == number
                for place in range(1, 8):
                    good = good and slot.word[place] == check_word(number, place)
                wrong += not good
                number += 1
            ring_advance(&ring.ref, waiting)
    return wrong


def ring_rounds(Ring ring, uint64_t rounds, uint64_t batch) -> int:
    """Push and take `batch` slots `rounds` times; return a sum that keeps compilers from skipping loads."""
    cdef uint64_t _, i, total = 0
    cdef Slot slot
    if batch > ring.ref.size:
        raise ValueError(f"a batch of {batch} does not fit into a ring of {ring.ref.size}")
    slot.word[0] = 1
    with nogil:
        for _ in range(rounds):
            for _ in range(batch):
                ring_stage(&ring.ref, &slot)
            ring_publish(&ring.ref)
            for i in range(ring_waiting(&ring.ref)):
                total += ring_peek(&ring.ref, i).word[0]
            ring_advance(&ring.ref, batch)
    return total


def table_storm(SlotTable table, uint64_t slot, uint64_t writes) -> int:
    """Write `writes` payloads, each of one number repeated; return the last number. Writer only.

    Each number is one above the last; the first is one above the slot's version. The payload must be a
    multiple of 8 bytes, up to 4096.
    """
    cdef uint64_t payload[512]
    cdef uint64_t i, _, number, words = table.ref.payload_bytes // 8
    if table.readonly or slot >= table.ref.slots or table.ref.payload_bytes % 8 or words > 512:
        raise ValueError("a storm needs a writable table with a payload of whole words, up to 4096 bytes")
    number = load_relaxed(slot_version(&table.ref, slot))
    with nogil:
        for _ in range(writes):
            number += 1
            for i in range(words):
                payload[i] = number
            table_write(&table.ref, slot, payload)
    return number


def table_verify(SlotTable table, uint64_t slot, uint64_t reads) -> tuple[int, int, int]:
    """Read a `table_storm`. Return the numbers of (torn or older payloads, failed reads, new payloads)."""
    cdef uint64_t payload[512]
    cdef uint64_t i, _, last = 0, torn = 0, busy = 0, fresh = 0, version, words = table.ref.payload_bytes // 8
    cdef bint good
    if slot >= table.ref.slots or table.ref.payload_bytes % 8 or words > 512:
        raise ValueError("the table must have a payload of whole words, up to 4096 bytes")
    with nogil:
        for _ in range(reads):
            version = table_read(&table.ref, slot, payload)
            if version == 0:
                busy += 1
                continue
            good = payload[0] == version - 1 and payload[0] >= last
            for i in range(1, words):
                good = good and payload[i] == payload[0]
            torn += not good
            fresh += payload[0] != last
            last = payload[0]
    return torn, busy, fresh
