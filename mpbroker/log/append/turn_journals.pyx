"""Functions with which Python uses, releases and inspects the journals of a turn."""
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from mpbroker.log.append.commit cimport commit_release, commit_use_journal
from mpbroker.log.append.journal_ring cimport NOT_SYNCING, JournalRef
from mpbroker.log.append.turn cimport AppendTurn
from mpbroker.storage.journal cimport JournalFile


def use_journal(
    AppendTurn turn, int log_dir, JournalFile journal, uint64_t end, int64_t direct_bytes
) -> None:
    """Write commit rounds to this journal from now on, after its last record, which ends at `end`.

    If a segment gets `direct_bytes` or more in a round, the segment itself is synced instead.
    """
    cdef JournalRef ref
    memset(&ref, 0, sizeof(ref))
    ref.fd, ref.direct_bytes = journal.write_fd, direct_bytes
    ref.nonce, ref.ring_bytes, ref.version = journal.head.nonce, journal.head.ring_bytes, journal.head.version
    ref.start, ref.head, ref.first = journal.head.start, end, True
    ref.in_background = NOT_SYNCING
    ref.inherited = ref.start if end > ref.start else NOT_SYNCING
    commit_use_journal(&turn.commit, log_dir, &ref)
    turn.keep.append(journal)


def inherited_is_synced(AppendTurn turn, int log_dir) -> None:
    """Record that the segments which an earlier process named in the journal are all synced."""
    turn.commit.journals[log_dir].inherited = NOT_SYNCING


def release_journals(AppendTurn turn) -> None:
    """Request a background sync of all segments that the journals name, even if no journal is full."""
    commit_release(&turn.commit)


def bypass_journals(AppendTurn turn, bint bypass) -> None:
    """Set whether commit rounds bypass the journals, and sync each partition's segment instead."""
    turn.commit.bypass = bypass


def journal_ends(AppendTurn turn, int log_dir) -> tuple[int, int]:
    """Return the journal positions (start of the oldest record to keep, start of the next record to write).

    Positions grow without end: the file is a ring. Both are 0 if the journal is not in use.
    """
    return turn.commit.journals[log_dir].start, turn.commit.journals[log_dir].head
