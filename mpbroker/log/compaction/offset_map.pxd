"""The last offset of each key, in bounded memory (Kafka: SkimpyOffsetMap).

    slot  0  hash    2 × u64   the hash of the key; the key itself is not kept
         16  offset  i64       the key's last offset plus 1; 0: the slot is free
"""
from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef struct MapSlot:
    uint64_t hash[2]
    int64_t offset

cdef struct MapRef:
    MapSlot *slots
    uint64_t count              # number of slots
    uint64_t used
    uint64_t room               # the most keys that may be put in
    uint64_t key[2]
    int64_t latest              # all offsets up to here have been looked at; -1: none

cdef bint map_put(MapRef *map, const uint8_t *key, int64_t count, int64_t offset) noexcept nogil
cdef int64_t map_get(const MapRef *map, const uint8_t *key, int64_t count) noexcept nogil


cdef class OffsetMap:
    cdef MapRef ref
