"""The hot Fetch (v4-18) without Python: decoded, looked up and answered with slices of segment files.

The answer lies after the frame, in the rest of the request's own block:

    | frame of the request | pad to 8 | bytes of the response frame | paths | pad to 8 | n times Part |

A fetch is hot if it comes from a consumer, all its partitions are live, its offsets are in the log, in
segments that the turn knows (fetch_positions.pxd), and there are enough bytes to send now. It must be a full
fetch without a session, or an incremental fetch in a session of few partitions, named by topic ids, that adds
and forgets no partition (session_table.pxd). All other fetches are left to the slow path, which parks, serves
or refuses them. If a fetch is left, only bytes after its frame have changed.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from mpbroker.handlers.hot_path.session_table cimport SessionsRef
from mpbroker.handlers.hot_path.topic_table cimport TopicsRef
from mpbroker.ipc.slots cimport ReplySlot, RequestSlot
from mpbroker.handlers.hot_path.fetch_positions cimport PlacesRef
from shm.table cimport TableRef

cdef enum:
    FETCH_KEY = 1
    FIRST_FETCH_VERSION = 4
    LAST_FETCH_VERSION = 18
    COUNTED_MAX = 256

cdef struct FetchCount:
    uint32_t slot
    uint32_t generation
    uint64_t length             # bytes of records

# Counted when the answer is sent. A fetch of more partitions is for the slow path.
cdef struct FetchCounts:
    uint32_t count
    bint incremental
    FetchCount partitions[COUNTED_MAX]

cdef bint try_fetch(
    RequestSlot *request, uint8_t *arena, TopicsRef *topics, TableRef *table, PlacesRef *places,
    SessionsRef *sessions, int64_t now_ms, int32_t fetch_bytes_max, ReplySlot *out, FetchCounts *counts
) noexcept nogil
