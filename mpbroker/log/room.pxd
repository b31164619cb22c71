"""Room ahead: `room.h` says what it is; here, who gets it.

A partition that a commit round brings much is to be synced by its own segment rather than by way of the journal, as long as zeros lie ready
behind it: the sync costs the same, and nothing is written to the journal besides. With several such partitions in a round the journal
is cheaper, since it is one sync for all.

What a round brings at a time decides whether room pays: a round of much more than `ROOM_ROUND_MOST` gains less by it than the zeros cost.
"""
from libc.stdint cimport int64_t, uint64_t

cdef extern from "mpbroker/log/room.h" nogil:
    ctypedef struct Room:
        uint64_t asked
        uint64_t done
        int fd
        int error
        int64_t end
        int64_t free_least
        const void *owner
    int room_start(Room *r, uint64_t *bell_armed, int bell_fd)
    void room_ask(Room *r, const void *owner, int fd, int64_t until)
    int room_give_back(Room *r, const void *owner, int fd, int64_t size)
    void room_stop(Room *r)

cdef enum:
    # Of `log.journal.direct.bytes`: what a round has to bring a partition, to be synced there if it has room.
    ROOM_DIRECT_PART = 8
    ROOM_ROUND_MOST = 524288
    ROOM_PARTITIONS_MOST = 2        # in a round
    # Never more zeros than records: of `log.room.ahead.bytes`, what a segment has to have before it gets any.
    ROOM_FIRST_PART = 16
    ROOM_FREE_LEAST = 1073741824
    ROOM_AGAIN_NS = 1000000000      # after a disk was too full for it
