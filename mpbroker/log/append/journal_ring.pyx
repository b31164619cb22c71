"""Native implementation of a journal's ring, described in `journal_ring.pxd`."""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from mpbroker.log.partition.state cimport PartitionCore
from mpbroker.storage.journal cimport JournalExtent, journal_record_bytes


cdef uint64_t journal_record_most(const JournalRef *journal) noexcept nogil:
    return min(journal.ring_bytes // RECORD_PART, <uint64_t>RECORD_BYTES_MOST)


cdef void journal_begin(JournalRef *journal, JournalWrite *write) noexcept nogil:
    """Begin the journal's record of a round that is being put together."""
    write.fd, write.nonce, write.ring_bytes = journal.fd, journal.nonce, journal.ring_bytes
    write.sequence, write.first = journal.head + journal.flying, journal.first and not journal.flying
    write.payload = write.version = 0
    write.count = write.error = write.went_around = 0


cdef bint journal_add(JournalRef *journal, JournalWrite *write, PartitionCore *core) noexcept nogil:
    """Add the new bytes of the partition's segment to the round's record.

    Return False if the segment itself has to be synced: it has too many new bytes, or the record or the
    ring has no room for them.
    """
    cdef int64_t position = core.covered.position if core.covered.segment_base == core.segment_base else 0
    cdef int64_t count = core.size - position
    cdef uint64_t record
    cdef JournalExtent *extent
    if not journal.ring_bytes or count >= journal.direct_bytes:
        return False
    if count == 0:
        # The new bytes lie in a segment that rolled, and are synced with that.
        return True
    record = journal_record_bytes(write.count + 1, write.payload + count)
    if record > journal_record_most(journal) or write.sequence - journal.start + record > journal.ring_bytes:
        return False
    if not flusher_reserve_extents(write, write.count + 1):
        return False
    extent = &write.extents[write.count]
    memcpy(extent.topic_id, core.slot.topic_id, 16)
    extent.partition = core.slot.partition
    extent.segment_base, extent.position, extent.end_offset = core.segment_base, position, core.log_end
    extent.bytes = <uint32_t>count
    write.fds[write.count] = core.fd
    write.payload += count
    write.count += 1
    return True


cdef uint64_t releasable(const JournalRef *journal) noexcept nogil:
    """Return the sequence before which all records are in synced segments."""
    cdef uint64_t oldest = journal.oldest.first_record if journal.oldest != NULL else journal.head
    return min(oldest, journal.in_background, journal.inherited)


cdef bint journal_ask(JournalRef *journal, JournalWrite *write) noexcept nogil:
    """Return whether the round writes to the journal.

    A round with new bytes writes a record. If much of the ring has become free, the round writes the
    file's head, too, or only the head: the head says where the records begin that a replay needs.
    """
    cdef uint64_t free_up_to
    if not journal.ring_bytes:
        return False
    free_up_to = releasable(journal)
    if not journal.heading and free_up_to - journal.start >= journal.ring_bytes // HEAD_PART:
        write.version, write.start = journal.version + 1, free_up_to
    return write.count > 0 or write.version > 0


cdef void journal_take_off(JournalRef *journal, const JournalWrite *write) noexcept nogil:
    """Add the round's record and head to those in flight, because the flusher gets the round now."""
    if write.count:
        journal.flying += journal_record_bytes(write.count, write.payload)
    if write.version:
        journal.heading = True


cdef void journal_finish(JournalRef *journal, const JournalWrite *write) noexcept nogil:
    """Finish a round. Its record is on disk unless the write failed or bypassed the journal."""
    cdef bint is_written = not write.error and not write.went_around
    cdef uint64_t record
    if write.count:
        record = journal_record_bytes(write.count, write.payload)
        journal.flying -= record
        if is_written:
            journal.head += record
            journal.first = False
    if write.version:
        journal.heading = False
        if is_written:
            journal.version, journal.start = write.version, write.start


cdef void journal_behind(JournalRef *journal, const JournalWrite *write, PartitionCore *core) noexcept nogil:
    """Add the partition to the list of partitions whose latest bytes are durable in the journal alone."""
    if core.is_behind:
        return
    core.is_behind = 1
    core.first_record = write.sequence
    core.newer, core.older = NULL, journal.newest
    if journal.newest != NULL:
        journal.newest.newer = core
    else:
        journal.oldest = core
    journal.newest = core


cdef void journal_unlist(JournalRef *journal, PartitionCore *core) noexcept nogil:
    """Remove the partition from the list of `journal_behind`, since its segment is synced or will be."""
    if not core.is_behind:
        return
    core.is_behind = 0
    if core.older != NULL:
        core.older.newer = core.newer
    else:
        journal.oldest = core.newer
    if core.newer != NULL:
        core.newer.older = core.older
    else:
        journal.newest = core.older
    core.older = core.newer = NULL


cdef uint64_t journal_target(const JournalRef *journal) noexcept nogil:
    """Return the sequence before which all records are to be released, by background syncs of segments.

    If the oldest unreleased record has this or a larger sequence, there is nothing to sync.
    """
    cdef uint64_t target = journal.wanted
    if journal.head - journal.start > journal.ring_bytes // FULL_PART:
        target = max(target, journal.head - journal.ring_bytes // EMPTY_PART)
    return target
