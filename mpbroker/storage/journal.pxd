"""The file of a commit journal. `journal.h` describes its layout."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "mpbroker/storage/journal.h" nogil:
    const char *JOURNAL_NAME
    enum:
        JOURNAL_HEAD_BYTES
        JOURNAL_RING_AT
        JOURNAL_BLOCK_BYTES
    ctypedef struct JournalHead:
        uint64_t version
        uint64_t nonce
        uint64_t ring_bytes
        uint64_t start
    ctypedef struct JournalRecord:
        uint64_t nonce
        uint64_t sequence
        uint64_t bytes
        uint32_t extents
        uint32_t first
    ctypedef struct JournalExtent:
        uint8_t topic_id[16]
        int64_t segment_base
        int64_t position
        int64_t end_offset
        uint32_t bytes
        int32_t partition
    uint64_t journal_record_bytes(uint64_t extents, uint64_t payload)
    bint journal_head_valid(const JournalHead *head)
    bint journal_expected(const JournalRecord *record, uint64_t nonce, uint64_t sequence, uint64_t ring_bytes)
    bint journal_intact(const uint8_t *record, uint64_t bytes)
    int journal_get(int fd, uint8_t *to, uint64_t bytes, uint64_t sequence, uint64_t ring_bytes)
    int journal_pread(int fd, uint8_t *to, uint64_t bytes, uint64_t at)
    int journal_put_head(int fd, uint64_t version, uint64_t nonce, uint64_t ring_bytes, uint64_t start)


cdef class JournalFile:
    cdef readonly int fd            # reads, and writes at a start, through the page cache
    cdef readonly int write_fd      # rounds write here: `fd`, or one that bypasses the page cache
    cdef readonly object path       # type: Path
    cdef JournalHead head
    cdef JournalRecord *next_record(self, bytearray room, uint64_t sequence) except? NULL
    cdef JournalRecord *record_at(self, bytearray room, uint64_t sequence) except? NULL
    cdef int put_head(self, uint64_t version, uint64_t nonce) except -1
    cdef int refuse_later(self, uint64_t sequence) except -1
    cdef int get(self, uint8_t *to, uint64_t count, uint64_t sequence) except -1
