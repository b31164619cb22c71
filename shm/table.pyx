"""Tables of slots that hold two copies of a payload. `table.pxd` has the layout and the native interface."""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from shm.table cimport READ_TRIES, copy_stride, slot_version, table_read, table_write
from shm.atomics cimport load_acquire


LARGEST_PAYLOAD_BYTES = 1 << 30


def slot_bytes(payload_bytes: int) -> int:
    """Return the size of a slot in bytes of shared memory."""
    if not 0 < payload_bytes <= LARGEST_PAYLOAD_BYTES:
        raise ValueError(f"a slot's payload has 1 to {LARGEST_PAYLOAD_BYTES} bytes, not {payload_bytes}")
    return 64 + 2 * copy_stride(payload_bytes)


class SlotBusy(RuntimeError):
    """Raised when the writer changed the slot during each of a reader's READ_TRIES tries to copy it."""


cdef class SlotTable:
    """A table of `slots` slots with `payload_bytes` each, in `block`. One process writes, any number read."""

    def __init__(self, const unsigned char[::1] block, uint64_t slots, uint64_t payload_bytes):
        needed = slots * slot_bytes(payload_bytes)
        if block.shape[0] < needed:
            raise ValueError(f"{slots} slots need {needed} bytes, the block has {block.shape[0]}")
        if <size_t>&block[0] % 64:
            raise ValueError("a slot table must start on a cache line")
        self.keep = block
        self.readonly = memoryview(block).readonly
        self.ref.base = <uint8_t *>&block[0]
        self.ref.slots = slots
        self.ref.payload_bytes = payload_bytes
        self.ref.stride = slot_bytes(payload_bytes)

    @property
    def slots(self) -> int:
        return self.ref.slots

    @property
    def payload_bytes(self) -> int:
        return self.ref.payload_bytes

    def write(self, uint64_t slot, const unsigned char[::1] payload) -> None:
        """Publish a new payload in a slot. Writer only."""
        if self.readonly:
            raise TypeError("this table is attached read-only: its owner alone writes it")
        if slot >= self.ref.slots or <uint64_t>payload.shape[0] != self.ref.payload_bytes:
            raise ValueError(
                f"slot {slot} of {self.ref.slots}, "
                f"payload of {payload.shape[0]} bytes, not {self.ref.payload_bytes}"
            )
        table_write(&self.ref, slot, &payload[0])

    def read(self, uint64_t slot) -> bytes:
        """Return a consistent copy of a slot's payload. Raises SlotBusy if the writer was too fast."""
        if slot >= self.ref.slots:
            raise IndexError(f"slot {slot} of {self.ref.slots}")
        out = PyBytes_FromStringAndSize(NULL, self.ref.payload_bytes)
        if table_read(&self.ref, slot, <char *>out) == 0:
            raise SlotBusy(f"slot {slot} changed during every one of the {READ_TRIES} tries")
        return out

    def version(self, uint64_t slot) -> int:
        """Return the version of a slot, which grows by one per write; 0 if it was never written."""
        if slot >= self.ref.slots:
            raise IndexError(f"slot {slot} of {self.ref.slots}")
        return load_acquire(slot_version(&self.ref, slot))

    def versions(self, const uint64_t[::1] slots) -> bytes:
        """Return the versions of many slots, 8 bytes each. If they differ later, a slot has changed."""
        cdef Py_ssize_t i, count = slots.shape[0]
        for i in range(count):
            if slots[i] >= self.ref.slots:
                raise IndexError(f"slot {slots[i]} of {self.ref.slots}")
        out = PyBytes_FromStringAndSize(NULL, count * sizeof(uint64_t))
        cdef uint64_t *found = <uint64_t *>PyBytes_AS_STRING(out)
        for i in range(count):
            found[i] = load_acquire(slot_version(&self.ref, slots[i]))
        return out
