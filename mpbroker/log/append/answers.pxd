"""Answers to produce jobs: each is sent at once, or when the commit rounds that cover its batches are done.

Sending never blocks, and no answer is dropped: a descriptor that finds the receiver's ring full is kept in a
list, and is sent before later ones when there is room. Answers to a dead process are dropped, since its arena
is emptied.

A produce request waits at most for its timeout. Then each of its partitions whose batch is not durable yet is
answered with REQUEST_TIMED_OUT. The batch stays appended, and becomes visible when its commit round is done
(Kafka: DelayedProduce).
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from mpbroker.ipc.meters cimport MetersRef
from mpbroker.ipc.jobs cimport is_shared
from mpbroker.ipc.slots cimport JobBatch, JobHeader, ProduceSlot, ReplySlot
from mpbroker.log.partition.state cimport PartitionCore
from shm.counters cimport CountersRef
from shm.doorbell cimport BellRef
from shm.ring cimport RingRef, Slot

cdef enum:
    PROCESS_COUNT = 64
    NEVER_NS = -1

cdef struct Kept:
    Slot *slots                 # a list of descriptors that did not fit, oldest first
    uint64_t first
    uint64_t count
    uint64_t room

cdef struct DelayedProduce:
    ProduceSlot slot
    uint64_t commit_number             # the commit round that it waits for
    uint64_t deadline_ns
    int answered                # it has timed out and been answered

cdef struct AnswersRef:
    uint16_t process                    # this process's index
    uint32_t worker                     # its number among the log workers, and their count
    uint32_t workers
    RingRef *rings[PROCESS_COUNT]       # NULL: no process there to answer
    BellRef *bells[PROCESS_COUNT]
    uint64_t staged                     # processes with staged, unpublished slots, as a bit set
    Kept kept[PROCESS_COUNT]
    uint8_t *arenas[PROCESS_COUNT]
    uint64_t extents[PROCESS_COUNT]
    PartitionCore **cores               # by partition table slot; NULL: no partition
    uint64_t core_count
    DelayedProduce *waiting                    # a circular buffer
    uint64_t first
    uint64_t count
    uint64_t room                       # a power of two
    uint64_t next_deadline_ns
    uint64_t overdue                    # how many of `count` have timed out
    uint32_t waiting_of[PROCESS_COUNT]  # how many wait, by sender and by processor
    uint64_t now_ns
    CountersRef *counters
    MetersRef *meters

cdef JobHeader *job_of(AnswersRef *answers, const ProduceSlot *slot) noexcept nogil
cdef void answer(AnswersRef *answers, const ProduceSlot *slot, int timed_out) noexcept nogil
cdef void answer_later(AnswersRef *answers, const ProduceSlot *slot, uint64_t commit_number) noexcept nogil
cdef void answer_durable(AnswersRef *answers, uint64_t done) noexcept nogil
cdef void answer_overdue(AnswersRef *answers) noexcept nogil
cdef void give_up_waiting(AnswersRef *answers, int process, bint is_dead) noexcept nogil
cdef bint waits_for_others(AnswersRef *answers) noexcept nogil
cdef void count_delayed(AnswersRef *answers) noexcept nogil
cdef void push(AnswersRef *answers, int process, const Slot *slot) noexcept nogil
cdef void send_kept(AnswersRef *answers) noexcept nogil
cdef void publish_answers(AnswersRef *answers) noexcept nogil
cdef void forget_process(AnswersRef *answers, int process) noexcept nogil
cdef bint owes(AnswersRef *answers, int process) noexcept nogil

cdef inline bint is_ours(
    const AnswersRef *answers, const ProduceSlot *slot, const JobBatch *batch
) noexcept nogil:
    """Return whether this log worker handles the batch.

    If several workers share a job, each worker handles the batches of its own partitions, and does not even
    read the other batches, which the other workers write to at the same time. Of any other job, this worker
    handles all batches, and refuses a batch whose partition it does not have.
    """
    if answers.workers == 1 or not is_shared(slot):
        return True
    return batch.slot % answers.workers == answers.worker

cdef inline void fill(
    JobBatch *batch, int error, int64_t base_offset, int64_t append_time_ms, int64_t log_start
) noexcept nogil:
    batch.error, batch.base_offset, batch.append_time_ms, batch.log_start_offset = (
        error, base_offset, append_time_ms, log_start)
