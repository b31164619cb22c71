"""The journals of a turn, for Python: put to use, released, looked at."""
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from mpbroker.log.append.commit cimport commit_release, commit_use_journal
from mpbroker.log.append.journal cimport NOT_SYNCING, JournalFile, JournalRef
from mpbroker.log.append.turn cimport Turn


def use_journal(Turn turn, int log_dir, JournalFile journal, uint64_t end, int64_t direct_bytes) -> None:
    """Rounds go by way of this journal, behind its record that ends at `end`: all but those in which a file gets `direct_bytes` or more."""
    cdef JournalRef ref
    memset(&ref, 0, sizeof(ref))
    ref.fd, ref.direct_bytes = journal.write_fd, direct_bytes
    ref.nonce, ref.ring_bytes, ref.version = journal.head.nonce, journal.head.ring_bytes, journal.head.version
    ref.start, ref.head, ref.first = journal.head.start, end, True
    ref.in_background = NOT_SYNCING
    ref.inherited = ref.start if end > ref.start else NOT_SYNCING
    commit_use_journal(&turn.commit, log_dir, &ref)
    turn.keep.append(journal)


def inherited_is_synced(Turn turn, int log_dir) -> None:
    """The segments that a predecessor's records name."""
    turn.commit.journals[log_dir].inherited = NOT_SYNCING


def release_journals(Turn turn) -> None:
    """Segments with what the journals hold now are synced in the background, however much room they have."""
    commit_release(&turn.commit)


def bypass_journals(Turn turn, bint bypass) -> None:
    """Rounds sync the segments themselves, so that nothing more waits behind the journals, or no longer do."""
    turn.commit.bypass = bypass


def journal_ends(Turn turn, int log_dir) -> tuple:
    """(start, head): the part of a journal's endless stream that its ring has to keep; zeros if it is not in use."""
    return turn.commit.journals[log_dir].start, turn.commit.journals[log_dir].head
