"""Natively: see `commit.pxd`."""
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset
from posix.unistd cimport close

from mpbroker.ipc.counters cimport COUNT_COMMIT_ROUNDS, TIME_COMMIT_NS
from mpbroker.ipc.table cimport PARTITION_OFFLINE
from mpbroker.config.workers import MAX_LOG_DIRS
from mpbroker.ipc.topology import FIRST_HANDLER as _FIRST_HANDLER
from mpbroker.log.answers cimport PROCESS_COUNT, AnswersRef, answer_durable
from mpbroker.log.journal cimport (
    NOT_SYNCING, JournalRef, JournalWrite, journal_add, journal_ask, journal_begin, journal_behind, journal_record_most, journal_target,
    journal_unlist, journal_written,
)
from mpbroker.log.state cimport PartitionCore, end_bound, stable_bound
from shm.atomics cimport fence_full, load_acquire, store_release
from shm.counters cimport counter_add, counter_set, histogram_record, monotonic_ns
from shm.doorbell cimport bell_ring
from shm.marks cimport marks_waiting
from shm.table cimport table_write

cdef int FIRST_HANDLER = _FIRST_HANDLER
assert LOG_DIRS_MOST == MAX_LOG_DIRS


cdef bint commit_open(CommitRef *commit, int64_t slots) noexcept nogil:
    memset(commit, 0, sizeof(CommitRef))
    commit.unsynced = <PartitionCore **>calloc(slots * 2, sizeof(PartitionCore *))
    commit.in_flight = <PartitionCore **>calloc(slots * 2, sizeof(PartitionCore *))
    commit.moved = <PartitionCore **>calloc(slots * 2, sizeof(PartitionCore *))
    commit.journals = <JournalRef *>calloc(LOG_DIRS_MOST, sizeof(JournalRef))
    return commit.unsynced != NULL and commit.in_flight != NULL and commit.moved != NULL and commit.journals != NULL


cdef int commit_start(CommitRef *commit, uint64_t *bell_armed, int bell_fd) noexcept nogil:
    """The two threads, after the fork; an errno, or 0."""
    cdef int error = flusher_start(&commit.flusher, bell_armed, bell_fd)
    return error if error else flusher_start(&commit.background, bell_armed, bell_fd)


cdef void commit_close(CommitRef *commit) noexcept nogil:
    flusher_stop(&commit.flusher)
    flusher_stop(&commit.background)
    free(commit.unsynced)
    free(commit.in_flight)
    free(commit.moved)
    free(commit.retired)
    free(commit.journals)
    commit.unsynced = commit.in_flight = commit.moved = NULL
    commit.retired = NULL
    commit.journals = NULL


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
    """The partition's log end has moved: visible at once, or with the next commit round. (Kafka: UnifiedLog.append, which flushes
    before it returns when flush.messages are due.)"""
    if not commit.group and flush_is_due(core):
        core.gated = 1
    if commit.group or core.gated:
        core.ticket = commit.flusher.asked + 1
        join_round(commit, core)
        return
    core.slot.high_watermark = end_bound(core)
    core.slot.last_stable = stable_bound(core)
    core.slot.log_end_offset = core.log_end
    move(commit, core)


cdef bint flush_is_due(const PartitionCore *core) noexcept nogil:
    return core.log_end - core.synced >= core.flush_messages


cdef void sync_itself(CommitRef *commit, PartitionCore *core) noexcept nogil:
    """Its segment, with the next round: a flush is due, or what a failed write left was cut off. Nothing of that may come back behind
    what is acknowledged next."""
    core.syncs_itself = 1
    join_round(commit, core)


cdef void join_round(CommitRef *commit, PartitionCore *core) noexcept nogil:
    """It takes part in the next round."""
    if not core.unsynced:
        core.unsynced = 1
        commit.unsynced[commit.unsynced_count] = core
        commit.unsynced_count += 1


cdef void ask_next(CommitRef *commit, uint64_t now_ns) noexcept nogil:
    """Starts the next round if none is in flight and there is something to sync."""
    cdef int64_t i
    cdef Flusher *flusher = &commit.flusher
    sync_behind(commit)
    if flusher.asked != commit.finished or not (commit.unsynced_count or commit.retired_count):
        return
    if not flusher_reserve(flusher, <int>(commit.unsynced_count + commit.retired_count)):
        return
    for i in range(commit.journal_count):
        if not flusher_reserve_record(flusher, journal_record_most(&commit.journals[i])):
            return
        journal_begin(&commit.journals[i], &flusher.writes[i])
    commit.in_flight_count = 0
    for i in range(commit.unsynced_count):
        if commit.unsynced[i] != NULL:
            fly(commit, commit.unsynced[i])
    commit.unsynced_count = 0
    flusher.journals = 0
    for i in range(commit.journal_count):
        if journal_ask(&commit.journals[i], &flusher.writes[i]) and not commit.failed_dirs >> i & 1:
            flusher.journals |= <uint64_t>1 << i
    commit.retiring = commit.retired_count
    for i in range(commit.retired_count):
        flusher.fds[commit.in_flight_count + i] = commit.retired[i].fd
    flusher.data_count = <int>commit.in_flight_count
    flusher.count = <int>(commit.in_flight_count + commit.retired_count)
    commit.asked_ns = now_ns
    flusher_ask(flusher)


cdef void fly(CommitRef *commit, PartitionCore *core) noexcept nogil:
    """The partition takes part in the round that is asked for."""
    cdef int dir = core.slot.log_dir
    cdef bint itself = commit.bypass or core.syncs_itself or flush_is_due(core)
    core.unsynced = 0
    core.in_flight = 1
    core.journaled = not itself and dir < commit.journal_count and journal_add(
        &commit.journals[dir], &commit.flusher.writes[dir], core)
    core.syncs_itself = 0
    core.covered = end_bound(core)
    core.stable = stable_bound(core)
    commit.flusher.fds[commit.in_flight_count] = -1 if core.journaled else core.fd
    commit.in_flight[commit.in_flight_count] = core
    commit.in_flight_count += 1


cdef void take_in(CommitRef *commit, AnswersRef *answers) noexcept nogil:
    """If the round in flight is done: its partitions' marks move, or its directories fail; then what waited is answered."""
    cdef int64_t i
    cdef Flusher *flusher = &commit.flusher
    cdef uint64_t done = load_done(flusher)
    take_in_background(commit, answers)
    if done == commit.finished:
        return
    commit.finished = done
    take_in_errors(commit, answers)
    for i in range(commit.journal_count):
        if flusher.journals >> i & 1 and not commit.failed_dirs >> i & 1:
            journal_written(&commit.journals[i], &flusher.writes[i])
    for i in range(commit.in_flight_count):
        if commit.in_flight[i] != NULL:
            land(commit, commit.in_flight[i])
    commit.in_flight_count = 0
    close_retired(commit)
    counter_add(commit.counters, COUNT_COMMIT_ROUNDS, 1)
    histogram_record(commit.counters, TIME_COMMIT_NS, monotonic_ns() - commit.asked_ns)
    answer_durable(answers, done)


cdef void take_in_errors(CommitRef *commit, AnswersRef *answers) noexcept nogil:
    cdef int64_t i
    cdef Flusher *flusher = &commit.flusher
    for i in range(commit.journal_count):
        if flusher.journals >> i & 1 and flusher.writes[i].error:
            fail_dir(commit, answers, <int>i, flusher.writes[i].error)
    for i in range(flusher.count):
        if flusher.errors[i] == 0:
            continue
        if i < commit.in_flight_count:
            if commit.in_flight[i] != NULL:
                fail_dir(commit, answers, commit.in_flight[i].slot.log_dir, flusher.errors[i])
        else:
            fail_dir(commit, answers, commit.retired[i - commit.in_flight_count].log_dir, flusher.errors[i])


cdef void land(CommitRef *commit, PartitionCore *core) noexcept nogil:
    """The round that the partition took part in is done."""
    cdef JournalRef *journal = &commit.journals[core.slot.log_dir]
    core.in_flight = 0
    if core.slot.flags & PARTITION_OFFLINE:
        return
    if core.journaled and not commit.flusher.writes[core.slot.log_dir].went_around:
        journal_behind(journal, &commit.flusher.writes[core.slot.log_dir], core)
    else:
        journal_unlist(journal, core)
        core.synced = core.covered.offset
    if not commit.group and not core.gated:
        return
    # What was appended since waits for the next one.
    core.gated = core.gated and core.unsynced
    core.slot.high_watermark = core.covered
    core.slot.last_stable = core.stable
    core.slot.log_end_offset = core.log_end
    move(commit, core)


# ---- behind the journal ----

cdef void commit_use_journal(CommitRef *commit, int log_dir, const JournalRef *journal) noexcept nogil:
    """From the next round on; what is in flight has nothing to do with it."""
    commit.journals[log_dir] = journal[0]
    commit.journal_count = max(commit.journal_count, log_dir + 1)


cdef void commit_release(CommitRef *commit) noexcept nogil:
    """What is in the journals now is to be in synced segments soon: a recovery then has less to do."""
    cdef int i
    for i in range(commit.journal_count):
        commit.journals[i].wanted = commit.journals[i].head


cdef void sync_behind(CommitRef *commit) noexcept nogil:
    """Has the segments of the oldest records synced, if a journal fills up. Their files are held open on their own account: a partition
    may roll or go away meanwhile. What rolled already is in `retired`: with it, nothing of a partition is left that is not synced."""
    cdef int i, n, dir = 0, count = 0
    cdef uint64_t target
    cdef JournalRef *journal = NULL
    cdef PartitionCore *core
    if commit.background.asked != commit.background_finished or commit.retired_count:
        return
    for i in range(commit.journal_count):
        # In turns: no directory waits for ever for another one.
        n = (commit.background_dir + 1 + i) % commit.journal_count
        journal = &commit.journals[n]
        if journal.oldest != NULL and journal.oldest.first_record < journal_target(journal) and not commit.failed_dirs >> n & 1:
            dir = n
            break
    else:
        return
    if not flusher_reserve(&commit.background, BEHIND_PER_ROUND):
        return
    target = journal_target(journal)
    journal.in_background = journal.oldest.first_record
    while count < BEHIND_PER_ROUND and journal.oldest != NULL and journal.oldest.first_record < target:
        core = journal.oldest
        commit.background.fds[count] = flusher_open(core.fd)
        if commit.background.fds[count] < 0:
            break
        core.syncing = core.covered.offset
        commit.behind[count] = core
        journal_unlist(journal, core)
        count += 1
    if count == 0:
        journal.in_background = NOT_SYNCING
        return
    commit.background_dir = dir
    commit.background.count = commit.background.data_count = count
    flusher_ask(&commit.background)


cdef void take_in_background(CommitRef *commit, AnswersRef *answers) noexcept nogil:
    cdef int i
    cdef uint64_t done = load_done(&commit.background)
    if done == commit.background_finished:
        return
    commit.background_finished = done
    for i in range(commit.background.count):
        close(commit.background.fds[i])
        if commit.background.errors[i]:
            fail_dir(commit, answers, commit.background_dir, commit.background.errors[i])
        elif commit.behind[i] != NULL:
            commit.behind[i].synced = max(commit.behind[i].synced, commit.behind[i].syncing)
    commit.journals[commit.background_dir].in_background = NOT_SYNCING


cdef bint something_is_done(CommitRef *commit) noexcept nogil:
    """By one of the threads, and not taken in yet."""
    return load_done(&commit.flusher) != commit.finished or load_done(&commit.background) != commit.background_finished


cdef bint commit_is_busy(CommitRef *commit) noexcept nogil:
    if commit.flusher.asked != commit.finished or commit.background.asked != commit.background_finished:
        return True
    return commit.unsynced_count > 0 or commit.retired_count > 0


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
    """The partition is going away; its files are retired by the caller, so that the journal is not needed for them."""
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
    forget_behind(commit, core)
    core.unsynced = core.in_flight = core.moved = 0


cdef void forget_behind(CommitRef *commit, PartitionCore *core) noexcept nogil:
    """The journal of its log directory is not needed for the partition any more."""
    cdef int i
    for i in range(BEHIND_PER_ROUND):
        if commit.behind[i] == core:
            commit.behind[i] = NULL
    journal_unlist(&commit.journals[core.slot.log_dir], core)


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
