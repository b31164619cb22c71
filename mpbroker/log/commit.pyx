"""Natively: see `commit.pxd`."""
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset
from posix.unistd cimport close

from mpbroker.ipc.counters cimport COUNT_COMMIT_ROUNDS, TIME_COMMIT_NS
from mpbroker.ipc.table cimport PARTITION_OFFLINE
from mpbroker.ipc.topology import FIRST_HANDLER as _FIRST_HANDLER
from mpbroker.log.answers cimport PROCESS_COUNT, AnswersRef, answer_durable
from mpbroker.log.state cimport PartitionCore, end_bound
from shm.atomics cimport fence_full, load_acquire, store_release
from shm.counters cimport counter_add, counter_set, histogram_record, monotonic_ns
from shm.doorbell cimport bell_ring
from shm.marks cimport marks_waiting
from shm.table cimport table_write

cdef int FIRST_HANDLER = _FIRST_HANDLER


cdef bint commit_open(CommitRef *commit, int64_t slots) noexcept nogil:
    memset(commit, 0, sizeof(CommitRef))
    commit.unsynced = <PartitionCore **>calloc(slots * 2, sizeof(PartitionCore *))
    commit.in_flight = <PartitionCore **>calloc(slots * 2, sizeof(PartitionCore *))
    commit.moved = <PartitionCore **>calloc(slots * 2, sizeof(PartitionCore *))
    return commit.unsynced != NULL and commit.in_flight != NULL and commit.moved != NULL


cdef void commit_close(CommitRef *commit) noexcept nogil:
    flusher_stop(&commit.flusher)
    free(commit.unsynced)
    free(commit.in_flight)
    free(commit.moved)
    free(commit.retired)
    commit.unsynced = commit.in_flight = commit.moved = NULL
    commit.retired = NULL


cdef bint retire_file(CommitRef *commit, int fd, int log_dir) noexcept nogil:
    """The file is synced with the next round and closed after it. False without memory."""
    cdef RetiredFile *grown
    if commit.retired_count == commit.retired_room:
        grown = <RetiredFile *>realloc(commit.retired, (commit.retired_room * 2 + 64) * sizeof(RetiredFile))
        if grown == NULL:
            return False
        commit.retired = grown
        commit.retired_room = commit.retired_room * 2 + 64
    commit.retired[commit.retired_count].fd = fd
    commit.retired[commit.retired_count].log_dir = log_dir
    commit.retired_count += 1
    return True


cdef void move(CommitRef *commit, PartitionCore *core) noexcept nogil:
    """To be published at the end of this round."""
    if not core.moved:
        core.moved = 1
        commit.moved[commit.moved_count] = core
        commit.moved_count += 1


cdef void appended(CommitRef *commit, PartitionCore *core) noexcept nogil:
    """The partition's log end has moved: visible at once, or with the next commit round."""
    if commit.group:
        core.ticket = commit.flusher.asked + 1
        if not core.unsynced:
            core.unsynced = 1
            commit.unsynced[commit.unsynced_count] = core
            commit.unsynced_count += 1
        return
    core.slot.high_watermark = core.slot.last_stable = end_bound(core)
    core.slot.log_end_offset = core.log_end
    move(commit, core)


cdef void ask_next(CommitRef *commit, uint64_t now_ns) noexcept nogil:
    """Starts the next round if none is in flight and there is something to sync."""
    cdef int64_t i, count = 0
    cdef PartitionCore *core
    if commit.flusher.asked != commit.finished or not (commit.unsynced_count or commit.retired_count):
        return
    if not flusher_reserve(&commit.flusher, <int>(commit.unsynced_count + commit.retired_count)):
        return
    for i in range(commit.unsynced_count):
        core = commit.unsynced[i]
        if core == NULL:
            continue
        core.unsynced = 0
        core.in_flight = 1
        core.covered = end_bound(core)
        commit.in_flight[count] = core
        commit.flusher.fds[count] = core.fd
        count += 1
    commit.in_flight_count = count
    commit.unsynced_count = 0
    commit.retiring = commit.retired_count
    for i in range(commit.retired_count):
        commit.flusher.fds[count + i] = commit.retired[i].fd
    commit.flusher.count = <int>(count + commit.retired_count)
    commit.asked_ns = now_ns
    flusher_ask(&commit.flusher)


cdef void take_in(CommitRef *commit, AnswersRef *answers) noexcept nogil:
    """If the round in flight is done: its partitions' marks move, or its directories fail; then what waited is answered."""
    cdef int64_t i
    cdef PartitionCore *core
    cdef Flusher *flusher = &commit.flusher
    cdef uint64_t done = load_done(flusher)
    if done == commit.finished:
        return
    commit.finished = done
    for i in range(flusher.count):
        if flusher.errors[i] == 0:
            continue
        if i < commit.in_flight_count:
            if commit.in_flight[i] != NULL:
                fail_dir(commit, answers, commit.in_flight[i].slot.log_dir, flusher.errors[i])
        else:
            fail_dir(commit, answers, commit.retired[i - commit.in_flight_count].log_dir, flusher.errors[i])
    for i in range(commit.in_flight_count):
        core = commit.in_flight[i]
        if core == NULL:
            continue
        core.in_flight = 0
        if commit.group and not core.slot.flags & PARTITION_OFFLINE:
            core.slot.high_watermark = core.slot.last_stable = core.covered
            core.slot.log_end_offset = core.log_end
            move(commit, core)
    commit.in_flight_count = 0
    close_retired(commit)
    counter_add(commit.counters, COUNT_COMMIT_ROUNDS, 1)
    histogram_record(commit.counters, TIME_COMMIT_NS, monotonic_ns() - commit.asked_ns)
    answer_durable(answers, done)


cdef uint64_t load_done(Flusher *flusher) noexcept nogil:
    return load_acquire(&flusher.done)


cdef void close_retired(CommitRef *commit) noexcept nogil:
    cdef int i
    for i in range(commit.retiring):
        close(commit.retired[i].fd)
    commit.retired_count -= commit.retiring
    for i in range(commit.retired_count):
        commit.retired[i] = commit.retired[commit.retiring + i]
    commit.retiring = 0


cdef void publish_moved(CommitRef *commit, AnswersRef *answers) noexcept nogil:
    """The table first, then one fence, then whoever marked one of the slots gets its dirty bit and one ring."""
    cdef int64_t i
    cdef uint64_t waiting = 0
    cdef int handler
    if commit.moved_count == 0:
        return
    for i in range(commit.moved_count):
        if commit.moved[i] != NULL:
            table_write(commit.table, commit.moved[i].table_slot, &commit.moved[i].slot)
    fence_full()
    for i in range(commit.moved_count):
        if commit.moved[i] != NULL:
            commit.moved[i].moved = 0
            waiting |= marks_waiting(commit.marks, commit.moved[i].table_slot)
    commit.moved_count = 0
    if waiting == 0:
        return
    commit.dirty_number += 1
    for handler in range(PROCESS_COUNT - FIRST_HANDLER):
        if waiting >> handler & 1:
            store_release(&commit.dirty[handler], commit.dirty_number)
            bell_ring(answers.bells[FIRST_HANDLER + handler])


cdef void drop_core(CommitRef *commit, PartitionCore *core) noexcept nogil:
    """The partition is going away; its files are retired by the caller."""
    cdef int64_t i
    for i in range(commit.unsynced_count):
        if commit.unsynced[i] == core:
            commit.unsynced[i] = NULL
    for i in range(commit.in_flight_count):
        if commit.in_flight[i] == core:
            commit.in_flight[i] = NULL
    for i in range(commit.moved_count):
        if commit.moved[i] == core:
            commit.moved[i] = NULL
    core.unsynced = core.in_flight = core.moved = 0


cdef void fail_dir(CommitRef *commit, AnswersRef *answers, int log_dir, int error) noexcept nogil:
    """Final: nothing in this directory is appended to or acknowledged again."""
    cdef uint64_t i
    cdef PartitionCore *core
    if commit.failed_dirs >> log_dir & 1:
        return
    commit.failed_dirs |= <uint64_t>1 << log_dir
    # Before anything else says so: whoever comes after us must not serve what we gave up.
    store_release(commit.shared_failed_dirs, commit.failed_dirs)
    commit.news |= <uint64_t>1 << log_dir
    commit.last_errno = error
    for i in range(answers.core_count):
        core = answers.cores[i]
        if core != NULL and core.slot.log_dir == log_dir:
            core.slot.flags = PARTITION_OFFLINE
            core.appendable = 0
            move(commit, core)
