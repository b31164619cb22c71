"""Native implementation of the answers to produce jobs, described in `answers.pxd`."""
from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libc.stdlib cimport abort, free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from mpbroker.ipc.counters cimport (
    COUNT_ERRORS, COUNT_PRODUCES_DELAYED, COUNT_PRODUCES_EXPIRED, COUNT_RESPONSES, COUNT_RING_FULL,
)
from mpbroker.ipc.jobs cimport (
    KAFKA_STORAGE_ERROR, NO_ERROR, PRODUCE_KEY, REQUEST_TIMED_OUT, batches_of, fill_holes, is_failure,
    is_shared,
)
from mpbroker.ipc.meters cimport TopicMeter, count_error, count_topic, topic_cell
from mpbroker.ipc.slots cimport (
    CLOSE, NOOP, PRODUCE, PRODUCED, SEND, THROTTLED_BY_SHIFT, JobBatch, JobHeader, ProduceSlot, ReplySlot,
)
from mpbroker.ipc.table cimport PARTITION_OFFLINE
from mpbroker.ipc.topology import COORDINATOR as _COORDINATOR
from mpbroker.log.partition.state cimport PartitionCore
from shm.arena cimport BLOCK_HEADER_BYTES, block_capacity, block_generation
from shm.counters cimport counter_add, counter_set
from shm.doorbell cimport bell_ring
from shm.ring cimport Slot, ring_publish, ring_stage, ring_want_space


cdef int COORDINATOR = _COORDINATOR


cdef JobHeader *job_of(AnswersRef *answers, const ProduceSlot *slot) noexcept nogil:
    """Return the job that a descriptor names, or NULL if its block was reused or does not contain the job.
    """
    cdef uint8_t *base
    cdef uint64_t capacity
    cdef JobHeader *job
    if slot.owner >= PROCESS_COUNT or answers.arenas[slot.owner] == NULL:
        return NULL
    base = answers.arenas[slot.owner]
    if slot.block < BLOCK_HEADER_BYTES or slot.block >= answers.extents[slot.owner]:
        return NULL
    if block_generation(base, slot.block) != slot.generation:
        return NULL
    capacity = block_capacity(base, slot.block)
    if slot.job % 8 or slot.job + sizeof(JobHeader) > capacity:
        return NULL
    job = <JobHeader *>(base + slot.block + slot.job)
    if slot.job + sizeof(JobHeader) + <uint64_t>job.batches * sizeof(JobBatch) > capacity:
        return NULL
    if <uint64_t>job.reply + job.reply_length > capacity:
        return NULL
    return job


cdef bint is_durable(PartitionCore *core, JobBatch *batch) noexcept nogil:
    if core == NULL or core.slot.generation != batch.slot_generation:
        return False
    return batch.base_offset + batch.count <= core.slot.high_watermark.offset


cdef int worst_of(AnswersRef *answers, const ProduceSlot *slot, JobHeader *job, int timed_out) noexcept nogil:
    """Set the error of batches whose partition went offline and, if `timed_out`, of batches not yet durable.

    Return the error of the last failed batch, or NO_ERROR.
    """
    cdef int worst = NO_ERROR
    cdef JobBatch *batch
    cdef PartitionCore *core
    cdef uint32_t i
    for i in range(job.batches):
        batch = &batches_of(job)[i]
        if not is_ours(answers, slot, batch):
            continue
        core = answers.cores[batch.slot] if batch.slot < answers.core_count else NULL
        if batch.error == NO_ERROR:
            if (core != NULL and core.slot.generation == batch.slot_generation
                    and core.slot.flags & PARTITION_OFFLINE):
                fill(batch, KAFKA_STORAGE_ERROR, -1, -1, -1)
            elif timed_out and not is_durable(core, batch):
                batch.error = REQUEST_TIMED_OUT
                counter_add(answers.counters, COUNT_PRODUCES_EXPIRED, 1)
        if batch.error != NO_ERROR:
            worst = batch.error
    return worst


cdef void count_answer(AnswersRef *answers, JobHeader *job) noexcept nogil:
    """Count an answer that is sent directly to the processor.

    A sender that gets its job back counts the answer itself.
    """
    cdef JobBatch *batch
    cdef uint32_t i
    for i in range(job.batches):
        batch = &batches_of(job)[i]
        count_error(answers.meters, PRODUCE_KEY, batch.error, 1)
        if batch.error != NO_ERROR and is_failure(batch.error):
            count_topic(
                topic_cell(answers.meters, batch.slot, batch.slot_generation), TopicMeter.FAILED_PRODUCE, 1)


cdef void answer(AnswersRef *answers, const ProduceSlot *slot, int timed_out) noexcept nogil:
    """Send the batches' results to the processor if the slot's kind is PRODUCE, else to the job's sender."""
    cdef JobHeader *job = job_of(answers, slot)
    cdef ProduceSlot back
    cdef ReplySlot reply
    cdef int worst
    if job == NULL:
        counter_add(answers.counters, COUNT_ERRORS, 1)
        return
    worst = worst_of(answers, slot, job, timed_out)
    counter_add(answers.counters, COUNT_RESPONSES, 1)
    if slot.kind != PRODUCE:
        back = slot[0]
        back.kind, back.sender = PRODUCED, answers.process
        push_bytes(answers, slot.sender, &back)
        return
    memset(&reply, 0, sizeof(reply))
    if slot.acks != 0 or worst != NO_ERROR:
        count_answer(answers, job)
    if slot.acks == 0:
        reply.kind = NOOP if worst == NO_ERROR else CLOSE
    else:
        reply.kind = SEND
        fill_holes(
            answers.arenas[slot.owner] + slot.block,
            block_capacity(answers.arenas[slot.owner], slot.block), job)
        reply.position = job.reply
        reply.length = job.reply_length
    reply.owner, reply.channel, reply.connection = slot.owner, slot.channel, slot.connection
    reply.block, reply.generation, reply.request = slot.block, slot.generation, slot.request
    reply.done_ns = answers.now_ns
    reply.queue_us, reply.local_us, reply.throttle_ms = slot.queue_us, slot.local_us, slot.throttle_ms
    reply.flags = <uint8_t>(slot.throttled_by << THROTTLED_BY_SHIFT)
    push_bytes(answers, slot.processor, &reply)


# ---- waiting for a commit round ----

cdef void answer_later(AnswersRef *answers, const ProduceSlot *slot, uint64_t commit_number) noexcept nogil:
    """Keep the answer until the commit round `commit_number` is done.

    If memory is exhausted the process ends: an early answer would be wrong, and a missing one would keep the
    client waiting for ever.
    """
    cdef DelayedProduce *grown
    cdef DelayedProduce *entry
    cdef uint64_t i, room
    if answers.count == answers.room:
        room = answers.room * 2 if answers.room else 1024
        grown = <DelayedProduce *>malloc(room * sizeof(DelayedProduce))
        if grown == NULL:
            abort()
        for i in range(answers.count):
            grown[i] = answers.waiting[(answers.first + i) & (answers.room - 1)]
        free(answers.waiting)
        answers.waiting, answers.room, answers.first = grown, room, 0
    entry = &answers.waiting[(answers.first + answers.count) & (answers.room - 1)]
    entry.slot = slot[0]
    entry.commit_number = commit_number
    entry.deadline_ns = answers.now_ns + <uint64_t>slot.timeout_ms * 1000000
    entry.answered = 0
    answers.next_deadline_ns = min(answers.next_deadline_ns, entry.deadline_ns)
    answers.count += 1
    count_waiting(answers, slot, 1)


cdef void count_waiting(AnswersRef *answers, const ProduceSlot *slot, int change) noexcept nogil:
    answers.waiting_of[slot.sender] += change
    if goes_to_processor(slot):
        answers.waiting_of[slot.processor] += change


cdef bint goes_to_processor(const ProduceSlot *slot) noexcept nogil:
    return slot.kind == PRODUCE or is_shared(slot)


cdef bint concerns(const ProduceSlot *slot, int process) noexcept nogil:
    """Return whether `owes` counts a waiting job for the process."""
    return slot.sender == process or slot.processor == process and goes_to_processor(slot)


cdef void answer_durable(AnswersRef *answers, uint64_t done) noexcept nogil:
    """Send the answers that waited for commit rounds up to and including `done`."""
    cdef DelayedProduce *entry
    while answers.count:
        entry = &answers.waiting[answers.first & (answers.room - 1)]
        if not entry.answered:
            if entry.commit_number > done:
                return
            answer(answers, &entry.slot, False)
            count_waiting(answers, &entry.slot, -1)
        else:
            answers.overdue -= 1
        answers.first += 1
        answers.count -= 1
    answers.next_deadline_ns = <uint64_t>NEVER_NS


cdef void answer_overdue(AnswersRef *answers) noexcept nogil:
    """Answer with REQUEST_TIMED_OUT the jobs whose requests timed out. Their batches stay appended."""
    cdef DelayedProduce *entry
    cdef uint64_t i
    if answers.now_ns < answers.next_deadline_ns:
        return
    answers.next_deadline_ns = <uint64_t>NEVER_NS
    for i in range(answers.count):
        entry = &answers.waiting[(answers.first + i) & (answers.room - 1)]
        if entry.answered:
            continue
        if entry.deadline_ns <= answers.now_ns:
            entry.answered = 1
            answers.overdue += 1
            answer(answers, &entry.slot, True)
            count_waiting(answers, &entry.slot, -1)
        else:
            answers.next_deadline_ns = min(answers.next_deadline_ns, entry.deadline_ns)


cdef void give_up_waiting(AnswersRef *answers, int process, bint is_dead) noexcept nogil:
    """Answer as after their time-outs the jobs that the fence of `process` waits for.

    If that is dead, these are its own. If not, it is another log worker, and whoever waits for both is meant.
    A job of the coordinator has a part for each worker, and goes on to wait: it has no time-out.
    """
    cdef DelayedProduce *entry
    cdef uint64_t i
    for i in range(answers.count):
        entry = &answers.waiting[(answers.first + i) & (answers.room - 1)]
        if entry.answered:
            continue
        if is_dead and not concerns(&entry.slot, process):
            continue
        if not is_dead and entry.slot.sender == COORDINATOR:
            continue
        entry.answered = 1
        answers.overdue += 1
        answer(answers, &entry.slot, True)
        count_waiting(answers, &entry.slot, -1)


cdef bint waits_for_others(AnswersRef *answers) noexcept nogil:
    """Return whether a job of another process than the coordinator waits."""
    cdef DelayedProduce *entry
    cdef uint64_t i
    for i in range(answers.count):
        entry = &answers.waiting[(answers.first + i) & (answers.room - 1)]
        if not entry.answered and entry.slot.sender != COORDINATOR:
            return True
    return False


cdef void count_delayed(AnswersRef *answers) noexcept nogil:
    counter_set(answers.counters, COUNT_PRODUCES_DELAYED, answers.count - answers.overdue)


# ---- pushing ----

cdef void push_bytes(AnswersRef *answers, int process, const void *descriptor) noexcept nogil:
    cdef Slot slot
    memcpy(&slot, descriptor, sizeof(slot))
    push(answers, process, &slot)


cdef void push(AnswersRef *answers, int process, const Slot *slot) noexcept nogil:
    cdef RingRef *ring
    if process < 0 or process >= PROCESS_COUNT or answers.rings[process] == NULL:
        return
    ring = answers.rings[process]
    if answers.kept[process].count == 0 and ring_stage(ring, slot):
        answers.staged |= <uint64_t>1 << process
        return
    counter_add(answers.counters, COUNT_RING_FULL, 1)
    keep(&answers.kept[process], slot)


cdef void keep(Kept *kept, const Slot *slot) noexcept nogil:
    cdef Slot *grown
    if kept.first and kept.first + kept.count == kept.room:
        memmove(kept.slots, kept.slots + kept.first, kept.count * sizeof(Slot))
        kept.first = 0
    if kept.count == kept.room:
        grown = <Slot *>realloc(kept.slots, (kept.room * 2 + 256) * sizeof(Slot))
        if grown == NULL:
            abort()  # a lost descriptor would leave a client without an answer and a block lent for ever
        kept.slots = grown
        kept.room = kept.room * 2 + 256
    kept.slots[kept.first + kept.count] = slot[0]
    kept.count += 1


cdef void stage_kept(AnswersRef *answers, int process) noexcept nogil:
    cdef Kept *kept = &answers.kept[process]
    while kept.count and ring_stage(answers.rings[process], &kept.slots[kept.first]):
        kept.first += 1
        kept.count -= 1
        answers.staged |= <uint64_t>1 << process


cdef void send_kept(AnswersRef *answers) noexcept nogil:
    """Send the descriptors that did not fit into their rings earlier, as many as fit now."""
    cdef int process
    cdef Kept *kept
    for process in range(PROCESS_COUNT):
        kept = &answers.kept[process]
        if kept.count == 0:
            continue
        stage_kept(answers, process)
        if kept.count:
            # Room may have appeared before the consumer saw the request for it.
            ring_want_space(answers.rings[process], True)
            stage_kept(answers, process)
        if kept.count == 0:
            kept.first = 0
            ring_want_space(answers.rings[process], False)


cdef void publish_answers(AnswersRef *answers) noexcept nogil:
    """Publish the staged answers with one release store for each receiver, and ring its doorbell once."""
    cdef int process
    cdef uint64_t staged = answers.staged
    answers.staged = 0
    for process in range(PROCESS_COUNT):
        if staged >> process & 1 and answers.rings[process] != NULL:
            ring_publish(answers.rings[process])
            bell_ring(answers.bells[process])


cdef void forget_process(AnswersRef *answers, int process) noexcept nogil:
    """Drop all answers to a dead process."""
    answers.rings[process] = NULL
    answers.kept[process].first = answers.kept[process].count = 0
    answers.staged &= ~(<uint64_t>1 << process)


cdef bint owes(AnswersRef *answers, int process) noexcept nogil:
    """Return whether an answer to `process`, or to a job that `process` sent, is outstanding."""
    cdef uint64_t i
    cdef int target
    cdef ReplySlot kept
    if answers.waiting_of[process]:
        return True
    for target in range(PROCESS_COUNT):
        for i in range(answers.kept[target].count):
            memcpy(&kept, &answers.kept[target].slots[answers.kept[target].first + i], sizeof(kept))
            if target == process or kept.owner == process:
                return True
    return False
