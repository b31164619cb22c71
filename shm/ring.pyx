"""Rings of 64-byte slots between two processes. `ring.pxd` has the layout and is the native interface."""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.string cimport memcpy

from shm.ring cimport (
    RING_HEADER_BYTES, SLOT_BYTES, Slot, ring_advance, ring_bind, ring_peek, ring_publish, ring_push,
    ring_room, ring_stage, ring_waiting, ring_want_space,
)
from shm.atomics cimport load_acquire, store_release

HEADER_BYTES = RING_HEADER_BYTES
BYTES_PER_SLOT = SLOT_BYTES


def ring_bytes(size: int) -> int:
    """Return the bytes of shared memory that a ring of `size` slots takes."""
    return RING_HEADER_BYTES + SLOT_BYTES * size


cdef class Ring:
    """A ring in `block`, as seen by its producer or its consumer. A process must not be both."""

    def __init__(self, unsigned char[::1] block, uint64_t size):
        if size == 0 or size & (size - 1):
            raise ValueError(f"ring size must be a power of two, not {size}")
        if block.shape[0] < ring_bytes(size):
            raise ValueError(
                f"a ring of {size} slots needs {ring_bytes(size)} bytes, the block has {block.shape[0]}"
            )
        if <size_t>&block[0] % 64:
            raise ValueError("a ring must start on a cache line")
        self.keep = block
        ring_bind(&self.ref, &block[0], size)

    @property
    def size(self) -> int:
        return self.ref.size

    @property
    def head(self) -> int:
        return load_acquire(self.ref.head)

    @property
    def tail(self) -> int:
        return load_acquire(self.ref.tail)

    def reset(self) -> None:
        """Empty the ring after its producer or consumer has ended, for the successor of that process.

        A running consumer must have taken all slots. A running producer must `rebind` before its next push.
        The head is set to the tail, not both to 0, so a consumer that reads meanwhile sees an empty ring.
        """
        cdef uint64_t tail = load_acquire(self.ref.tail)
        if load_acquire(self.ref.head) != tail:
            store_release(self.ref.head, tail)
        store_release(self.ref.want_space, 0)
        self.rebind()

    def rebind(self) -> None:
        """Drop this process's cached positions, after the other process has ended and the ring was reset."""
        ring_bind(&self.ref, <void *>self.ref.tail, self.ref.size)

    def push(self, const unsigned char[::1] slot) -> bool:
        """Publish one 64-byte slot; return False if the ring is full. Producer only."""
        cdef Slot copy
        if slot.shape[0] != SLOT_BYTES:
            raise ValueError(f"a slot has {SLOT_BYTES} bytes, not {slot.shape[0]}")
        memcpy(&copy, &slot[0], SLOT_BYTES)
        return ring_push(&self.ref, &copy)

    def push_batch(self, const unsigned char[::1] slots) -> int:
        """Publish as many of the concatenated slots as fit, with one store; return their number."""
        cdef Slot copy
        cdef Py_ssize_t at = 0, count = 0
        if slots.shape[0] % SLOT_BYTES:
            raise ValueError(f"slots come in multiples of {SLOT_BYTES} bytes, not {slots.shape[0]}")
        while at < slots.shape[0]:
            memcpy(&copy, &slots[at], SLOT_BYTES)
            if not ring_stage(&self.ref, &copy):
                break
            at += SLOT_BYTES
            count += 1
        if count:
            ring_publish(&self.ref)
        return count

    def take(self, uint64_t most=1024) -> tuple[bytes, bool]:
        """Take up to `most` slots. Return (the slots' bytes, whether to ring the producer). Consumer only.

        The head moves before the caller processes the slots. If this consumer dies, `untaken` returns only
        slots that it has not begun to process.
        """
        cdef uint64_t waiting = ring_waiting(&self.ref), i
        if waiting == 0:
            return b"", False
        if waiting > most:
            waiting = most
        out = PyBytes_FromStringAndSize(NULL, waiting * SLOT_BYTES)
        cdef char *to = out
        for i in range(waiting):
            memcpy(to + i * SLOT_BYTES, ring_peek(&self.ref, i), SLOT_BYTES)
        wants = ring_advance(&self.ref, waiting)
        return out, wants

    def untaken(self) -> list[bytes]:
        """Return the published slots that a dead consumer has not taken. They stay in the ring."""
        cdef uint64_t waiting = ring_waiting(&self.ref), i
        return [(<char *>ring_peek(&self.ref, i))[:SLOT_BYTES] for i in range(waiting)]

    def waiting(self) -> int:
        return ring_waiting(&self.ref)

    def room(self) -> int:
        return ring_room(&self.ref)

    def want_space(self, bint wanted=True) -> bool:
        """Ask the consumer to ring when there is room; return whether there is room now. Producer only."""
        ring_want_space(&self.ref, wanted)
        return ring_room(&self.ref) > 0
