"""Topics, filled in by Python and found by the turn by name or id, and which connections may use them.

    Topic      policy, and a Place per partition number
    Index      open addressing, linear probing: hash -> Topic; one for names, one for ids
    Grant      what a connection may do to a topic; a cache: Python makes a lost grant again

Only Python changes the table, between two turns. No other process shares it.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef extern from "shm/siphash.h" nogil:
    uint64_t siphash64(const void *data, uint64_t count, const uint64_t *key)

cdef struct Place:
    uint32_t slot               # in the partition table
    uint32_t generation         # 0: no such partition
    uint32_t worker             # number of its log worker

cdef struct Topic:
    uint8_t *name
    uint32_t name_length
    uint8_t id[16]
    uint64_t serial             # of this Topic: another number after each change
    Place *places
    int32_t partitions          # partition numbers are less than this
    uint32_t config_version
    int32_t max_message_bytes
    bint fast                   # not internal: the native turn may append to it
    int codec                   # of compression.type; -1: whatever a batch has
    bint append_time            # message.timestamp.type is LogAppendTime
    bint keyed                  # cleanup.policy has compact: every record needs a key
    int64_t before_max_ms
    int64_t after_max_ms

cdef struct Index:
    Topic **entries
    uint64_t mask

cdef enum:
    GRANTS = 65536              # a power of two
    GRANT_PROBES = 8            # places that a grant may be in
    RACKS_MAX = 8
    MAY_READ = 1 << 3           # bits of security.acls.Operation
    MAY_WRITE = 1 << 4

cdef struct Grant:
    uint64_t connection         # 0: free
    uint64_t topic              # serial
    uint64_t operations         # a bit each

cdef struct TopicsRef:
    Index names
    Index ids
    Grant *grants               # NULL: everybody may do everything
    uint64_t asking             # connection of the request that is looked at
    uint32_t down               # log workers that are down, a bit each
    uint64_t racks[RACKS_MAX]   # hashes of racks whose clients may have to read elsewhere: Python knows
    uint32_t rack_count         # above RACKS_MAX: that is so in any rack
    uint64_t key[2]             # of the hash of names, which clients choose; ids are the broker's

cdef inline uint64_t hash_name(const TopicsRef *topics, const uint8_t *name, uint64_t length) noexcept nogil:
    return siphash64(name, length, topics.key)

cdef inline uint64_t hash_id(const uint8_t *topic_id) noexcept nogil:
    cdef uint64_t halves[2]
    memcpy(halves, topic_id, 16)
    return (halves[0] ^ halves[1]) * 0x9e3779b97f4a7c15ULL >> 20

cdef inline bint has_replicas(const TopicsRef *topics, const uint8_t *rack, uint64_t length) noexcept nogil:
    """Return True if a client in this rack may have to read elsewhere."""
    cdef uint64_t h = hash_name(topics, rack, length) if topics.rack_count else 0
    cdef uint32_t i
    for i in range(min(topics.rack_count, <uint32_t>RACKS_MAX)):
        if topics.racks[i] == h:
            return True
    return topics.rack_count > RACKS_MAX

cdef inline uint64_t grant_place(uint64_t connection, uint64_t topic) noexcept nogil:
    cdef uint64_t h = (connection ^ topic * 0x9e3779b97f4a7c15ULL) * 0xff51afd7ed558ccdULL
    return (h ^ h >> 32) & (GRANTS - 1)

cdef inline bint is_granted(const TopicsRef *topics, const Topic *topic, uint64_t operation) noexcept nogil:
    """Return True if the asking connection has a grant for the operation, or no grants are required."""
    cdef uint64_t at, i
    cdef const Grant *grant
    if topics.grants == NULL:
        return True
    at = grant_place(topics.asking, topic.serial)
    for i in range(GRANT_PROBES):
        grant = &topics.grants[(at + i) & (GRANTS - 1)]
        if grant.connection == topics.asking and grant.topic == topic.serial:
            return (grant.operations & operation) != 0
    return False

cdef inline Topic *topic_by_name(TopicsRef *topics, const uint8_t *name, uint64_t length) noexcept nogil:
    cdef uint64_t at = hash_name(topics, name, length) & topics.names.mask
    cdef Topic *topic = topics.names.entries[at]
    while topic != NULL:
        if topic.name_length == length and memcmp(topic.name, name, length) == 0:
            return topic
        at = (at + 1) & topics.names.mask
        topic = topics.names.entries[at]
    return NULL

cdef inline Topic *topic_by_id(TopicsRef *topics, const uint8_t *topic_id) noexcept nogil:
    cdef uint64_t at = hash_id(topic_id) & topics.ids.mask
    cdef Topic *topic = topics.ids.entries[at]
    while topic != NULL:
        if memcmp(topic.id, topic_id, 16) == 0:
            return topic
        at = (at + 1) & topics.ids.mask
        topic = topics.ids.entries[at]
    return NULL


cdef class TopicTable:
    cdef TopicsRef ref
    cdef Topic **all
    cdef uint64_t count
    cdef uint64_t room
    cdef readonly int log_workers
    cdef uint64_t serials
    cdef _free(self)
    cdef _grow(self, uint64_t room)
    cdef _drop(self, bytes topic_id)
    cdef int _reindex(self) except -1
