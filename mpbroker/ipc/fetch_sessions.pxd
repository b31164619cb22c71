"""The id of a fetch session (KIP-227): the handler that keeps the session, and its place there.

    31 bits:    handler number (6) | random (15) | place in the handler's table (10)

By the id, a processor finds the handler that keeps a fetch's session, as Kafka finds the shard of its
FetchSessionCache. An id is not a secret and proves nothing: a handler refuses an id that it does not know,
and the client makes a new session.
"""
from libc.stdint cimport int32_t, uint8_t, uint32_t

cdef enum:
    SESSION_HANDLER_SHIFT = 25
    SESSION_PLACES = 1024           # the lowest bits of an id
    FIRST_SESSION_VERSION = 7       # version of Fetch
    FIRST_VERSION_WITHOUT_REPLICA = 15
    FULL_FETCH = 0                  # as an epoch: makes a session
    FINAL_FETCH = -1                # as an epoch: ends the session and makes none

cdef struct SessionOfFetch:
    int32_t id
    int32_t epoch

cdef inline uint32_t handler_of_session(int32_t session_id) noexcept nogil:
    """Return the number of the handler that keeps the session."""
    return <uint32_t>session_id >> SESSION_HANDLER_SHIFT

cdef inline int32_t epoch_after(int32_t epoch) noexcept nogil:
    """Return the next epoch (Kafka's FetchMetadata.nextEpoch). The largest epoch is followed by 1, not 0."""
    if epoch < 0:
        return FINAL_FETCH
    return 1 if epoch == 0x7fffffff else epoch + 1

cdef inline int32_t network_order(const uint8_t *p) noexcept nogil:
    return <int32_t>(<uint32_t>p[0] << 24 | <uint32_t>p[1] << 16 | <uint32_t>p[2] << 8 | p[3])

cdef inline SessionOfFetch session_of_fetch(
    const uint8_t *body, const uint8_t *end, int version
) noexcept nogil:
    """Return the session id and epoch in the body of a Fetch.

    For a body that is too short return id 0 and FINAL_FETCH, which mean no session.
    """
    cdef SessionOfFetch said
    # Skip replica_id; max_wait_ms, min_bytes, max_bytes, isolation_level.
    cdef int at = (4 if version < FIRST_VERSION_WITHOUT_REPLICA else 0) + 13
    said.id, said.epoch = 0, FINAL_FETCH
    if version >= FIRST_SESSION_VERSION and end - body >= at + 8:
        said.id, said.epoch = network_order(body + at), network_order(body + at + 4)
    return said
