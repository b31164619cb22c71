"""The common Produce request (v3-13), decoded, validated and turned into a job without Python (KIP-98).

The body is read twice. `measure` walks its structure and checks every bound. `accept` then finds the
topics, validates the batches and writes the job and the response after the request, in the rest of its block:

    | frame of the request | pad to 8 | JobHeader | n times JobBatch | response frame with holes | free |

Compressed batches are unpacked to be validated (records/unpack.h), up to 1 MiB for a request. Anything
uncommon (an error of any kind, a batch that has to be recompressed, a transaction, too little room) is left
to the slow path. If a request is left, only bytes after its frame have changed.
"""
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from mpbroker.handlers.hot_path.topic_table cimport TopicsRef
from mpbroker.ipc.slots cimport ProduceSlot, RequestSlot
from mpbroker.records.unpack cimport Unpacker

cdef enum:
    FIRST_PRODUCE_VERSION = 3
    LAST_PRODUCE_VERSION = 13
    FIRST_LOG_START_VERSION = 5
    FIRST_ZSTD_VERSION = 7
    FIRST_RECORD_ERRORS_VERSION = 8
    FIRST_FLEXIBLE_VERSION = 9
    FIRST_TOPIC_ID_VERSION = 13

cdef struct Shape:
    int8_t acks
    int32_t timeout_ms
    uint32_t topics
    uint32_t partitions
    uint32_t topics_at          # position in the body of the first byte after the count of topics
    uint64_t reply_bytes        # of the whole response frame
    uint32_t workers            # log workers that have partitions of it, a bit each

cdef bint measure(const uint8_t *body, uint64_t length, int version, Shape *shape) noexcept nogil
cdef void set_throttle(
    ProduceSlot *job, uint8_t *arena, int version, uint32_t throttle_ms, int by
) noexcept nogil
cdef bint try_produce(
    RequestSlot *request, uint8_t *arena, TopicsRef *topics, Unpacker *unpacker, int64_t now_ms,
    uint16_t sender, ProduceSlot *out
) noexcept nogil
