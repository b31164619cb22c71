"""Commit rounds: the partitions with unsynced bytes, the flusher's requests, and the publication of visible
offsets.

One round is written and synced at a time, and bytes appended meanwhile join the next round. If the next round
is large, it is offered to the flusher, a native thread, which takes it as soon as the current round is done
(`flusher.h`). If there is an append before that, the offer is taken back, and the appended bytes join the
round. The high watermark (offset and position together) moves only when a round is done. Only commit rounds
close a file descriptor with unsynced bytes: rolled files go through `retired`.

With mpbroker.remote.acks=ledger a round is done only when the tier has put it into the object store, too
(`ipc/unshipped.pxd`). It is shown to the tier when it is on disk.

A round makes a partition durable through the journal of its log directory. It syncs the segment itself if
there is no journal (yet), if much was appended, or if the journal is full. Segments with bytes in the journal
are synced in the background, before the journal's ring overwrites those bytes.
"""
from libc.stdint cimport int64_t, uint64_t

from mpbroker.ipc.table cimport Bound
from mpbroker.ipc.unshipped cimport UnshippedRef
from mpbroker.log.append.answers cimport AnswersRef
from mpbroker.log.append.journal_ring cimport JournalRef, JournalWrite
from mpbroker.log.partition.state cimport PartitionCore
from shm.counters cimport CountersRef
from shm.marks cimport MarksRef
from shm.table cimport TableRef

cdef extern from "mpbroker/log/append/flusher.h" nogil:
    enum:
        LOG_DIRS_MOST
    ctypedef struct FlushRound:
        int *fds
        int *errors
        int count
        int data_count
        uint64_t journals
        JournalWrite writes[64]
        uint64_t took_ns
    ctypedef struct Flusher:
        uint64_t done
        uint64_t buffer_bytes
    int flusher_open(int fd)
    int flusher_start(Flusher *f, uint64_t *bell_armed, int bell_fd)
    FlushRound *flusher_place(Flusher *f, uint64_t number)
    int flusher_reserve(FlushRound *r, int count)
    int flusher_reserve_record(Flusher *f, uint64_t bytes)
    void flusher_ask(Flusher *f, uint64_t number)
    void flusher_offer(Flusher *f, uint64_t number)
    bint flusher_take_back(Flusher *f)
    void flusher_stop(Flusher *f)

cdef enum:
    BEHIND_PER_ROUND = 256          # segments that are synced in the background at a time
    # Rounds smaller than this lose the gain between two rounds.
    OFFERED_BYTES = 32768
    # What one log worker appends while the object store is away. acks=0 is not held back by answers.
    UNSHIPPED_BYTES = 1073741824

cdef struct RetiredFile:
    int fd
    int log_dir

cdef struct CommitEntry:                 # a partition's part in a round
    PartitionCore *core             # NULL: it was removed
    int journaled                   # 1: durable by the journal alone; 0: its segment is synced
    int synced_itself               # its segment is synced because it asked for that
    int is_dormant                  # it has no open file: all of it is durable already
    Bound covered                   # durable up to here when the round is done
    Bound stable                    # stable up to here when the round is done

cdef struct CommitRound:
    CommitEntry *entries
    int64_t count
    int retiring  # how many of `retired` (after those of the round in front) the round syncs, then closes

cdef struct CommitRef:
    Flusher flusher
    int bypass                      # rounds sync segments themselves: too many files wait for the journals
    int group                       # log.flush.policy: group (HW = durable), or os (HW = log end)
    UnshippedRef unshipped
    int64_t unshipped_bytes         # clients' batches are refused while so much waits for the tier's round
    uint64_t shown                  # the last round that the tier was shown ...
    bint awaits_tier                # ... and whether it has anything to ship
    uint64_t finished               # the last round whose entries are finished
    uint64_t started                # the last round known to be the flusher's
    bint offered                    # whether the round after `started` is offered
    int64_t offered_bytes           # a round is offered if it covers at least this many bytes
    CommitRound rounds[2]           # by the same places as the flusher's rounds
    PartitionCore **unsynced
    int64_t unsynced_count
    int64_t unsynced_bytes
    PartitionCore **moved           # partitions to publish at the end of the round
    int64_t moved_count
    RetiredFile *retired            # files to sync with the next round, then to close
    int retired_count
    int retired_room
    JournalRef *journals            # by log directory
    int journal_count               # up to the last journal in use
    Flusher background              # syncs the segments that the journals' oldest records belong to
    uint64_t background_asked
    uint64_t background_finished
    int background_dir
    PartitionCore *behind[BEHIND_PER_ROUND]     # the partitions in flight; NULL: it was removed
    uint64_t failed_dirs            # log directories that failed, as a bit set
    uint64_t news                   # the failed ones that Python does not know yet
    int last_errno
    TableRef *table
    MarksRef *marks
    uint64_t *dirty                 # one word per handler
    uint64_t *shared_failed_dirs    # what a successor reads
    uint64_t dirty_number
    CountersRef *counters

cdef bint commit_open(CommitRef *commit, int64_t slots) noexcept nogil
cdef int commit_start(CommitRef *commit, uint64_t *bell_armed, int bell_fd) noexcept nogil
cdef void commit_close(CommitRef *commit) noexcept nogil
cdef bint retire_file(CommitRef *commit, int fd, int log_dir) noexcept nogil
cdef void appended(CommitRef *commit, PartitionCore *core, int64_t count) noexcept nogil
cdef void sync_itself(CommitRef *commit, PartitionCore *core) noexcept nogil
cdef void join_round(CommitRef *commit, PartitionCore *core) noexcept nogil
cdef void finish_rounds(CommitRef *commit, AnswersRef *answers) noexcept nogil
cdef void ask_next(CommitRef *commit) noexcept nogil
cdef uint64_t coming_round(CommitRef *commit) noexcept nogil
cdef bint something_is_done(CommitRef *commit) noexcept nogil
cdef bint awaits_disk(CommitRef *commit) noexcept nogil
cdef bint awaits_too_much(const CommitRef *commit) noexcept nogil
cdef bint commit_is_busy(CommitRef *commit) noexcept nogil
cdef void commit_use_journal(CommitRef *commit, int log_dir, const JournalRef *journal) noexcept nogil
cdef void commit_release(CommitRef *commit) noexcept nogil
cdef void publish_moved(CommitRef *commit, AnswersRef *answers) noexcept nogil
cdef void forget_behind(CommitRef *commit, PartitionCore *core) noexcept nogil
cdef void drop_core(CommitRef *commit, PartitionCore *core) noexcept nogil
cdef void fail_dir(CommitRef *commit, AnswersRef *answers, int log_dir, int error) noexcept nogil
