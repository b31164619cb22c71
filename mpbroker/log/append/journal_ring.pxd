"""The ring of a commit journal, as commit rounds use it. `journal.h` has the layout of the file.

Records are written at `head`. The ring is free again up to the oldest record with bytes that are in no synced
segment. To find that record, the partitions whose segments lag the journal are in a list, the oldest first. A
partition leaves the list when its segment is synced: by a round that does not use the journal for it, or in
the background (`commit.pyx`).
"""
from libc.stdint cimport int64_t, uint64_t

from mpbroker.log.partition.state cimport PartitionCore
from mpbroker.storage.journal cimport JournalExtent

cdef extern from "mpbroker/log/append/flusher.h" nogil:
    ctypedef struct JournalWrite:
        int fd
        int error
        int went_around
        int first
        uint64_t nonce
        uint64_t ring_bytes
        uint64_t sequence
        uint64_t payload
        uint64_t version
        uint64_t start
        JournalExtent *extents
        int *fds
        int count
        int room
    int flusher_reserve_extents(JournalWrite *w, int count)

cdef enum:
    # Fractions of the ring: how much a record may take, and how much must be free before the head is
    # rewritten.
    RECORD_PART = 4
    HEAD_PART = 8
    # How full the ring may get before segments are synced in the background, and how full it is afterwards.
    FULL_PART = 2
    EMPTY_PART = 4
    RECORD_BYTES_MOST = 16777216

cdef struct JournalRef:
    int fd                      # for writing
    int64_t direct_bytes        # a file with this many new bytes in a round is synced itself
    uint64_t nonce
    uint64_t ring_bytes         # 0: no journal
    uint64_t version            # of the head on disk, as is `start`
    uint64_t start
    uint64_t head               # the next record goes here, after ...
    uint64_t flying             # ... the bytes of the records in flight
    bint heading                # a head is in flight
    bint first                  # this process has written nothing here yet
    uint64_t wanted             # all records before it are to be released, however empty the ring is
    uint64_t in_background      # segments with records from here on are being synced; NOT_SYNCING: none
    # a predecessor's records from here on wait for a sync of their segments; NOT_SYNCING: none
    uint64_t inherited
    PartitionCore *oldest
    PartitionCore *newest

cdef extern from "<stdint.h>" nogil:
    const uint64_t NOT_SYNCING "UINT64_MAX"

cdef uint64_t journal_record_most(const JournalRef *journal) noexcept nogil
cdef void journal_begin(JournalRef *journal, JournalWrite *write) noexcept nogil
cdef bint journal_add(JournalRef *journal, JournalWrite *write, PartitionCore *core) noexcept nogil
cdef bint journal_ask(JournalRef *journal, JournalWrite *write) noexcept nogil
cdef void journal_take_off(JournalRef *journal, const JournalWrite *write) noexcept nogil
cdef void journal_finish(JournalRef *journal, const JournalWrite *write) noexcept nogil
cdef void journal_behind(JournalRef *journal, const JournalWrite *write, PartitionCore *core) noexcept nogil
cdef void journal_unlist(JournalRef *journal, PartitionCore *core) noexcept nogil
cdef uint64_t journal_target(const JournalRef *journal) noexcept nogil
