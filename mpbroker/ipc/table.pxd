"""The payload of a slot in the partition table: the state of one partition.

The log process of the slot writes it; all processes and Spark read it.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cpdef enum PartitionFlag:
    PARTITION_LIVE = 1      # appendable and readable
    PARTITION_OFFLINE = 2   # its log directory failed: KAFKA_STORAGE_ERROR
    PARTITION_DELETED = 4   # the slot waits for another partition
    # By the topic's settings, whatever state the partition is in:
    PARTITION_TIERED = 8            # its sealed segments go to the object store
    PARTITION_COPY_DISABLED = 16    # ... no longer: what the store has stays there and is served
    PARTITION_REMOTE_DELETED = 32   # tiering was switched off: what the store has is removed

# The place where a reader bound by the offset has to stop: the first byte that is not visible to it.
cdef struct Bound:
    int64_t offset
    int64_t segment_base
    int64_t position

cdef struct PartitionSlot:
    uint8_t topic_id[16]
    int32_t partition
    uint32_t generation         # grows when the slot gets another partition; 0: never used
    uint32_t flags
    uint32_t config_version
    int32_t leader_epoch
    uint16_t log_dir            # index in log.dirs
    uint16_t reserved
    int64_t log_start_offset
    Bound high_watermark
    Bound last_stable
    int64_t log_end_offset
    int64_t aborted_end         # markers of aborted transactions lie below it; 0: none were aborted
    uint8_t padding[16]

# Beside each slot are two words, each generation << 32 | version, that count while the generation is the
# slot's. The version grows with each change of a file:
#   damaged   the scrubber's: the damaged ranges of the partition in the scrubber's file; 0: no damage
#   remote    the tier's: the partition's segments in the object store, in its `mpbroker.remote`
cdef inline uint32_t version_in(uint64_t word, uint32_t generation) noexcept nogil:
    """Return the version in a word; 0 if the word is of another generation."""
    return <uint32_t>word if word >> 32 == generation else 0
