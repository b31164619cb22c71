"""Fetch sessions, shared by the turn and Python (KIP-227): a client's partitions, with the last sent offsets.

    Session         CachedPartition 1..room, linked in reading order; [0] is the list's head
    SessionTable   by the lowest bits of an id, the sessions that the turn can find

A session is private to one handler. The turn and Python share its one copy, so each sees the other's changes.
(Kafka: FetchSession, CachedPartition.)
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from mpbroker.ipc.fetch_sessions cimport SESSION_PLACES

cdef struct CachedPartition:
    uint8_t topic_id[16]            # zeros in a session of names
    int32_t partition
    int32_t leader_epoch
    int64_t fetch_offset
    int32_t last_fetched_epoch
    int32_t bytes_max
    int64_t fetcher_log_start_offset
    int64_t high_watermark          # as last sent; -1: must be sent again
    int64_t log_start_offset        # as last sent
    uint32_t before
    uint32_t after                  # 0: the last one

cdef struct Session:
    int32_t id
    int32_t epoch                   # epoch that the next fetch must have
    int64_t used_ms
    bint by_id                      # the client names topics by id (v13)
    uint32_t count
    uint32_t room
    CachedPartition *cached

cdef struct SessionsRef:
    bint none                       # the cache has no room at all: no client gets a session
    Session *places[SESSION_PLACES]


cdef inline Session *session_by_id(SessionsRef *sessions, int32_t session_id) noexcept nogil:
    cdef Session *session = sessions.places[session_id & (SESSION_PLACES - 1)]
    return session if session != NULL and session.id == session_id else NULL


cdef inline void move_to_end(Session *session, uint32_t place) noexcept nogil:
    """Move a partition with records to the end, so that the response's limit starves no partition."""
    cdef CachedPartition *cached = session.cached
    if cached[0].before == place:
        return
    unlink(session, place)
    link_last(session, place)


cdef inline void unlink(Session *session, uint32_t place) noexcept nogil:
    cdef CachedPartition *cached = session.cached
    cached[cached[place].before].after = cached[place].after
    cached[cached[place].after].before = cached[place].before


cdef inline void link_last(Session *session, uint32_t place) noexcept nogil:
    cdef CachedPartition *cached = session.cached
    cached[place].before, cached[place].after = cached[0].before, 0
    cached[cached[0].before].after = place
    cached[0].before = place


cdef class FetchSession:
    cdef Session ref
    cdef readonly bint privileged
    cdef readonly int64_t created_ms
    cdef dict places                # (topic name or id, partition) -> place
    cdef list keys                  # by place
    cdef list free
    # Topic names by id, kept although the topic may be deleted.
    cdef readonly dict names        # type: dict[bytes, str]
    cdef uint32_t _place(self) except 0


cdef class SessionTable:
    cdef SessionsRef ref
    cdef list keep
