"""The native turn of the log process. `turn.pxd` describes a round."""
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec
from posix.unistd cimport ftruncate

from mpbroker.ipc.counters cimport (
    BATCHES_PER_ROUND, COUNT_BATCHES_APPENDED, COUNT_BYTES_APPENDED, COUNT_DUPLICATES, COUNT_ERRORS,
    COUNT_IDLE_NS, COUNT_PRODUCE_SLOW, COUNT_RECORDS_APPENDED, COUNT_REQUESTS, COUNT_UNSHIPPED_REFUSED,
    COUNT_WAKEUPS, REQUESTS_PER_TURN, TIME_APPEND_NS,
)
from mpbroker.ipc.jobs cimport (
    KAFKA_STORAGE_ERROR, NO_ERROR, NOT_ENOUGH_REPLICAS, NOT_LEADER_OR_FOLLOWER,
    UNKNOWN_TOPIC_OR_PARTITION, batches_of,
)
from mpbroker.ipc.loop cimport NATIVE_AT_MOST_NS
from mpbroker.ipc.meters cimport Meters, TopicMeter, count_topic, topic_cell
from mpbroker.ipc.slots cimport PRODUCE, PRODUCE_BACK, JobBatch, JobHeader, ProduceSlot
from mpbroker.ipc.table cimport PARTITION_DELETED, PARTITION_LIVE, PARTITION_OFFLINE
from mpbroker.ipc.unshipped cimport Unshipped
from mpbroker.log.append.answers cimport (
    NEVER_NS, PROCESS_COUNT, answer, answer_later, answer_overdue, count_delayed, fill,
    forget_process, give_up_waiting, is_ours, job_of, owes, publish_answers, push, send_kept,
    waits_for_others,
)
from mpbroker.log.append.commit cimport (
    appended, ask_next, awaits_disk, awaits_too_much, coming_round, commit_close, commit_is_busy,
    commit_open, commit_start, fail_dir, finish_rounds, publish_moved, retire_file, something_is_done,
    sync_itself,
)
from mpbroker.log.append.paused_jobs cimport is_behind_paused, take_paused
from mpbroker.log.append.planned cimport write_planned
from mpbroker.log.partition.state cimport NOTHING_PLANNED, PartitionCore, PartitionState, note_batch, roll_due
from mpbroker.log.io.write cimport is_full_disk
from mpbroker.records.batch cimport (
    BATCH_HEADER_BYTES, CONTROL_BIT, NO_TIMESTAMP, TRANSACTIONAL_BIT, set_offset_and_epoch,
    stamp_log_append_time,
)
from mpbroker.storage.producer_state cimport (
    PRODUCER_DUPLICATE, PRODUCER_OK, Producer, ProducerBatch, producer_check, producer_find, producer_put,
    producer_update,
)
from shm.arena cimport Arena
from shm.atomics cimport load_acquire
from shm.counters cimport CounterPage, counter_add, heartbeat, histogram_record, monotonic_ns
from shm.doorbell cimport Doorbell, bell_arm, bell_disarm, bell_ring, bell_sleep
from shm.marks cimport WaitingMarks
from shm.ring cimport Ring, RingRef, Slot, ring_advance, ring_peek, ring_waiting
from shm.table cimport SlotTable
from shm.zeroed cimport zeroed

from mpbroker.ipc.slots import read_job_batch
from mpbroker.ipc.topology import COORDINATOR as _COORDINATOR
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpbroker.ipc.slots import Batch

cdef int COORDINATOR = _COORDINATOR

cdef enum:
    SLOW = -1                   # the batch is left to Python
    NEVER_MS = -1


cdef class AppendTurn:
    """The native turn of a log worker.

    Python binds the turn to rings, arenas and partitions, and does the work that the turn hands back.
    """

    def __cinit__(self, int64_t slots, *args):
        memset(&self.answers, 0, sizeof(self.answers))
        self.jobs = <Slot *>malloc(JOBS_PER_ROUND * sizeof(Slot))
        self.planned = <PlannedBatch *>malloc(BATCHES_PER_WRITE * sizeof(PlannedBatch))
        self.touched = <PartitionCore **>malloc(BATCHES_PER_WRITE * sizeof(PartitionCore *))
        self.answers.cores = <PartitionCore **>zeroed(slots, sizeof(PartitionCore *))
        self.answers.core_count = slots
        self.answers.next_deadline_ns = <uint64_t>NEVER_NS
        self.fixed_now_ms = NEVER_MS
        if (not commit_open(&self.commit, slots) or self.jobs == NULL or self.planned == NULL
                or self.touched == NULL):
            raise MemoryError("no memory for the log process's round")
        if self.answers.cores == NULL:
            raise MemoryError("no memory for the log process's partitions")

    def __init__(
        self, int64_t slots, SlotTable table, WaitingMarks marks, unsigned char[::1] dirty,
        unsigned char[::1] failed_dirs, CounterPage counters, Meters meters, Doorbell bell, bint group,
        int process=3, uint32_t worker=0, uint32_t workers=1, uint64_t others_failed=0,
        Unshipped unshipped=None,
    ):
        """Start the flusher's threads.

        `dirty` (a word for each handler) and `failed_dirs` (a bit set of log directories) are this worker's
        own. `others_failed` is the union of the other workers' `failed_dirs`. `unshipped`: rounds wait for
        the tier. Raises MemoryError, and OSError if a thread cannot be started.
        """
        self.answers.process, self.answers.worker, self.answers.workers = process, worker, workers
        self.states = [None] * slots
        self.table, self.meters = table, meters
        self.keep = [marks, dirty, counters, bell, failed_dirs, unshipped]
        if unshipped is not None:
            self.commit.unshipped = unshipped.ref
        self.answers.meters = &meters.ref
        self.commit.table, self.commit.marks = &table.ref, &marks.ref
        self.commit.dirty = <uint64_t *>&dirty[0]
        self.commit.shared_failed_dirs = <uint64_t *>&failed_dirs[0]
        self.commit.failed_dirs = load_acquire(self.commit.shared_failed_dirs) | others_failed
        self.commit.counters = self.answers.counters = &counters.ref
        self.commit.group = group
        self.bell = &bell.ref
        error = commit_start(&self.commit, bell.ref.armed, bell.ref.fd)
        if error:
            raise OSError(error, "the flusher's threads cannot be started")

    def __dealloc__(self):
        commit_close(&self.commit)
        free(self.jobs)
        free(self.paused.jobs)
        free(self.planned)
        free(self.touched)
        free(self.answers.cores)
        free(self.answers.waiting)
        for process in range(PROCESS_COUNT):
            free(self.answers.kept[process].slots)

    # ---- the round ----

    cdef int64_t now_ms(self) noexcept nogil:
        cdef timespec now
        if self.fixed_now_ms != NEVER_MS:
            return self.fixed_now_ms
        clock_gettime(CLOCK_REALTIME, &now)
        return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000

    cdef bint something_waits(self) noexcept nogil:
        cdef int process
        if self.paused.retrying:
            return True
        for process in range(PROCESS_COUNT):
            if self.inbox[process] != NULL and ring_waiting(self.inbox[process]):
                return True
        return something_is_done(&self.commit)

    cdef void sleep(self, int timeout_ms) noexcept nogil:
        cdef uint64_t before = monotonic_ns()
        cdef uint64_t left_ms
        if self.answers.next_deadline_ns != <uint64_t>NEVER_NS:
            left_ms = 0
            if self.answers.next_deadline_ns > before:
                left_ms = (self.answers.next_deadline_ns - before) // 1000000 + 1
            timeout_ms = <int>min(<uint64_t>timeout_ms, left_ms)
        bell_arm(self.bell)
        if not self.something_waits() and timeout_ms > 0:
            bell_sleep(self.bell, timeout_ms)
            counter_add(self.commit.counters, COUNT_WAKEUPS, 1)
        bell_disarm(self.bell)
        counter_add(self.commit.counters, COUNT_IDLE_NS, monotonic_ns() - before)

    cdef void take(self) noexcept nogil:
        """Copy waiting descriptors into `jobs`.

        The rings' heads advance before anything is appended: if this process dies, its successor does not
        append the taken jobs twice. If a round is full, the next round begins with the ring at which the full
        round stopped, so that no ring waits for ever.
        """
        cdef int n, process, first = self.first_inbox
        cdef RingRef *ring
        cdef uint64_t waiting, i
        if self.paused.retrying:
            self.job_count = take_paused(&self.paused, self.jobs, &self.batch)
            return
        for n in range(PROCESS_COUNT):
            process = first + n if first + n < PROCESS_COUNT else first + n - PROCESS_COUNT
            if self.job_count == JOBS_PER_ROUND:
                self.first_inbox = process
                return
            ring = self.inbox[process]
            if ring == NULL:
                continue
            waiting = min(ring_waiting(ring), <uint64_t>(JOBS_PER_ROUND - self.job_count))
            if waiting == 0:
                continue
            for i in range(waiting):
                memcpy(&self.jobs[self.job_count], ring_peek(ring, i), sizeof(Slot))
                self.job_count += 1
            if ring_advance(ring, waiting) and self.answers.bells[process] != NULL:
                bell_ring(self.answers.bells[process])

    cdef int gather(self) noexcept nogil:
        """Plan batches until all jobs are planned or Python is needed, then write the planned batches.

        Return a Pause.
        """
        cdef ProduceSlot *slot
        cdef JobHeader *job
        cdef int64_t now_ms = self.now_ms()
        cdef int pause = ROUND_DONE
        while self.job < self.job_count and pause == ROUND_DONE:
            slot = <ProduceSlot *>&self.jobs[self.job]
            if slot.kind != PRODUCE and slot.kind != PRODUCE_BACK:
                pause = SLOT_FOR_PYTHON
                break
            job = job_of(&self.answers, slot)
            if job != NULL and self.batch < job.batches and self.paused.count:
                if is_behind_paused(&self.paused, &self.jobs[self.job]):
                    pause = BATCH_FOR_PYTHON
                    break
            while job != NULL and self.batch < job.batches:
                if self.planned_count == BATCHES_PER_WRITE:
                    self.write_all()
                if not is_ours(&self.answers, slot, &batches_of(job)[self.batch]):
                    self.batch += 1
                    continue
                if self.by_reference or self.plan(slot, &batches_of(job)[self.batch], now_ms) == SLOW:
                    pause = BATCH_FOR_PYTHON
                    break
                self.batch += 1
            if pause == ROUND_DONE:
                self.job += 1
                self.batch = 0
        self.write_all()
        return pause

    cdef int refusal(self, JobBatch *batch) noexcept nogil:
        """Return the error code with which the batch is refused, or NO_ERROR.

        A batch is never appended to another partition than the one that it names.
        """
        cdef PartitionCore *core
        if batch.slot >= self.answers.core_count or batch.data_owner >= PROCESS_COUNT:
            return NOT_LEADER_OR_FOLLOWER
        core = self.answers.cores[batch.slot]
        if core == NULL or core.slot.generation != batch.slot_generation:
            return NOT_LEADER_OR_FOLLOWER
        if core.slot.flags & PARTITION_OFFLINE:
            return KAFKA_STORAGE_ERROR
        if core.slot.flags & PARTITION_DELETED:
            return UNKNOWN_TOPIC_OR_PARTITION
        if (not core.slot.flags & PARTITION_LIVE
                or not core.oldest_config_version <= batch.config_version <= core.slot.config_version):
            return NOT_LEADER_OR_FOLLOWER
        if (self.answers.arenas[batch.data_owner] == NULL or batch.length < BATCH_HEADER_BYTES
                or batch.count < 1):
            return NOT_LEADER_OR_FOLLOWER
        if batch.data + batch.length > self.answers.extents[batch.data_owner]:
            return NOT_LEADER_OR_FOLLOWER
        return NO_ERROR

    cdef int plan(self, const ProduceSlot *slot, JobBatch *batch, int64_t now_ms) noexcept nogil:
        cdef PartitionCore *core
        cdef PlannedBatch *planned = &self.planned[self.planned_count]
        cdef const ProducerBatch *original = NULL
        cdef int verdict = self.refusal(batch)
        cdef int64_t last_offset
        if verdict == NO_ERROR and slot.sender != COORDINATOR and awaits_too_much(&self.commit):
            verdict = NOT_ENOUGH_REPLICAS
            counter_add(self.commit.counters, COUNT_UNSHIPPED_REFUSED, 1)
        if verdict != NO_ERROR:
            fill(batch, verdict, -1, -1, -1)
            return NO_ERROR
        core = self.answers.cores[batch.slot]
        if not core.appendable or core.size == 0 or batch.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT):
            return SLOW
        if core.first_planned == NOTHING_PLANNED:
            core.planned_end, core.planned_size, core.planned_count = core.log_end, core.size, 0
        planned.max_timestamp = now_ms if core.append_time else batch.max_timestamp
        last_offset = core.planned_end + batch.count - 1
        if roll_due(core, core.planned_size, last_offset, batch.length, planned.max_timestamp, now_ms):
            return SLOW
        # Each batch of a round may add an entry.
        if core.time_index.entries + core.planned_count + 2 >= core.time_index.room:
            return SLOW
        planned.core, planned.batch, planned.next = core, batch, NOTHING_PLANNED
        planned.has_producer = batch.producer_id >= 0
        planned.duplicate = 0
        if planned.has_producer:
            verdict = producer_check(
                producer_find(core.producers, batch.producer_id), batch.producer_epoch, batch.base_sequence,
                batch.count, False, &original)
            if verdict == PRODUCER_DUPLICATE:
                planned.duplicate = 1
                planned.has_producer = 0
                planned.base_offset = original.last_offset - original.offset_delta
                planned.append_time_ms = original.timestamp
                self.enlist(core, self.planned_count)
                return NO_ERROR
            if verdict != PRODUCER_OK:
                fill(batch, verdict, -1, -1, core.slot.log_start_offset)
                return NO_ERROR
            planned.base_offset = core.planned_end
            if not self.remember(planned, batch.count):
                return SLOW
        planned.base_offset = core.planned_end
        planned.data = self.answers.arenas[batch.data_owner] + batch.data
        planned.append_time_ms = NO_TIMESTAMP
        set_offset_and_epoch(planned.data, core.planned_end, core.slot.leader_epoch)
        if core.append_time:
            planned.append_time_ms = now_ms
            stamp_log_append_time(planned.data, batch.length, now_ms)
        core.planned_end += batch.count
        core.planned_size += batch.length
        core.planned_count += 1
        self.enlist(core, self.planned_count)
        return NO_ERROR

    cdef bint remember(self, PlannedBatch *planned, int32_t count) noexcept nogil:
        """Put the planned batch into the producer state, so that the next batch is checked against it.

        Return False if memory is exhausted.
        """
        cdef JobBatch *batch = planned.batch
        cdef Producer *producer = producer_put(planned.core.producers, batch.producer_id)
        if producer == NULL:
            return False
        planned.before = producer[0]
        producer_update(
            producer, batch.producer_epoch, batch.base_sequence, count, planned.base_offset,
            planned.max_timestamp)
        return True

    cdef void enlist(self, PartitionCore *core, int32_t index) noexcept nogil:
        if core.first_planned == NOTHING_PLANNED:
            core.first_planned = index
            self.touched[self.touched_count] = core
            self.touched_count += 1
        else:
            self.planned[core.last_planned].next = index
        core.last_planned = index
        self.planned_count += 1

    cdef void write_all(self) noexcept nogil:
        cdef int32_t i
        cdef int error
        cdef PartitionCore *core
        for i in range(self.touched_count):
            core = self.touched[i]
            error = write_planned(self.planned, core)
            if error == 0:
                self.note_written(core)
            else:
                self.undo(core, error)
            core.first_planned = core.last_planned = NOTHING_PLANNED
        self.batches_done += self.planned_count
        self.planned_count = self.touched_count = 0

    cdef void note_written(self, PartitionCore *core) noexcept nogil:
        cdef int32_t at = core.first_planned
        cdef PlannedBatch *planned
        cdef JobBatch *batch
        cdef bint moved = False
        cdef uint64_t records = 0, size = 0
        while at != NOTHING_PLANNED:
            planned = &self.planned[at]
            batch = planned.batch
            fill(batch, NO_ERROR, planned.base_offset, planned.append_time_ms, core.slot.log_start_offset)
            at = planned.next
            if planned.duplicate:
                counter_add(self.commit.counters, COUNT_DUPLICATES, 1)
                continue
            note_batch(
                core, planned.base_offset + batch.count - 1, core.size, batch.length, planned.max_timestamp)
            counter_add(self.commit.counters, COUNT_BATCHES_APPENDED, 1)
            records += batch.count
            size += batch.length
            moved = True
        if moved:
            self.count_appended(core, records, size)
            appended(&self.commit, core, size)

    cdef void count_appended(self, PartitionCore *core, uint64_t records, uint64_t size) noexcept nogil:
        cdef uint64_t *cell = topic_cell(self.answers.meters, <uint32_t>core.table_slot, core.slot.generation)
        count_topic(cell, TopicMeter.MESSAGES_IN, records)
        count_topic(cell, TopicMeter.BYTES_IN, size)
        counter_add(self.commit.counters, COUNT_RECORDS_APPENDED, records)
        counter_add(self.commit.counters, COUNT_BYTES_APPENDED, size)

    cdef void undo(self, PartitionCore *core, int error) noexcept nogil:
        """Undo a failed write, of which no reader has seen anything.

        Truncate the file to its old end, and restore the state of producers, newest batch first.
        """
        cdef int32_t at
        cdef PlannedBatch *planned
        cdef Producer *producer
        sync_itself(&self.commit, core)
        if ftruncate(core.fd, core.size) != 0 or not is_full_disk(error):
            fail_dir(&self.commit, &self.answers, core.slot.log_dir, error)
        self.commit.last_errno = error
        for at in range(self.planned_count - 1, -1, -1):
            planned = &self.planned[at]
            if planned.core != core:
                continue
            fill(planned.batch, KAFKA_STORAGE_ERROR, -1, -1, -1)
            counter_add(self.commit.counters, COUNT_ERRORS, 1)
            if planned.has_producer:
                producer = producer_find(core.producers, planned.batch.producer_id)
                if producer != NULL:
                    producer[0] = planned.before

    cdef uint64_t commit_number_of(self, const ProduceSlot *slot, JobHeader *job) noexcept nogil:
        """Return the commit round after which all of the job is durable; 0 if it is durable already or
        nothing was appended.
        """
        cdef uint64_t commit_number = 0
        cdef uint32_t i
        cdef JobBatch *batch
        cdef PartitionCore *core
        for i in range(job.batches):
            batch = &batches_of(job)[i]
            if (not is_ours(&self.answers, slot, batch) or batch.error != NO_ERROR
                    or batch.slot >= self.answers.core_count):
                continue
            core = self.answers.cores[batch.slot]
            if core == NULL or core.slot.generation != batch.slot_generation:
                continue
            if batch.base_offset + batch.count > core.slot.high_watermark.offset:
                commit_number = max(commit_number, core.commit_number)
        return commit_number

    cdef bint awaits(self, const ProduceSlot *slot) noexcept nogil:
        """Return whether the job's sender is to be answered only when all of the job is durable.

        An acks=1 that was given before may be lost with this machine: not what the object store is for.
        """
        return slot.acks == -1 or slot.acks != 0 and self.commit.unshipped.head != NULL

    cdef void finish(self) noexcept nogil:
        """Answer the jobs of the round, all of which are appended or refused by now."""
        cdef int32_t i
        cdef ProduceSlot *slot
        cdef JobHeader *job
        cdef uint64_t commit_number
        self.answers.now_ns = monotonic_ns()
        for i in range(self.job_count):
            slot = <ProduceSlot *>&self.jobs[i]
            if slot.kind != PRODUCE and slot.kind != PRODUCE_BACK:
                continue
            job = job_of(&self.answers, slot)
            commit_number = self.commit_number_of(slot, job) if job != NULL and self.awaits(slot) else 0
            if commit_number <= self.commit.finished:
                answer(&self.answers, slot, False)
            else:
                answer_later(&self.answers, slot, commit_number)
        counter_add(self.commit.counters, COUNT_REQUESTS, self.job_count)
        histogram_record(self.commit.counters, REQUESTS_PER_TURN, self.job_count)
        histogram_record(self.commit.counters, BATCHES_PER_ROUND, self.batches_done)
        histogram_record(self.commit.counters, TIME_APPEND_NS, self.answers.now_ns - self.round_began_ns)
        self.job_count = self.job = 0
        self.batch = 0
        self.batches_done = 0

    cdef void settle(self) noexcept nogil:
        """Ask for the next commit round, publish the table, then the answers, then ring the bells."""
        ask_next(&self.commit)
        publish_moved(&self.commit, &self.answers)
        answer_overdue(&self.answers)
        count_delayed(&self.answers)
        send_kept(&self.answers)
        publish_answers(&self.answers)

    def run(self, int timeout_ms) -> int:
        """Run one round, or the rest of a paused one.

        Sleep at most `timeout_ms` first if nothing waits. Return a Pause.
        """
        cdef int pause
        with nogil:
            pause = self.round(timeout_ms)
        return pause

    def serve(self, int timeout_ms) -> int:
        """Run rounds, each as `run` does, until one finds no work or needs Python.

        No further round begins after `timeout_ms` or NATIVE_AT_MOST_NS. A return to Python between two rounds
        costs more than a round. Return the Pause of the last round.
        """
        cdef int pause, left_ms = timeout_ms
        cdef uint64_t begun_ns = monotonic_ns(), passed_ns
        with nogil:
            while True:
                pause = self.round(left_ms)
                passed_ns = monotonic_ns() - begun_ns
                left_ms = timeout_ms - <int>(passed_ns // 1000000)
                if pause != ROUND_DONE or passed_ns >= NATIVE_AT_MOST_NS or left_ms <= 0:
                    break
                if self.found == 0 or self.commit.news or self.commit.last_errno:
                    break
        return pause

    cdef int round(self, int timeout_ms) noexcept nogil:
        cdef int pause
        cdef uint64_t finished
        if self.job_count == 0:
            self.sleep(timeout_ms)
            self.round_began_ns = self.answers.now_ns = monotonic_ns()
            heartbeat(self.commit.counters, self.round_began_ns)
            finished = self.commit.finished
            finish_rounds(&self.commit, &self.answers)
            self.found = self.commit.finished != finished
            self.take()
        pause = self.gather()
        if pause == ROUND_DONE:
            if self.job_count:
                self.found += self.job_count
                self.finish()
            self.settle()
        return pause

    # ---- for Python, while a round is paused ----

    def current_slot(self) -> bytes:
        """Return the descriptor that paused the round (SLOT_FOR_PYTHON). Call `skip_slot` afterwards."""
        return (<char *>&self.jobs[self.job])[:sizeof(Slot)]

    def skip_slot(self) -> None:
        self.job += 1
        self.batch = 0

    @property
    def must_wait(self) -> bool:
        """True if the job that paused the round must wait for an earlier paused job of its connection."""
        return self.paused.count != 0 and is_behind_paused(&self.paused, &self.jobs[self.job])

    def current_batch(self) -> tuple[Batch, memoryview | None]:
        """Return the batch that paused the round (BATCH_FOR_PYTHON): its entry in the job, and its bytes.

        The bytes are None if the entry names a place outside of the arena. Call `finish_batch` afterwards.
        """
        cdef JobHeader *job = job_of(&self.answers, <ProduceSlot *>&self.jobs[self.job])
        cdef JobBatch *batch = &batches_of(job)[self.batch]
        cdef int64_t job_bytes = sizeof(JobHeader) + job.batches * sizeof(JobBatch)
        cdef int64_t length = batch.length
        entry = read_job_batch(<unsigned char[:job_bytes]><unsigned char *>job, self.batch)
        if (batch.data_owner >= PROCESS_COUNT or self.answers.arenas[batch.data_owner] == NULL
                or length < BATCH_HEADER_BYTES):
            return entry, None
        if batch.data + length > self.answers.extents[batch.data_owner]:
            return entry, None
        return entry, memoryview(<unsigned char[:length]>(self.answers.arenas[batch.data_owner] + batch.data))

    def finish_batch(
        self, int error, int64_t base_offset, int64_t append_time_ms, int64_t log_start, bint was_appended
    ) -> None:
        """Record the outcome of the batch that Python was given. Gathering continues after this batch."""
        cdef JobHeader *job = job_of(&self.answers, <ProduceSlot *>&self.jobs[self.job])
        cdef JobBatch *batch = &batches_of(job)[self.batch]
        cdef PartitionCore *core = (
            self.answers.cores[batch.slot] if batch.slot < self.answers.core_count else NULL)
        fill(batch, error, base_offset, append_time_ms, log_start)
        if was_appended:
            appended(&self.commit, core, batch.length)
            counter_add(self.commit.counters, COUNT_BATCHES_APPENDED, 1)
            self.count_appended(core, batch.count, batch.length)
        elif core != NULL and core.syncs_itself:
            sync_itself(&self.commit, core)
        counter_add(self.commit.counters, COUNT_PRODUCE_SLOW, 1)
        self.batches_done += 1
        self.batch += 1

    # ---- processes that take part ----

    def bind(
        self, int process, inbox: Ring | None, outbox: Ring | None, Doorbell bell, arena: Arena | None,
    ) -> None:
        """Connect another process to this one by its rings, its doorbell, and its arena if it lends blocks.

        `inbox` is the ring to this process, `outbox` the ring to the other one; None: no such ring.
        """
        self.keep += [inbox, outbox, bell, arena]
        self.inbox[process] = &inbox.ref if inbox is not None else NULL
        self.answers.rings[process] = &outbox.ref if outbox is not None else NULL
        self.answers.bells[process] = &bell.ref
        if arena is not None:
            self.answers.arenas[process] = arena.ref.base
            self.answers.extents[process] = arena.ref.extent

    def forget(self, int process) -> None:
        """Send nothing more to a dead process. Its published jobs are taken until `stop_listening`.

        Its arena stays mapped until no job or answer refers to it (`owes`).
        """
        forget_process(&self.answers, process)

    def stop_listening(self, int process) -> None:
        self.inbox[process] = NULL

    def tails(self) -> list[int]:
        """Return the published tail of each ring to this process, for `consumed` and `has_answered`."""
        return [self.inbox[i].tail[0] if self.inbox[i] != NULL else 0 for i in range(PROCESS_COUNT)]

    def consumed(self, tails: list[int]) -> bool:
        """Return whether all jobs published up to `tails` are appended or refused."""
        cdef uint64_t tail
        if self.job_count or self.paused.count:
            return False
        for i in range(PROCESS_COUNT):
            tail = tails[i]
            if self.inbox[i] != NULL and self.inbox[i].head[0] < tail:
                return False
        return True

    def has_answered(self, tails: list[int]) -> bool:
        """Return whether all jobs published up to `tails` are answered or timed out.

        The answers may still wait to be sent.
        """
        if not self.consumed(tails):
            return False
        if self.commit.unshipped.head != NULL:
            return not waits_for_others(&self.answers)
        return self.answers.count == self.answers.overdue

    def give_up_waiting(self, int process, bint is_dead) -> None:
        """Have no answer wait for the object store because of a process that a fence is about.

        `is_dead`: it is no log worker. A fence must not wait for the tier, which may be dead, too.
        """
        with nogil:
            give_up_waiting(&self.answers, process, is_dead)

    def owes(self, int process) -> bool:
        """Return whether a job of `process`, or an answer to `process` or its jobs, may be open."""
        return self.job_count > 0 or self.paused.count > 0 or (
            self.inbox[process] != NULL and ring_waiting(self.inbox[process]) > 0
        ) or owes(&self.answers, process)

    def send(self, int process, bytes slot) -> None:
        """Send a descriptor made by Python, after the answers that are on their way to the process.

        Raises ValueError if `slot` does not have the size of a descriptor.
        """
        if len(slot) != sizeof(Slot):
            raise ValueError(f"a slot has {sizeof(Slot)} bytes, not {len(slot)}")
        push(&self.answers, process, <Slot *><char *>slot)
        with nogil:
            # Among the answers may be some of a finished round: its marks are published before them.
            publish_moved(&self.commit, &self.answers)
            send_kept(&self.answers)
            publish_answers(&self.answers)

    # ---- files and log directories ----

    def retire(self, int fd, int log_dir) -> None:
        """Sync the file with the next commit round, then close it. Raises MemoryError."""
        if not retire_file(&self.commit, fd, log_dir):
            raise MemoryError("no memory for a file to sync")

    def flush(self, PartitionState state) -> None:
        """Sync the partition's segment with the next commit round, even if the journal has the same bytes."""
        if state.core.fd >= 0 and not state.core.slot.flags & PARTITION_OFFLINE:
            sync_itself(&self.commit, &state.core)

    def storage_failed(self, int log_dir, int error) -> None:
        """Take the log directory offline for good."""
        fail_dir(&self.commit, &self.answers, log_dir, error)

    @property
    def failed_dirs(self) -> int:
        """A bit set of the log directories that failed since the broker's start, under this process or a
        predecessor.
        """
        return self.commit.failed_dirs

    def failures(self) -> tuple[list[int], int]:
        """Return the log directories that failed since the last call, and the last errno.

        The errno is that of the last failure or of a full disk; 0 if there was none.
        """
        cdef uint64_t news = self.commit.news
        cdef int error = self.commit.last_errno
        self.commit.news = 0
        self.commit.last_errno = 0
        return [i for i in range(64) if news >> i & 1], error

    # ---- the end ----

    @property
    def commit_rounds(self) -> int:
        """The number of the last commit round that is done."""
        return self.commit.finished

    @property
    def awaits_disk(self) -> bool:
        """Return whether a commit round is on its way to the disk."""
        return awaits_disk(&self.commit)

    @property
    def ships(self) -> bool:
        """Return whether commit rounds wait for the object store."""
        return self.commit.unshipped.head != NULL

    @property
    def awaits_tier(self) -> bool:
        """Return whether a commit round is on disk, and waits for the object store."""
        return self.commit.awaits_tier and self.commit.shown == self.commit.finished + 1

    @property
    def awaits_too_much(self) -> bool:
        """Return whether clients' batches are refused because too much waits for the object store."""
        return awaits_too_much(&self.commit)

    def coming_commit_round(self) -> int:
        """Return the number of the next commit round. It covers all files to sync that are in no round yet.

        If the flusher has been offered a round and has not taken it yet, the offer is withdrawn. So the next
        round also covers files that were retired after the offer.
        """
        return coming_round(&self.commit)

    @property
    def is_settled(self) -> bool:
        """Return whether nothing is outstanding: no job, no commit round, no answer."""
        if commit_is_busy(&self.commit) or self.job_count or self.paused.count or self.answers.count:
            return False
        for process in range(PROCESS_COUNT):
            if self.answers.kept[process].count or (
                    self.inbox[process] != NULL and ring_waiting(self.inbox[process])):
                return False
        return True

    def close(self) -> None:
        """End the flusher's threads."""
        commit_close(&self.commit)

    def for_tests(
        self, fixed_now_ms: int | None = None, by_reference: bool | None = None,
        offered_bytes: int | None = None, unshipped_bytes: int | None = None,
    ) -> None:
        """Stop the clock at `fixed_now_ms`, pass every batch through Python if `by_reference`, offer each
        round that covers at least `offered_bytes` to the flusher, or refuse what would wait behind
        `unshipped_bytes` for the tier.
        """
        self.fixed_now_ms = self.fixed_now_ms if fixed_now_ms is None else fixed_now_ms
        self.by_reference = self.by_reference if by_reference is None else by_reference
        self.commit.offered_bytes = self.commit.offered_bytes if offered_bytes is None else offered_bytes
        if unshipped_bytes is not None:
            self.commit.unshipped_bytes = unshipped_bytes

    def clock_ms(self) -> int:
        return self.now_ms()
