"""Produce jobs shared by several log workers. See `shared_jobs.pxd` for the protocol."""
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from mpbroker.ipc.jobs cimport (
    NO_ERROR, PRODUCE_KEY, UNKNOWN_SERVER_ERROR, batches_of, fill_holes, is_failure,
)
from mpbroker.ipc.meters cimport MetersRef, TopicMeter, count_error, count_topic, topic_cell
from mpbroker.ipc.slots cimport (
    CLOSE, NOOP, SEND, THROTTLED_BY_SHIFT, JobBatch, JobHeader, ProduceSlot, ReplySlot,
)
from shm.arena cimport block_capacity
from shm.counters cimport monotonic_ns

cdef enum:
    NONE_FREE = 0xFFFFFFFF


cdef JobHeader *header_of(const ProduceSlot *job, uint8_t *arena) noexcept nogil:
    return <JobHeader *>(arena + job.block + job.job)


cdef SharedJob *shared_begin(SharedJobs *jobs, const ProduceSlot *job, uint8_t *arena) noexcept nogil:
    """Return a new entry for a job that all workers in its header must return; NULL if memory runs out.

    Each batch's error is UNKNOWN_SERVER_ERROR at first, so that a batch without a result counts as failed.
    """
    cdef JobHeader *header = header_of(job, arena)
    cdef SharedJob *grown
    cdef SharedJob *entry
    cdef uint32_t i, room
    if jobs.count == jobs.room:
        room = jobs.room * 2 + 64
        grown = <SharedJob *>realloc(jobs.entries, room * sizeof(SharedJob))
        if grown == NULL:
            return NULL
        jobs.entries = grown
        memset(&grown[jobs.room], 0, (room - jobs.room) * sizeof(SharedJob))
        for i in range(jobs.room, room):
            grown[i].next_free = i + 1 if i + 1 < room else <uint32_t>NONE_FREE
        jobs.first_free, jobs.room = jobs.room, room
    entry = &jobs.entries[jobs.first_free]
    jobs.first_free = entry.next_free
    jobs.count += 1
    entry.job, entry.owing = job[0], header.workers
    entry.used, entry.lost, entry.dropped = True, False, False
    for i in range(header.batches):
        batches_of(header)[i].error = UNKNOWN_SERVER_ERROR
    return entry


cdef SharedJob *shared_returned(SharedJobs *jobs, const ProduceSlot *back, uint32_t worker) noexcept nogil:
    """Note that a worker has returned the job. Return the entry if no worker still has the job, else NULL."""
    cdef SharedJob *entry
    if back.request >= jobs.room:
        return NULL
    entry = &jobs.entries[back.request]
    if (
        not entry.used or entry.job.block != back.block or entry.job.generation != back.generation
        or entry.job.owner != back.owner
    ):
        return NULL
    if not entry.owing >> worker & 1:
        return NULL
    entry.owing &= ~(<uint32_t>1 << worker)
    return entry if entry.owing == 0 else NULL


cdef void shared_end(SharedJobs *jobs, SharedJob *entry) noexcept nogil:
    entry.used = False
    entry.next_free = jobs.first_free
    jobs.first_free = shared_number(jobs, entry)
    jobs.count -= 1


cdef int worst_of(JobHeader *header, MetersRef *meters, bint is_told) noexcept nogil:
    """Return the error of a batch that failed, or NO_ERROR if all succeeded.

    Count the codes of all batches if one failed, or if the client gets a response (`is_told`).
    """
    cdef JobBatch *batch
    cdef int worst = NO_ERROR
    cdef uint32_t i
    for i in range(header.batches):
        if batches_of(header)[i].error != NO_ERROR:
            worst = batches_of(header)[i].error
    for i in range(header.batches if is_told or worst != NO_ERROR else 0):
        batch = &batches_of(header)[i]
        count_error(meters, PRODUCE_KEY, batch.error, 1)
        if batch.error != NO_ERROR and is_failure(batch.error):
            count_topic(topic_cell(meters, batch.slot, batch.slot_generation), TopicMeter.FAILED_PRODUCE, 1)
    return worst


cdef void shared_answer(
    const SharedJob *entry, uint8_t *arena, MetersRef *meters, ReplySlot *reply
) noexcept nogil:
    """Fill the descriptor `reply` when all workers have returned the job. `arena` is the processor's."""
    cdef const ProduceSlot *job = &entry.job
    cdef JobHeader *header = header_of(job, arena)
    cdef int worst
    memset(reply, 0, sizeof(ReplySlot))
    reply.channel, reply.connection, reply.request = job.channel, job.connection, job.request
    reply.owner, reply.done_ns = job.owner, monotonic_ns()
    if entry.lost:
        reply.kind = CLOSE
        return
    worst = worst_of(header, meters, job.acks != 0)
    if job.acks == 0:
        reply.kind = NOOP if worst == NO_ERROR else CLOSE
    else:
        reply.kind = SEND
        fill_holes(arena + job.block, block_capacity(arena, job.block), header)
        reply.position, reply.length = header.reply, header.reply_length
    reply.block, reply.generation = job.block, job.generation
    reply.queue_us, reply.local_us, reply.throttle_ms = job.queue_us, job.local_us, job.throttle_ms
    reply.flags = <uint8_t>(job.throttled_by << THROTTLED_BY_SHIFT)


cdef void shared_free(SharedJobs *jobs) noexcept nogil:
    free(jobs.entries)
    memset(jobs, 0, sizeof(SharedJobs))
