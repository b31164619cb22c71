"""Commit rounds that are on disk, and wait until the tier has put them into the object store
(`mpbroker.remote.acks=ledger`).

Each log worker has a block:

    head      64 bytes, see `UnshippedHead`
    entries   64 bytes each, see `UnshippedEntry`: at most one for each slot of the partition table

The worker writes the entries of a round, then its number. It writes the next round only when the tier has
stored that number in the worker's word of the block `shipped`. A worker that is killed while it writes leaves
the number 0. A successor's numbers are above those of its predecessor. So the word may be of either.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from mpbroker.ipc.table cimport Bound
from shm.doorbell cimport BellRef

cdef enum:
    UNSHIPPED_HEAD_BYTES = 64
    # Rounds of one life of a log worker are fewer.
    LIFE_SHIFT = 40

cdef struct UnshippedHead:
    uint64_t number             # 0: none, or it is being written
    uint64_t count
    uint64_t padding[6]

cdef struct UnshippedEntry:
    uint32_t slot
    uint32_t generation
    int64_t log_start           # the log start offset, once the round is finished
    Bound begin                 # what is in the object store ends here ...
    Bound end                   # ... and what is on disk, here

cdef struct UnshippedRef:
    UnshippedHead *head         # NULL: a round is finished when it is on disk
    UnshippedEntry *entries
    uint64_t room
    uint64_t *shipped
    uint64_t life               # added to a round's number
    BellRef *tier

cdef class Unshipped:
    cdef UnshippedRef ref
    cdef object keep
