"""Fetch sessions. See `session_table.pxd` for their layout."""
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from mpbroker.handlers.hot_path.session_table cimport CachedPartition, link_last, move_to_end, unlink
from mpbroker.ipc.fetch_sessions cimport (
    SESSION_HANDLER_SHIFT, SESSION_PLACES, epoch_after, handler_of_session,
)
from mpbroker.protocol.messages import FetchRequest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

IDS_PER_HANDLER = 1 << SESSION_HANDLER_SHIFT
NOT_SENT = -1
NAMELESS = bytes(16)  # type: bytes


def first_id(int32_t handler) -> int:
    """Return the smallest session id of a handler, which is at least 1."""
    return max(1, handler << SESSION_HANDLER_SHIFT)


def handler_of(int32_t session_id) -> int:
    return handler_of_session(session_id)


cdef class FetchSession:
    """One client's fetch session. A `key` is (topic id, partition), or (topic name, partition) up to v12."""

    def __cinit__(self, *_):
        self.ref.cached = <CachedPartition *>calloc(1, sizeof(CachedPartition))
        if self.ref.cached == NULL:
            raise MemoryError("no memory for a fetch session")

    def __init__(self, int32_t session_id, bint by_id, bint privileged, int64_t now_ms):
        # Epoch 0 was the full fetch that began the session.
        self.ref.id, self.ref.epoch, self.ref.used_ms, self.ref.by_id = (
            session_id, epoch_after(0), now_ms, by_id,
        )
        self.privileged, self.created_ms = privileged, now_ms
        self.places, self.keys, self.free, self.names = {}, [None], [], {}

    def __dealloc__(self):
        free(self.ref.cached)

    def __len__(self) -> int:
        return self.ref.count

    def __iter__(self) -> Iterator[tuple[str | bytes, int]]:
        """Iterate over the keys in the order in which the next fetch reads the partitions."""
        cdef uint32_t place = self.ref.cached[0].after
        keys = []
        while place:
            keys.append(self.keys[place])
            place = self.ref.cached[place].after
        return iter(keys)

    @property
    def id(self) -> int:
        return self.ref.id

    @property
    def epoch(self) -> int:
        """Epoch that the next fetch must have."""
        return self.ref.epoch

    @epoch.setter
    def epoch(self, int32_t epoch):
        self.ref.epoch = epoch

    @property
    def by_id(self) -> bool:
        return self.ref.by_id

    @property
    def used_ms(self) -> int:
        return self.ref.used_ms

    def use(self, int64_t now_ms) -> None:
        """Record a fetch with the expected epoch at `now_ms`."""
        self.ref.used_ms, self.ref.epoch = now_ms, epoch_after(self.ref.epoch)

    def follows(self, int32_t epoch) -> bool:
        """Return True if `epoch` is the epoch of the last fetch."""
        return epoch_after(epoch) == self.ref.epoch

    def put(self, key: tuple[str | bytes, int], wanted: FetchRequest.FetchPartition) -> None:
        """Add a partition after all others, or change what the client wants of a known partition."""
        cdef CachedPartition *cached
        cdef bytes topic_id
        place = self.places.get(key)
        if place is None:
            place = self._place()
            self.places[key], self.keys[place] = place, key
            cached = &self.ref.cached[<uint32_t>place]
            memset(cached, 0, sizeof(CachedPartition))
            if self.ref.by_id:
                topic_id = key[0]
                memcpy(cached.topic_id, <const char *>topic_id, 16)
            cached.partition, cached.high_watermark, cached.log_start_offset = key[1], NOT_SENT, NOT_SENT
            link_last(&self.ref, place)
            self.ref.count += 1
        cached = &self.ref.cached[<uint32_t>place]
        cached.fetch_offset, cached.bytes_max = wanted.fetch_offset, wanted.partition_max_bytes
        cached.leader_epoch, cached.last_fetched_epoch = (
            wanted.current_leader_epoch, wanted.last_fetched_epoch,
        )
        cached.fetcher_log_start_offset = wanted.log_start_offset

    cdef uint32_t _place(self) except 0:
        cdef CachedPartition *grown
        if self.free:
            return self.free.pop()
        grown = <CachedPartition *>realloc(self.ref.cached, (self.ref.room + 2) * sizeof(CachedPartition))
        if grown == NULL:
            raise MemoryError(f"no memory for {self.ref.room + 1} partitions of a fetch session")
        self.ref.cached = grown
        self.ref.room += 1
        self.keys.append(None)
        return self.ref.room

    def forget(self, key: tuple[str | bytes, int]) -> None:
        place = self.places.pop(key, None)
        if place is not None:
            unlink(&self.ref, place)
            self.keys[place] = None
            self.free.append(place)
            self.ref.count -= 1

    def wanted(self, key: tuple[str | bytes, int]) -> FetchRequest.FetchPartition:
        """Return what the client wants of a partition now."""
        cdef CachedPartition *cached = &self.ref.cached[<uint32_t>self.places[key]]
        return FetchRequest.FetchPartition(
            partition=cached.partition, current_leader_epoch=cached.leader_epoch,
            fetch_offset=cached.fetch_offset, last_fetched_epoch=cached.last_fetched_epoch,
            log_start_offset=cached.fetcher_log_start_offset,
            partition_max_bytes=cached.bytes_max,
        )

    def is_news(
        self, key: tuple[str | bytes, int], int64_t high_watermark, int64_t log_start_offset, bint records,
        bint error, bint diverging
    ) -> bool:
        """Return True if an answer with these contents has anything that the client does not know."""
        cdef CachedPartition *cached
        place = self.places.get(key)
        if place is None:
            return True
        cached = &self.ref.cached[<uint32_t>place]
        return (
            records or error or diverging or high_watermark != cached.high_watermark
            or log_start_offset != cached.log_start_offset
        )

    def note_sent(
        self, key: tuple[str | bytes, int], int64_t high_watermark, int64_t log_start_offset, bint records,
        bint error, bint diverging
    ) -> bool:
        """Return what `is_news` returns, and remember the answer as known to the client.

        An error is always news, and so is the next answer after an error.
        """
        cdef CachedPartition *cached
        news = self.is_news(key, high_watermark, log_start_offset, records, error, diverging)
        place = self.places.get(key)
        if place is not None:
            cached = &self.ref.cached[<uint32_t>place]
            cached.high_watermark = NOT_SENT if error else high_watermark
            cached.log_start_offset = log_start_offset
            if records:
                move_to_end(&self.ref, place)
        return news

    def forget_sent(self) -> None:
        """Forget what was sent, so that all partitions are sent again: the last response was lost."""
        cdef uint32_t place = self.ref.cached[0].after
        while place:
            self.ref.cached[place].high_watermark = NOT_SENT
            place = self.ref.cached[place].after


cdef class SessionTable:
    """The sessions that the turn can find. `drop` removes a session, which is kept in memory until then."""

    def __cinit__(self):
        self.keep = [None] * SESSION_PLACES

    def close(self, bint closed) -> None:
        """Set whether sessions are disabled. If so, the turn serves fetches without making a session."""
        self.ref.none = closed

    def is_free(self, int32_t session_id) -> bool:
        return self.ref.places[session_id & (SESSION_PLACES - 1)] == NULL

    def put(self, FetchSession session) -> None:
        """Let the turn find the session, unless its place is in use: then Python alone serves the session."""
        cdef int place = session.ref.id & (SESSION_PLACES - 1)
        if self.ref.places[place] == NULL:
            self.keep[place] = session
            self.ref.places[place] = &session.ref

    def drop(self, FetchSession session) -> None:
        cdef int place = session.ref.id & (SESSION_PLACES - 1)
        if self.ref.places[place] == &session.ref:
            self.ref.places[place] = NULL
            self.keep[place] = None
