"""The offset map of the cleaner; `offset_map.pxd` has its layout."""
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free

import os

cdef extern from "shm/siphash.h" nogil:
    void siphash128(const uint8_t *data, int64_t count, const uint64_t *key, uint64_t *hash)

SLOT_BYTES = sizeof(MapSlot)
assert SLOT_BYTES == 24

# Slots allocated however few keys are expected.
SLOTS_LEAST = 1024


cdef inline MapSlot *place_of(const MapRef *map, const uint64_t *hash) noexcept nogil:
    """Return the slot of the key with this hash, or the free slot for it. One slot is always free."""
    cdef uint64_t at = hash[0] % map.count
    cdef MapSlot *slot = &map.slots[at]
    while slot.offset and not (slot.hash[0] == hash[0] and slot.hash[1] == hash[1]):
        at += 1
        slot = &map.slots[at] if at < map.count else &map.slots[0]
        if at == map.count:
            at = 0
    return slot


cdef bint map_put(MapRef *map, const uint8_t *key, int64_t count, int64_t offset) noexcept nogil:
    """Set the key's offset, unless the map has a larger one. Return False if a new key finds no room."""
    cdef uint64_t hash[2]
    cdef MapSlot *slot
    siphash128(key, count, map.key, hash)
    slot = place_of(map, hash)
    if slot.offset == 0:
        if map.used >= map.room:
            return False
        slot.hash[0], slot.hash[1] = hash[0], hash[1]
        map.used += 1
    if offset + 1 > slot.offset:
        slot.offset = offset + 1
    return True


cdef int64_t map_get(const MapRef *map, const uint8_t *key, int64_t count) noexcept nogil:
    """Return the key's last offset, -1 if the key has not been put in."""
    cdef uint64_t hash[2]
    siphash128(key, count, map.key, hash)
    return place_of(map, hash).offset - 1


cdef class OffsetMap:
    """The last offset of each key, in a hash table of at most `memory_bytes`.

    The table is filled up to `load_factor`. It has fewer slots if `most_keys` needs fewer. `secret`: 16 bytes
    for the hash, random by default.
    """

    def __init__(self, int64_t memory_bytes, double load_factor, int64_t most_keys, bytes secret=b""):
        cdef int64_t room = <int64_t>(memory_bytes // SLOT_BYTES * load_factor)
        secret = secret or os.urandom(16)
        self.ref.key[0] = int.from_bytes(secret[:8], "little")
        self.ref.key[1] = int.from_bytes(secret[8:16], "little")
        self.ref.room = max(min(room, memory_bytes // SLOT_BYTES - 1), 0)
        self.ref.count = max(
            min(memory_bytes // SLOT_BYTES, <int64_t>(most_keys / load_factor) + SLOTS_LEAST), 1
        )
        self.ref.room = min(self.ref.room, self.ref.count - 1)
        self.ref.latest = -1
        free(self.ref.slots)
        self.ref.slots = <MapSlot *>calloc(self.ref.count, sizeof(MapSlot))
        if self.ref.slots == NULL:
            raise MemoryError("no memory for the offset map of the cleaner")

    def __dealloc__(self):
        free(self.ref.slots)

    def __len__(self) -> int:
        return self.ref.used

    def put(self, const uint8_t[::1] key, int64_t offset) -> bool:
        return map_put(&self.ref, &key[0] if key.shape[0] else NULL, key.shape[0], offset)

    def get(self, const uint8_t[::1] key) -> int:
        return map_get(&self.ref, &key[0] if key.shape[0] else NULL, key.shape[0])

    @property
    def room(self) -> int:
        return self.ref.room

    @property
    def latest(self) -> int:
        return self.ref.latest

    @latest.setter
    def latest(self, int64_t offset):
        self.ref.latest = offset

    @property
    def utilization(self) -> float:
        """Return the share of slots in use, from 0 to 1."""
        return self.ref.used / <double>self.ref.count


def siphash(const uint8_t[::1] data, bytes key) -> bytes:
    """Return the hash of `data` as 16 bytes, for tests with known vectors."""
    cdef uint64_t words[2]
    cdef uint64_t hash[2]
    words[0] = int.from_bytes(key[:8], "little")
    words[1] = int.from_bytes(key[8:], "little")
    siphash128(&data[0] if data.shape[0] else NULL, data.shape[0], words, hash)
    return int(hash[0]).to_bytes(8, "little") + int(hash[1]).to_bytes(8, "little")
