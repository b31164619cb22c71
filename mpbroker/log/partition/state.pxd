"""State of a partition that the log process appends to.

It has the active segment, its indexes, and the partition's slot in the table, published or about to be.
"""
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint32_t, uint64_t

from mpbroker.ipc.table cimport Bound, PartitionSlot
from mpbroker.storage.index cimport LARGEST_RELATIVE, IndexRef, index_add, index_full, time_index_add
from mpbroker.storage.producer_state cimport Producers, ProducersRef

cdef enum:
    NOTHING_PLANNED = -1

cdef struct PartitionCore:
    PartitionSlot slot              # as published, or as it will be next
    uint64_t table_slot
    ProducersRef *producers
    Bound first_unstable            # where the earliest open transaction begins; its offset is -1 if none is
    # the active segment
    int fd
    int appendable                  # whether the turn may append by itself
    int64_t segment_base
    int64_t size
    int64_t log_end
    int64_t max_timestamp           # largest of the segment ...
    int64_t max_timestamp_offset    # ... and the last offset of its batch
    int64_t first_timestamp         # largest of the segment's first append; -1: unknown or none
    int64_t created_ms
    int64_t bytes_since_index
    IndexRef index
    IndexRef time_index
    # settings of the topic
    int64_t segment_bytes
    int64_t segment_ms              # without the jitter
    int64_t index_interval_bytes
    int append_time                 # LogAppendTime
    int64_t flush_messages          # records in no synced segment that make a flush due
    int64_t flush_ms                # time in no synced segment, too; INT64_MAX: never
    uint32_t oldest_config_version  # batches checked under older settings are not taken
    # durability
    int moved                       # to be published at the end of this round ...
    int wakes                       # ... with a ring for the handlers that wait for it
    int unsynced                    # appended to since the last commit round began
    int in_flight                   # number of commit rounds in flight with appends of it
    Bound covered                   # it is durable up to here when those rounds are done
    # The next round syncs the segment itself: the rest of a failed write was cut off, or a flush is due.
    int syncs_itself
    # Without group commit: its marks wait for the round all the same, since a flush was due.
    int awaits_flush
    uint64_t commit_number                 # the commit round that covers its latest append
    int64_t coming_start            # the log start offset, once the round that ships it is finished
    int64_t synced                  # all below this offset is in synced segments, ...
    int64_t syncing                 # ... and below this one after the background sync
    int is_behind                   # the journal has what no synced segment has ...
    uint64_t first_record           # ... from this record on (`journal_ring.pxd`)
    PartitionCore *older
    PartitionCore *newer
    # the round that is being gathered
    int32_t first_planned
    int32_t last_planned
    int32_t planned_count
    int64_t planned_end             # log end once all that is planned is written, ...
    int64_t planned_size            # ... and size of the segment then

cdef inline bint roll_due(
    const PartitionCore *core, int64_t size, int64_t last_offset, int64_t length, int64_t max_timestamp,
    int64_t now_ms,
) noexcept nogil:
    """Return whether the batch must go to a new segment (Kafka: LogSegment.shouldRoll).

    An empty segment never rolls: a new one would gain nothing.
    """
    cdef int64_t waited_ms
    if size == 0:
        return False
    if size > core.segment_bytes - length or last_offset - core.segment_base > LARGEST_RELATIVE:
        return True
    if index_full(&core.index) or core.time_index.entries >= core.time_index.room - 1:
        return True
    waited_ms = (
        max_timestamp - core.first_timestamp if core.first_timestamp >= 0 else now_ms - core.created_ms
    )
    return waited_ms > core.segment_ms

cdef inline void note_batch(
    PartitionCore *core, int64_t last_offset, int64_t position, int64_t length, int64_t max_timestamp,
) noexcept nogil:
    """Update size, largest timestamp and indexes after a batch was written (Kafka: LogSegment.append)."""
    if core.size == 0:
        core.first_timestamp = max_timestamp
    if max_timestamp > core.max_timestamp:
        core.max_timestamp = max_timestamp
        core.max_timestamp_offset = last_offset
    if core.bytes_since_index > core.index_interval_bytes:
        index_add(&core.index, last_offset, position)
        time_index_add(&core.time_index, core.max_timestamp, core.max_timestamp_offset, False)
        core.bytes_since_index = 0
    core.bytes_since_index += length
    core.size = position + length
    core.log_end = last_offset + 1

cdef inline Bound end_bound(const PartitionCore *core) noexcept nogil:
    cdef Bound bound
    bound.offset = core.log_end
    bound.segment_base = core.segment_base
    bound.position = core.size
    return bound

cdef inline Bound stable_bound(const PartitionCore *core) noexcept nogil:
    """Return the last stable offset once the log is durable up to its present end.

    (Kafka: ProducerStateManager.firstUnstableOffset.)
    """
    return core.first_unstable if core.first_unstable.offset >= 0 else end_bound(core)


cdef inline bint nothing_waits(const PartitionCore *core) noexcept nogil:
    if core.flush_ms != INT64_MAX and core.synced < core.log_end:
        return False
    return not (
        core.unsynced or core.in_flight or core.is_behind or core.syncing > core.synced
        or core.first_planned != NOTHING_PLANNED
    )


cdef class PartitionState:
    cdef PartitionCore core
    cdef readonly Producers producers
    cdef int64_t index_bytes        # of the next segment
    cdef bint apply(
        self, int64_t last_offset, int64_t position, int64_t length, int64_t max_timestamp,
    ) noexcept nogil
