"""Topics as the produce turn needs them: filled by Python, found by name or id in a few ns.

    Topic      policy, and a Place per partition number
    Index      open addressing, linear probing: hash -> Topic; one for names, one for ids

Only Python changes the table, between two turns. No other process shares it.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef struct Place:
    uint32_t slot               # in the partition table
    uint32_t generation         # 0: no such partition
    uint32_t worker             # number of its log worker

cdef struct Topic:
    uint8_t *name
    uint32_t name_length
    uint8_t id[16]
    Place *places
    int32_t partitions          # partition numbers are less than this
    uint32_t config_version
    int32_t max_message_bytes
    bint fast                   # plain batches are stored as they come
    bint append_time            # message.timestamp.type is LogAppendTime
    bint keyed                  # cleanup.policy has compact: every record needs a key
    int64_t before_max_ms
    int64_t after_max_ms

cdef struct Index:
    Topic **entries
    uint64_t mask

cdef struct TopicsRef:
    Index names
    Index ids
    uint32_t down               # log workers that are down, a bit each

cdef inline uint64_t hash_name(const uint8_t *name, uint64_t length) noexcept nogil:
    cdef uint64_t h = 0xcbf29ce484222325ULL, i
    for i in range(length):
        h = (h ^ name[i]) * 0x100000001b3ULL
    return h ^ (h >> 29)

cdef inline uint64_t hash_id(const uint8_t *topic_id) noexcept nogil:
    cdef uint64_t halves[2]
    memcpy(halves, topic_id, 16)
    return (halves[0] ^ halves[1]) * 0x9e3779b97f4a7c15ULL >> 20

cdef inline Topic *topic_by_name(TopicsRef *topics, const uint8_t *name, uint64_t length) noexcept nogil:
    cdef uint64_t at = hash_name(name, length) & topics.names.mask
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
    cdef _free(self)
    cdef _grow(self, uint64_t room)
    cdef _drop(self, bytes topic_id)
    cdef int _reindex(self) except -1
