"""Short requests that are forwarded to the coordinator without Python: offset commits and heartbeats.

    processor -> turn          REQUEST
    turn      -> coordinator   CALL: a ForwardedRequest in a block of the handler's own arena
    coordinator -> turn        ANSWER: a ForwardedResponse
    turn      -> coordinator   RETURN, without its bell: it only ends the lease of the answer's block
    turn      -> processor     SEND, after the request's frame in the processor's block

The request counts as load of its handler until it is answered, so the processor is not notified meanwhile.
Python handles all uncommon cases: an answer that is an error of the whole request, a coordinator that died, a
handler that stops. Python then takes the request over as if it had forwarded the request itself (`Forwarded`,
`handlers/calls/forwarding.py`).
"""
from libc.stdint cimport int16_t, int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from mpbroker.ipc.meters cimport MetersRef
from mpbroker.ipc.session cimport SessionEntry
from mpbroker.ipc.slots cimport CallSlot, ReplySlot, RequestSlot
from shm.arena cimport ArenaRef

cdef enum:
    FORWARDED_MAX = 1024       # under way at once, a power of two; Python has the rest
    APIS_MAX = 128

# A request that the coordinator has.
cdef struct ForwardedEntry:
    RequestSlot request
    uint64_t block              # of the call, in the handler's arena
    uint64_t generation
    uint64_t taken_ns
    uint64_t passed_on_ns
    uint32_t bytes              # of the call
    uint32_t number             # of the call
    bint used
    bint dropped                # its processor died: no response is sent

cdef struct ForwardedApi:
    int16_t first               # of the versions that are served
    int16_t last
    int16_t first_with_tags     # whose responses have tagged fields in the header
    bint used

cdef struct ForwardedRef:
    ForwardedEntry *entries     # NULL: everything is forwarded by Python
    ForwardedApi apis[APIS_MAX]
    uint32_t count              # in use
    uint32_t next_number        # of a call to the coordinator, Python's calls included
    uint32_t bytes_max          # of a body
    uint16_t owner              # process index of the handler

cdef bint forward_begin(
    ForwardedRef *forwarded, const RequestSlot *request, const uint8_t *arena, const SessionEntry *session,
    ArenaRef *own, uint64_t taken_ns, uint64_t now_ns, uint16_t coordinator, CallSlot *call,
) noexcept nogil
cdef bint forward_answer(
    const ForwardedEntry *entry, const ForwardedRef *forwarded, const CallSlot *answer,
    const uint8_t *theirs, uint8_t *arena, MetersRef *meters, ReplySlot *reply,
) noexcept nogil
cdef void forward_end(ForwardedRef *forwarded, ForwardedEntry *entry, ArenaRef *own) noexcept nogil

cdef inline bint is_forwardable(const ForwardedRef *forwarded, int api_key) noexcept nogil:
    return 0 <= api_key < APIS_MAX and forwarded.apis[api_key].used

cdef inline ForwardedEntry *forward_entry(const ForwardedRef *forwarded, uint32_t number) noexcept nogil:
    """Return the entry of a call; NULL if Python has made the call."""
    cdef ForwardedEntry *entry
    if forwarded.entries == NULL:
        return NULL
    entry = &forwarded.entries[number & (FORWARDED_MAX - 1)]
    return entry if entry.used and entry.number == number else NULL
