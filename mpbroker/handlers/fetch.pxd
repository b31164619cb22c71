"""The hot Fetch (v4-18) without Python: decoded, looked up and answered with slices of segment files.

The answer stands in what the request's own block has left behind the frame:

    | frame of the request | pad to 8 | bytes of the response frame | paths | pad to 8 | n times Part |

Common is a full fetch by a consumer of partitions that are live, with offsets in the log, in segments that the
turn knows (mpbroker/log/places.pxd), and with enough to send now. All else is left to the slow path, which parks it, looks
it up or refuses it, and nothing has been changed then but bytes behind the frame.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from mpbroker.log.places cimport PlacesRef
from mpbroker.handlers.topics cimport TopicsRef
from mpbroker.ipc.slots cimport ReplySlot, RequestSlot
from shm.table cimport TableRef

cdef enum:
    FETCH_KEY = 1
    FIRST_FETCH_VERSION = 4
    LAST_FETCH_VERSION = 18

cdef bint try_fetch(
    RequestSlot *request, uint8_t *arena, TopicsRef *topics, TableRef *table, PlacesRef *places,
    int32_t fetch_bytes_max, ReplySlot *out
) noexcept nogil
