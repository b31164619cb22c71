"""One native round of the log process: take waiting jobs, append the common ones, hand the rest to Python in
order, answer.

    first     the entries of commit rounds that are on disk are ended (`finish_rounds`)
    take      empties the rings of all handlers and of the coordinator into `jobs`, as many as fit;
              heads advance before anything is appended
    gather    checks each batch (partition, producer, whether a roll is due), assigns its offsets
              tentatively, and patches it in place
    write     makes one pwritev per partition; indexes, log ends and results follow only then, and the
              answers that must be durable join the commit round; a failed write is undone
    finish    pushes the answers that need not wait
    settle    asks for the next commit round, publishes the table, sends the answers, rings the bells

A batch that is not common (first append of a segment, roll due, transactional, ...) stops `gather`.
The gathered batches are written, Python appends that one batch (`append_batch.py`) with the same result, and
gathering continues after it.
"""
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uint8_t

from mpbroker.ipc.meters cimport Meters
from mpbroker.ipc.slots cimport JobBatch, JobHeader, ProduceSlot
from mpbroker.log.append.answers cimport PROCESS_COUNT, AnswersRef
from mpbroker.log.append.commit cimport CommitRef
from mpbroker.log.append.paused_jobs cimport PausedJobs
from mpbroker.log.append.planned cimport PlannedBatch
from mpbroker.log.partition.state cimport PartitionCore
from shm.doorbell cimport BellRef
from shm.ring cimport RingRef, Slot
from shm.table cimport SlotTable

cdef enum:
    JOBS_PER_ROUND = 4096
    BATCHES_PER_WRITE = 8192

cpdef enum Pause:
    ROUND_DONE = 0
    BATCH_FOR_PYTHON = 1
    SLOT_FOR_PYTHON = 2


cdef class AppendTurn:
    cdef AnswersRef answers
    cdef CommitRef commit
    cdef RingRef *inbox[PROCESS_COUNT]
    cdef int first_inbox        # the process whose ring the next round takes from first
    cdef BellRef *bell
    cdef Slot *jobs
    cdef int32_t job_count
    cdef int32_t job            # the job that is gathered
    cdef uint32_t batch
    cdef PausedJobs paused
    cdef PlannedBatch *planned
    cdef int32_t planned_count
    cdef PartitionCore **touched
    cdef int32_t touched_count
    cdef int32_t found          # jobs of the last round, plus one if a commit round had ended
    cdef uint64_t round_began_ns
    cdef uint64_t batches_done
    cdef int64_t fixed_now_ms
    cdef bint by_reference
    cdef SlotTable table
    cdef Meters meters
    cdef list states            # by partition table slot: the owners of the `cores` that the turn appends to
    cdef list keep              # other objects that the turn points into
    cdef int64_t now_ms(self) noexcept nogil
    cdef void take(self) noexcept nogil
    cdef bint something_waits(self) noexcept nogil
    cdef void sleep(self, int timeout_ms) noexcept nogil
    cdef int round(self, int timeout_ms) noexcept nogil
    cdef int gather(self) noexcept nogil
    cdef int plan(self, const ProduceSlot *slot, JobBatch *batch, int64_t now_ms) noexcept nogil
    cdef int refusal(self, JobBatch *batch) noexcept nogil
    cdef bint remember(self, PlannedBatch *planned, int32_t count) noexcept nogil
    cdef void enlist(self, PartitionCore *core, int32_t index) noexcept nogil
    cdef void write_all(self) noexcept nogil
    cdef void note_written(self, PartitionCore *core) noexcept nogil
    cdef void count_appended(self, PartitionCore *core, uint64_t records, uint64_t size) noexcept nogil
    cdef void undo(self, PartitionCore *core, int error) noexcept nogil
    cdef bint awaits(self, const ProduceSlot *slot) noexcept nogil
    cdef void finish(self) noexcept nogil
    cdef uint64_t commit_number_of(self, const ProduceSlot *slot, JobHeader *job) noexcept nogil
    cdef void settle(self) noexcept nogil
