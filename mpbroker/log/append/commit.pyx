"""Native implementation of commit rounds, described in `commit.pxd`."""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset
from posix.unistd cimport close

from mpbroker.ipc.counters cimport COUNT_COMMIT_ROUNDS, TIME_COMMIT_NS
from mpbroker.ipc.table cimport PARTITION_LIVE, PARTITION_OFFLINE, Bound
from mpbroker.ipc.unshipped cimport UnshippedEntry
from mpbroker.config.workers import MAX_LOG_DIRS
from mpbroker.ipc.topology import FIRST_HANDLER as _FIRST_HANDLER
from mpbroker.log.append.answers cimport PROCESS_COUNT, AnswersRef, answer_durable
from mpbroker.log.append.journal_ring cimport (
    NOT_SYNCING, JournalRef, journal_add, journal_ask, journal_begin, journal_behind,
    journal_finish, journal_record_most, journal_take_off, journal_target, journal_unlist,
)
from mpbroker.log.partition.state cimport PartitionCore, end_bound, stable_bound
from shm.atomics cimport fence_full, load_acquire, store_release
from shm.counters cimport counter_add, histogram_record
from shm.doorbell cimport bell_ring
from shm.marks cimport marks_waiting
from shm.table cimport table_write
from shm.zeroed cimport zeroed

cdef int FIRST_HANDLER = _FIRST_HANDLER
assert LOG_DIRS_MOST == MAX_LOG_DIRS


cdef bint commit_open(CommitRef *commit, int64_t slots) noexcept nogil:
    cdef int i
    memset(commit, 0, sizeof(CommitRef))
    commit.offered_bytes = OFFERED_BYTES
    commit.unshipped_bytes = UNSHIPPED_BYTES
    commit.unsynced = <PartitionCore **>zeroed(slots * 2, sizeof(PartitionCore *))
    commit.moved = <PartitionCore **>zeroed(slots * 2, sizeof(PartitionCore *))
    commit.journals = <JournalRef *>calloc(LOG_DIRS_MOST, sizeof(JournalRef))
    for i in range(2):
        commit.rounds[i].entries = <CommitEntry *>zeroed(slots * 2, sizeof(CommitEntry))
        if commit.rounds[i].entries == NULL:
            return False
    return commit.unsynced != NULL and commit.moved != NULL and commit.journals != NULL


cdef int commit_start(CommitRef *commit, uint64_t *bell_armed, int bell_fd) noexcept nogil:
    """Start the threads of the flusher and of background syncs, after the fork. Return an errno, or 0."""
    cdef int error = flusher_start(&commit.flusher, bell_armed, bell_fd)
    return error if error else flusher_start(&commit.background, bell_armed, bell_fd)


cdef void commit_close(CommitRef *commit) noexcept nogil:
    flusher_stop(&commit.flusher)
    flusher_stop(&commit.background)
    free(commit.unsynced)
    free(commit.rounds[0].entries)
    free(commit.rounds[1].entries)
    free(commit.moved)
    free(commit.retired)
    free(commit.journals)
    commit.unsynced = commit.moved = NULL
    commit.rounds[0].entries = commit.rounds[1].entries = NULL
    commit.retired = NULL
    commit.journals = NULL


cdef bint retire_file(CommitRef *commit, int fd, int log_dir) noexcept nogil:
    """Sync the file with the next round that is put together, then close it. A round already offered does not
    include it.

    Return False if memory is exhausted.
    """
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


cdef void move(CommitRef *commit, PartitionCore *core, bint wakes) noexcept nogil:
    """Add the partition to those that are published in the table at the end of the log worker's round.

    `wakes`: whether the handlers that wait for the partition are woken then.
    """
    core.wakes |= wakes
    if not core.moved:
        core.moved = 1
        commit.moved[commit.moved_count] = core
        commit.moved_count += 1


cdef void appended(CommitRef *commit, PartitionCore *core, int64_t count) noexcept nogil:
    """Publish the partition's new log end after an append of `count` bytes.

    With group commit, consumers see the records after the next commit round; without it, at once.

    The log end itself is published at once: a batch may be acknowledged before it is durable, and a fetch
    at the offset after that batch must not fail with OFFSET_OUT_OF_RANGE. If a flush is due by
    flush.messages, consumers see the records after the flush (Kafka: UnifiedLog.append, which flushes
    before it returns).
    """
    if not commit.group and flush_is_due(core):
        core.awaits_flush = 1
    if commit.group or core.awaits_flush:
        join_round(commit, core)
        core.commit_number = commit.started + 1
        commit.unsynced_bytes += count
    else:
        core.slot.high_watermark = end_bound(core)
        core.slot.last_stable = stable_bound(core)
    core.slot.log_end_offset = core.log_end
    move(commit, core, core.slot.high_watermark.offset == core.log_end)


cdef bint flush_is_due(const PartitionCore *core) noexcept nogil:
    return core.log_end - core.synced >= core.flush_messages


cdef void sync_itself(CommitRef *commit, PartitionCore *core) noexcept nogil:
    """Make the next round sync the partition's segment, instead of writing its data to the journal.

    This is needed if a flush is due, or if a failed write was truncated. Without a sync the bytes cut off
    could reappear after a crash, behind records that were acknowledged later.
    """
    join_round(commit, core)
    core.syncs_itself = 1


cdef void join_round(CommitRef *commit, PartitionCore *core) noexcept nogil:
    """Add the partition to the next round."""
    reopen(commit)
    if not core.unsynced:
        core.unsynced = 1
        commit.unsynced[commit.unsynced_count] = core
        commit.unsynced_count += 1


# ---- the rounds ----

cdef CommitRound *place(CommitRef *commit, uint64_t number) noexcept nogil:
    return &commit.rounds[number & 1]


cdef uint64_t coming_round(CommitRef *commit) noexcept nogil:
    """Return the number of the round that covers all unsynced and retired files."""
    reopen(commit)
    return commit.started + 1


cdef void ask_next(CommitRef *commit) noexcept nogil:
    """Start the next round if none is in flight and something needs a sync.

    If one is in flight and the next one is large, offer the next one to the flusher.
    """
    cdef uint64_t number
    sync_behind(commit)
    if commit.offered and commit.started == commit.finished:
        # The flusher read `offered` before the offer was there, or the round in front failed.
        reopen(commit)
    if commit.offered or commit.started > commit.finished + 1:
        return
    number = commit.started + 1
    if commit.started == commit.finished:
        if gather_round(commit, number):
            submit_round(commit)
            flusher_ask(&commit.flusher, number)
    elif not awaits_disk(commit):
        # The tier has the round in front. What is appended meanwhile joins the next one.
        return
    elif commit.unsynced_bytes >= commit.offered_bytes and gather_round(commit, number):
        commit.offered = True
        flusher_offer(&commit.flusher, number)


cdef void reopen(CommitRef *commit) noexcept nogil:
    """Take the offered round back before something joins or leaves it.

    If the flusher has taken the round already, later appends belong to the round after it.
    """
    if commit.offered:
        commit.offered = False
        if not flusher_take_back(&commit.flusher):
            submit_round(commit)


cdef bint gather_round(CommitRef *commit, uint64_t number) noexcept nogil:
    """Put a round together from all that is unsynced or retired now; change nothing else.

    Return False if nothing needs a sync, or memory is exhausted.
    """
    cdef int64_t i
    cdef CommitRound *round = place(commit, number)
    cdef FlushRound *flush = flusher_place(&commit.flusher, number)
    cdef bint is_alone = commit.started == commit.finished
    cdef int retired_from = 0 if is_alone else place(commit, commit.started).retiring
    round.count = 0
    round.retiring = commit.retired_count - retired_from
    if (not (commit.unsynced_count or round.retiring)
            or not flusher_reserve(flush, <int>(commit.unsynced_count + round.retiring))):
        return False
    for i in range(commit.journal_count):
        if not has_room(commit, journal_record_most(&commit.journals[i]), is_alone):
            return False
        journal_begin(&commit.journals[i], &flush.writes[i])
    for i in range(commit.unsynced_count):
        if commit.unsynced[i] != NULL:
            add_entry(commit, round, flush, commit.unsynced[i])
    flush.journals = 0
    for i in range(commit.journal_count):
        if journal_ask(&commit.journals[i], &flush.writes[i]) and not commit.failed_dirs >> i & 1:
            flush.journals |= <uint64_t>1 << i
    for i in range(round.retiring):
        flush.fds[round.count + i] = commit.retired[retired_from + i].fd
    flush.data_count = <int>round.count
    flush.count = <int>(round.count + round.retiring)
    return True


cdef bint has_room(CommitRef *commit, uint64_t record_bytes, bint may_grow) noexcept nogil:
    """Return whether a journal record of `record_bytes` fits into the buffer, which grows if `may_grow`."""
    return (record_bytes <= commit.flusher.buffer_bytes
            or may_grow and flusher_reserve_record(&commit.flusher, record_bytes))


cdef void add_entry(
    CommitRef *commit, CommitRound *round, FlushRound *flush, PartitionCore *core
) noexcept nogil:
    """Add the partition to the round that is put together."""
    cdef int dir = core.slot.log_dir
    cdef CommitEntry *entry = &round.entries[round.count]
    cdef bint itself = commit.bypass or core.syncs_itself or flush_is_due(core)
    entry.core = core
    entry.is_dormant = core.fd < 0
    entry.journaled = (not (itself or entry.is_dormant) and dir < commit.journal_count
                       and journal_add(&commit.journals[dir], &flush.writes[dir], core))
    entry.synced_itself = core.syncs_itself
    entry.covered = end_bound(core)
    entry.stable = stable_bound(core)
    flush.fds[round.count] = -1 if entry.journaled else core.fd
    round.count += 1


cdef void submit_round(CommitRef *commit) noexcept nogil:
    """Count the gathered round as started: it belongs to the flusher now and must not change any more.

    The round has not changed since it was gathered, because `reopen` is called before each change.
    """
    cdef int64_t i
    cdef CommitRound *round
    cdef FlushRound *flush
    cdef CommitEntry *entry
    commit.started += 1
    round, flush = place(commit, commit.started), flusher_place(&commit.flusher, commit.started)
    for i in range(round.count):
        entry = &round.entries[i]
        entry.core.unsynced = 0
        entry.core.in_flight += 1
        entry.core.covered = entry.covered
        if entry.synced_itself:
            entry.core.syncs_itself = 0
    for i in range(commit.journal_count):
        if flush.journals >> i & 1:
            journal_take_off(&commit.journals[i], &flush.writes[i])
    commit.unsynced_count = commit.unsynced_bytes = 0


cdef void finish_rounds(CommitRef *commit, AnswersRef *answers) noexcept nogil:
    """Finish each round that is on disk: raise high watermarks or fail log directories, then send answers."""
    cdef uint64_t done = load_done(&commit.flusher)
    finish_background(commit, answers)
    if done > commit.started:
        reopen(commit)
    while commit.finished < done and is_shipped(commit, answers, commit.finished + 1):
        commit.finished += 1
        finish_round(
            commit, answers, place(commit, commit.finished), flusher_place(&commit.flusher, commit.finished))
        answer_durable(answers, commit.finished)


cdef bint is_shipped(CommitRef *commit, AnswersRef *answers, uint64_t number) noexcept nogil:
    """Show the tier a round that is on disk. Return whether it is in the object store, if it has to be."""
    if commit.unshipped.head == NULL:
        return True
    if commit.shown != number:
        commit.shown = number
        # What is offline from here on is not shown, and the others need not wait to know of it.
        note_errors(commit, answers, place(commit, number), flusher_place(&commit.flusher, number))
        commit.awaits_tier = show_round(commit, place(commit, number), commit.unshipped.life + number)
    return not commit.awaits_tier or tier_has_shipped(commit)


cdef bint tier_has_shipped(CommitRef *commit) noexcept nogil:
    return load_acquire(commit.unshipped.shipped) >= commit.unshipped.life + commit.shown


cdef bint show_round(CommitRef *commit, const CommitRound *round, uint64_t number) noexcept nogil:
    """Write the round into the block of unshipped rounds; return False if it has nothing to ship."""
    cdef int64_t i
    cdef uint64_t count = 0
    cdef PartitionCore *core
    cdef UnshippedEntry *entry
    # Whoever still reads a predecessor's round sees that it changes.
    store_release(&commit.unshipped.head.number, 0)
    fence_full()
    for i in range(round.count):
        core = round.entries[i].core
        if core == NULL or core.slot.flags & PARTITION_OFFLINE or count == commit.unshipped.room:
            continue
        if (round.entries[i].covered.offset <= core.slot.high_watermark.offset
                and core.coming_start <= core.slot.log_start_offset):
            continue
        entry = &commit.unshipped.entries[count]
        entry.slot, entry.generation = <uint32_t>core.table_slot, core.slot.generation
        entry.log_start = max(core.slot.log_start_offset, core.coming_start)
        entry.begin = entry.end = core.slot.high_watermark
        # The log may have been rolled since at its end, and the segment before be deleted.
        raise_mark(&entry.end, &round.entries[i].covered)
        count += 1
    if count == 0:
        return False
    commit.unshipped.head.count = count
    store_release(&commit.unshipped.head.number, number)
    bell_ring(commit.unshipped.tier)
    return True


cdef void finish_round(
    CommitRef *commit, AnswersRef *answers, CommitRound *round, FlushRound *flush
) noexcept nogil:
    cdef int64_t i
    note_errors(commit, answers, round, flush)
    for i in range(commit.journal_count):
        if flush.journals >> i & 1:
            journal_finish(&commit.journals[i], &flush.writes[i])
    for i in range(round.count):
        if round.entries[i].core != NULL:
            finish_entry(commit, flush, &round.entries[i])
    round.count = 0
    close_retired(commit, round)
    counter_add(commit.counters, COUNT_COMMIT_ROUNDS, 1)
    histogram_record(commit.counters, TIME_COMMIT_NS, flush.took_ns)


cdef void note_errors(
    CommitRef *commit, AnswersRef *answers, const CommitRound *round, const FlushRound *flush
) noexcept nogil:
    cdef int64_t i
    for i in range(commit.journal_count):
        if flush.journals >> i & 1 and flush.writes[i].error:
            fail_dir(commit, answers, <int>i, flush.writes[i].error)
    for i in range(flush.count):
        if flush.errors[i] == 0:
            continue
        if i < round.count:
            if round.entries[i].core != NULL:
                fail_dir(commit, answers, round.entries[i].core.slot.log_dir, flush.errors[i])
        else:
            fail_dir(commit, answers, commit.retired[i - round.count].log_dir, flush.errors[i])


cdef void finish_entry(CommitRef *commit, const FlushRound *flush, const CommitEntry *entry) noexcept nogil:
    """Update one partition of a finished commit round, and raise the partition's high watermark."""
    cdef PartitionCore *core = entry.core
    cdef int dir = core.slot.log_dir
    core.in_flight -= 1
    if core.slot.flags & PARTITION_OFFLINE:
        return
    if entry.is_dormant:
        pass
    elif entry.journaled and not flush.writes[dir].went_around:
        journal_behind(&commit.journals[dir], &flush.writes[dir], core)
    else:
        journal_unlist(&commit.journals[dir], core)
        # A background sync may have covered later bytes already.
        core.synced = max(core.synced, entry.covered.offset)
    if not commit.group and not core.awaits_flush:
        return
    # Bytes appended since then wait for the next round.
    core.awaits_flush = core.awaits_flush and (core.unsynced or core.in_flight)
    raise_mark(&core.slot.high_watermark, &entry.covered)
    raise_mark(&core.slot.last_stable, &entry.stable)
    move(commit, core, True)


cdef void raise_mark(Bound *mark, const Bound *to) noexcept nogil:
    """Raise a high watermark or a last stable offset to `to`; never lower it.

    The mark may be above `to`: without group commit, records are visible before the round ends, and a
    deletion may have moved the log start or begun a new segment.
    """
    if to.offset > mark.offset or to.offset == mark.offset and to.segment_base >= mark.segment_base:
        mark[0] = to[0]


# ---- after the journal ----

cdef void commit_use_journal(CommitRef *commit, int log_dir, const JournalRef *journal) noexcept nogil:
    """Use the journal from the next round on. Rounds in flight are not affected."""
    commit.journals[log_dir] = journal[0]
    commit.journal_count = max(commit.journal_count, log_dir + 1)


cdef void commit_release(CommitRef *commit) noexcept nogil:
    """Request an early sync of all segments that the journals name, so that a recovery is shorter."""
    cdef int i
    for i in range(commit.journal_count):
        commit.journals[i].wanted = commit.journals[i].head


cdef void sync_behind(CommitRef *commit) noexcept nogil:
    """If a journal fills up, begin to sync the segments that contain the journal's oldest records.

    Each segment is opened again for the sync, since the partition may roll or be removed meanwhile. Nothing
    is done while `retired` has files: these may be earlier segments of the same partitions, which must be
    synced first.
    """
    cdef int i, n, dir = 0, count = 0
    cdef uint64_t target
    cdef JournalRef *journal = NULL
    cdef FlushRound *flush
    cdef PartitionCore *core
    if commit.background_asked != commit.background_finished or commit.retired_count:
        return
    for i in range(commit.journal_count):
        # Take directories in turn, so that none waits for ever.
        n = (commit.background_dir + 1 + i) % commit.journal_count
        journal = &commit.journals[n]
        if (journal.oldest != NULL and journal.oldest.first_record < journal_target(journal)
                and not commit.failed_dirs >> n & 1):
            dir = n
            break
    else:
        return
    flush = flusher_place(&commit.background, commit.background_asked + 1)
    if not flusher_reserve(flush, BEHIND_PER_ROUND):
        return
    target = journal_target(journal)
    journal.in_background = journal.oldest.first_record
    while count < BEHIND_PER_ROUND and journal.oldest != NULL and journal.oldest.first_record < target:
        core = journal.oldest
        flush.fds[count] = flusher_open(core.fd)
        if flush.fds[count] < 0:
            break
        core.syncing = core.covered.offset
        commit.behind[count] = core
        journal_unlist(journal, core)
        count += 1
    if count == 0:
        journal.in_background = NOT_SYNCING
        return
    commit.background_dir = dir
    flush.count = flush.data_count = count
    commit.background_asked += 1
    flusher_ask(&commit.background, commit.background_asked)


cdef void finish_background(CommitRef *commit, AnswersRef *answers) noexcept nogil:
    cdef int i
    cdef uint64_t done = load_done(&commit.background)
    cdef FlushRound *flush = flusher_place(&commit.background, done)
    if done == commit.background_finished:
        return
    commit.background_finished = done
    for i in range(flush.count):
        close(flush.fds[i])
        if flush.errors[i]:
            fail_dir(commit, answers, commit.background_dir, flush.errors[i])
        elif commit.behind[i] != NULL:
            commit.behind[i].synced = max(commit.behind[i].synced, commit.behind[i].syncing)
    commit.journals[commit.background_dir].in_background = NOT_SYNCING


cdef bint something_is_done(CommitRef *commit) noexcept nogil:
    """Return whether `finish_rounds` has work: a round or a background sync is over."""
    if load_done(&commit.background) != commit.background_finished:
        return True
    if load_done(&commit.flusher) == commit.finished:
        return False
    return commit.shown != commit.finished + 1 or not commit.awaits_tier or tier_has_shipped(commit)


cdef bint awaits_disk(CommitRef *commit) noexcept nogil:
    """Return whether a commit round is not on disk yet."""
    return load_done(&commit.flusher) < commit.started


cdef bint awaits_too_much(const CommitRef *commit) noexcept nogil:
    """Return whether no more may be appended behind the round that the tier has."""
    return commit.unshipped.head != NULL and commit.unsynced_bytes >= commit.unshipped_bytes


cdef bint commit_is_busy(CommitRef *commit) noexcept nogil:
    if commit.started != commit.finished or commit.background_asked != commit.background_finished:
        return True
    return commit.unsynced_count > 0 or commit.retired_count > 0


cdef uint64_t load_done(Flusher *flusher) noexcept nogil:
    return load_acquire(&flusher.done)


cdef void close_retired(CommitRef *commit, CommitRound *round) noexcept nogil:
    """Close the finished round's retired files, which are the first in the list."""
    cdef int i
    for i in range(round.retiring):
        close(commit.retired[i].fd)
    commit.retired_count -= round.retiring
    for i in range(commit.retired_count):
        commit.retired[i] = commit.retired[round.retiring + i]
    round.retiring = 0


cdef void publish_moved(CommitRef *commit, AnswersRef *answers) noexcept nogil:
    """Publish the listed partitions in the table, pass one memory fence, then wake the waiting handlers.

    A handler is woken by its dirty word and one ring of its doorbell.
    """
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
            if commit.moved[i].wakes:
                waiting |= marks_waiting(commit.marks, commit.moved[i].table_slot)
            commit.moved[i].moved = commit.moved[i].wakes = 0
    commit.moved_count = 0
    if waiting == 0:
        return
    commit.dirty_number += 1
    for handler in range(PROCESS_COUNT - FIRST_HANDLER):
        if waiting >> handler & 1:
            store_release(&commit.dirty[handler], commit.dirty_number)
            bell_ring(answers.bells[FIRST_HANDLER + handler])


cdef void drop_core(CommitRef *commit, PartitionCore *core) noexcept nogil:
    """Forget a partition that is being removed.

    The caller retires the partition's files. The sync of these files makes the journal's copy unnecessary.
    """
    cdef int64_t i
    cdef int n
    reopen(commit)
    for i in range(commit.unsynced_count):
        if commit.unsynced[i] == core:
            commit.unsynced[i] = NULL
    for n in range(2):
        for i in range(commit.rounds[n].count):
            if commit.rounds[n].entries[i].core == core:
                commit.rounds[n].entries[i].core = NULL
    for i in range(commit.moved_count):
        if commit.moved[i] == core:
            commit.moved[i] = NULL
    forget_behind(commit, core)
    core.unsynced = core.in_flight = core.moved = core.wakes = 0


cdef void forget_behind(CommitRef *commit, PartitionCore *core) noexcept nogil:
    """Remove the partition from its journal's list, since it no longer needs the journal."""
    cdef int i
    for i in range(BEHIND_PER_ROUND):
        if commit.behind[i] == core:
            commit.behind[i] = NULL
    journal_unlist(&commit.journals[core.slot.log_dir], core)


cdef void fail_dir(CommitRef *commit, AnswersRef *answers, int log_dir, int error) noexcept nogil:
    """Take a log directory offline for good: no append to it is accepted or acknowledged again."""
    cdef uint64_t i
    cdef PartitionCore *core
    if commit.failed_dirs >> log_dir & 1:
        return
    commit.failed_dirs |= <uint64_t>1 << log_dir
    # Publish this first: a successor must not serve what is given up here.
    store_release(commit.shared_failed_dirs, commit.failed_dirs)
    commit.news |= <uint64_t>1 << log_dir
    commit.last_errno = error
    for i in range(answers.core_count):
        core = answers.cores[i]
        if core != NULL and core.slot.log_dir == log_dir:
            # One that is being deleted stays deleted, but its last batches must not be acknowledged either.
            core.slot.flags = PARTITION_OFFLINE | (core.slot.flags & ~PARTITION_LIVE)
            core.appendable = 0
            move(commit, core, True)
