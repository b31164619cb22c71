"""The batches that a round is about to write, in a list for each partition."""
from libc.stdint cimport int32_t, int64_t, uint8_t
from posix.uio cimport iovec

from mpbroker.ipc.slots cimport JobBatch
from mpbroker.log.partition.state cimport NOTHING_PLANNED, PartitionCore
from mpbroker.log.io.write cimport write_pieces
from mpbroker.storage.producer_state cimport Producer

cdef enum:
    IOV_MOST = 1024

cdef struct PlannedBatch:
    PartitionCore *core
    JobBatch *batch
    uint8_t *data
    int64_t base_offset
    int64_t max_timestamp
    int64_t append_time_ms
    int32_t next                # the next one of the same partition
    int duplicate
    int has_producer
    Producer before             # restored if the write fails

cdef inline int write_planned(const PlannedBatch *planned, const PartitionCore *core) noexcept nogil:
    """Write everything planned for the partition at the end of its segment; return an errno, or 0."""
    cdef iovec pieces[IOV_MOST]
    cdef int32_t at = core.first_planned
    cdef int64_t position = core.size
    cdef int count, error
    while at != NOTHING_PLANNED:
        count = 0
        while at != NOTHING_PLANNED and count < IOV_MOST:
            if not planned[at].duplicate:
                pieces[count].iov_base = planned[at].data
                pieces[count].iov_len = planned[at].batch.length
                count += 1
            at = planned[at].next
        error = write_pieces(core.fd, pieces, count, &position)
        if error:
            return error
    return 0
