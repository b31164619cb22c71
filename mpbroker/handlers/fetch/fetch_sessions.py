"""Fetch sessions of one handler, and how a fetch uses and changes its session (KIP-227). Sans-I/O.

A session belongs to the handler that has created it. The session's id names this handler
(mpbroker/ipc/fetch_sessions.pxd), to which processors send all fetches of the session. So each handler is one
of Kafka's FetchSessionCacheShards and has its share of `max.incremental.fetch.session.cache.slots`. When a
handler ends, its sessions end. Another handler answers their next fetch with FETCH_SESSION_ID_NOT_FOUND, and
the client asks for a new session.
(Kafka: FetchSession, FetchSessionCacheShard, FetchManager, FetchContext and its kinds.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple, TypeAlias

from mpbroker.handlers.hot_path.session_table import (
    IDS_PER_HANDLER,
    NAMELESS,
    FetchSession,
    SessionTable,
    first_id,
)
from mpbroker.ipc.counters import Counter
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import FetchRequest, FetchResponse
from mpbroker.records.validation import at_once
from shm.counters import CounterPage

NO_SESSION = 0
FULL_EPOCH = 0
FINAL_EPOCH = -1
FIRST_SESSION_VERSION = 7
FIRST_TOPIC_ID_VERSION = 13
# Kafka's KafkaBroker.MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS
MIN_EVICTION_MS = 120_000
# How many ids are drawn to find a free place for the turn. If all are taken, a search is not worth it.
DRAWS = 8
# Answers that a session notes before a pause: some milliseconds.
NOTED_AT_ONCE = 1_000

Key: TypeAlias = tuple[str | bytes, int]
Answer: TypeAlias = FetchResponse.PartitionData
Wanted: TypeAlias = FetchRequest.FetchPartition


class Interest(NamedTuple):
    """One partition that a fetch asks for. `topic` is the topic's name, from v13 on its id."""

    topic: str | bytes
    wanted: Wanted

    @property
    def key(self) -> Key:
        return self.topic, self.wanted.partition


class Maker(NamedTuple):
    """The request that created a session. A processor repeats this request if its response cannot be sent."""

    connection: int
    correlation: int


UNKNOWN_MAKER = Maker(-1, -1)


class FetchSessionCache:
    """The sessions of handler number `handler`. The handler's native code finds sessions in `places`."""

    def __init__(
        self,
        slots: int,
        handler: int,
        places: SessionTable,
        counters: CounterPage,
        now_ms: Callable[[], int],
        partitions_max: int,
    ) -> None:
        # Limit for one session: clients could add partitions that do not exist without end, fetch by fetch.
        self.partitions_max = partitions_max
        self._handler = handler
        self._places = places
        self._counters = counters
        self._now_ms = now_ms
        self._sessions: dict[int, FetchSession] = {}
        self._partitions = 0
        self._sizes: dict[int, int] = {}
        # The request that made each session.
        self._makers: dict[int, Maker] = {}
        self.resize(slots)
        # Overwrite the counts of a predecessor.
        self._count()

    def __len__(self) -> int:
        return len(self._sessions)

    def resize(self, slots: int) -> None:
        """Set the largest number of sessions. Existing sessions stay."""
        self._slots = slots
        self._places.close(slots == 0)

    def get(self, session_id: int) -> FetchSession | None:
        return self._sessions.get(session_id)

    def remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._places.drop(session)
            self._partitions -= self._sizes.pop(session_id)
            del self._makers[session_id]
            self._count()

    def remove_made_by(self, maker: Maker) -> None:
        """Remove the newest session made by `maker`, if there is one. The client never got its id."""
        # A client may use the same correlation id for all its requests.
        self.remove(next((id_ for id_, by in reversed(self._makers.items()) if by == maker), NO_SESSION))

    def resized(self, session: FetchSession) -> None:
        """Update the number of cached partitions after the session's partitions have changed."""
        if session.id in self._sizes:
            self._partitions += len(session) - self._sizes[session.id]
            self._sizes[session.id] = len(session)
            self._count()

    def maybe_create(
        self, *, privileged: bool, by_id: bool, size: int, maker: Maker | None = None
    ) -> FetchSession | None:
        """Create a session without partitions; return None if there is no room for `size` partitions.

        Call `resized` after adding the partitions.
        """
        now_ms = self._now_ms()
        if size > self.partitions_max:
            return None
        if len(self._sessions) >= self._slots and not self._try_evict(privileged, size, now_ms):
            return None
        session = FetchSession(self._new_id(), by_id, privileged, now_ms)
        self._sessions[session.id] = session
        self._sizes[session.id] = 0
        self._makers[session.id] = maker or UNKNOWN_MAKER
        self._places.put(session)
        self._count()
        return session

    def _new_id(self) -> int:
        first, last = first_id(self._handler), (self._handler + 1) * IDS_PER_HANDLER - 1
        for _ in range(DRAWS):
            session_id = random.randint(first, last)
            if session_id not in self._sessions and self._places.is_free(session_id):
                return session_id
        while session_id in self._sessions:
            session_id = random.randint(first, last)
        return session_id

    def _try_evict(self, privileged: bool, size: int, now_ms: int) -> bool:
        """Evict a session to make room for a new one with `size` partitions; return True if that succeeded.

        If the session used longest ago was unused for MIN_EVICTION_MS, evict it. Otherwise, of the sessions
        for which `_is_evictable` is True, evict the one worth least, if the new session is worth more. A
        follower's session is worth more than a consumer's. Between equals, more partitions are worth more.
        """
        oldest = min(self._sessions.values(), key=lambda s: s.used_ms, default=None)
        if oldest is None:
            return False
        if now_ms - oldest.used_ms > MIN_EVICTION_MS:
            self._evict(oldest)
            return True
        least = min(
            (s for s in self._sessions.values() if _is_evictable(s, by_privileged=privileged)),
            key=_worth,
            default=None,
        )
        if least is None or (privileged, size, 0) < _worth(least):
            return False
        self._evict(least)
        return True

    def _evict(self, session: FetchSession) -> None:
        self.remove(session.id)
        self._counters.add(Counter.COUNT_FETCH_SESSIONS_EVICTED)

    def _count(self) -> None:
        self._counters.set(Counter.COUNT_FETCH_SESSIONS, len(self._sessions))
        self._counters.set(Counter.COUNT_FETCH_SESSION_PARTITIONS, self._partitions)


def _is_evictable(session: FetchSession, *, by_privileged: bool) -> bool:
    """Return True if a session may be evicted although it was used recently.

    Its last use must be more than MIN_EVICTION_MS after its creation, or it must be a consumer's session and
    the new session a follower's (`by_privileged`).
    """
    grown_up = session.used_ms - session.created_ms > MIN_EVICTION_MS
    return grown_up or (by_privileged and not session.privileged)


def _worth(session: FetchSession) -> tuple[bool, int, int]:
    return session.privileged, len(session), session.id


class FetchContext:
    """A fetch without a session: its request names all partitions, and its response has all of them."""

    def __init__(self, request: FetchRequest, by_id: bool) -> None:
        self._request = request
        self._by_id = by_id
        self.interests = list(interests_of(request, by_id))
        # Topic names by id. A session keeps them, so it still knows the name of a deleted topic.
        self.names: dict[bytes, str] = {}

    def respond_in_pieces(self, answers: list[Answer]) -> Generator[None, None, FetchResponse]:
        """Build the response, in pieces, from an answer for each of `interests`, in their order."""
        response = FetchResponse()
        following = iter(answers)
        for done, topic in enumerate(self._request.topics, start=1):
            some = [next(following) for _ in topic.partitions]
            response.responses.append(FetchResponse.FetchableTopicResponse(topic.topic, topic.topic_id, some))
            if done % NOTED_AT_ONCE == 0:
                yield
        return response

    def respond_throttled(self) -> FetchResponse:
        return FetchResponse()

    def preview(self, answers: list[Answer]) -> FetchResponse:
        """Build a response of the same size as the one to these answers, to measure it; change no session."""
        return at_once(FetchContext.respond_in_pieces(self, answers))


class FullFetchContext(FetchContext):
    """A fetch that names all its partitions, and asks for a session for later fetches."""

    def __init__(
        self,
        request: FetchRequest,
        by_id: bool,
        cache: FetchSessionCache,
        *,
        privileged: bool,
        maker: Maker,
    ) -> None:
        super().__init__(request, by_id)
        self._cache = cache
        self._privileged = privileged
        self._maker = maker

    def respond_in_pieces(self, answers: list[Answer]) -> Generator[None, None, FetchResponse]:
        response = yield from super().respond_in_pieces(answers)
        size = len({interest.key for interest in self.interests})
        session = self._cache.maybe_create(
            privileged=self._privileged, by_id=self._by_id, size=size, maker=self._maker
        )
        if session is not None:
            for done, (interest, answer) in enumerate(zip(self.interests, answers, strict=True), start=1):
                session.put(interest.key, interest.wanted)
                is_news(session, interest, answer)
                if done % NOTED_AT_ONCE == 0:
                    yield
            session.names.update(self.names)
            self._cache.resized(session)
            response.session_id = session.id
        return response


class IncrementalFetchContext(FetchContext):
    """A fetch in a session: request and response have only partitions with changes."""

    def __init__(self, request: FetchRequest, session: FetchSession) -> None:
        super().__init__(request, session.by_id)
        self._session = session
        self.interests = [Interest(key[0], session.wanted(key)) for key in session]
        self.names = session.names

    def respond_in_pieces(self, answers: list[Answer]) -> Generator[None, None, FetchResponse]:
        if not self._session.follows(self._request.session_epoch):
            return self._overtaken()
        changed = []
        for done, (interest, answer) in enumerate(zip(self.interests, answers, strict=True), start=1):
            if is_news(self._session, interest, answer):
                changed.append((interest.topic, answer))
            if done % NOTED_AT_ONCE == 0:
                yield
        return self._response(changed)

    def preview(self, answers: list[Answer]) -> FetchResponse:
        kept = [
            (interest.topic, answer)
            for interest, answer in zip(self.interests, answers, strict=True)
            if is_news(self._session, interest, answer, is_sent=False)
        ]
        return self._response(kept)

    def _response(self, partitions: list[tuple[str | bytes, Answer]]) -> FetchResponse:
        """Build a response in which consecutive partitions of a topic share one topic entry."""
        response = FetchResponse(session_id=self._session.id)
        before: str | bytes | None = None
        for topic, answer in partitions:
            if topic != before:
                before = topic
                name, topic_id = ("", topic) if isinstance(topic, bytes) else (topic, NAMELESS)
                response.responses.append(FetchResponse.FetchableTopicResponse(name, topic_id, []))
            response.responses[-1].partitions.append(answer)
        return response

    def respond_throttled(self) -> FetchResponse:
        if not self._session.follows(self._request.session_epoch):
            return self._overtaken()
        return FetchResponse(session_id=self._session.id)

    def _overtaken(self) -> FetchResponse:
        """Answer a fetch that waited while its session served another fetch with the same epoch."""
        return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=self._session.id)


def is_news(session: FetchSession, interest: Interest, answer: Answer, *, is_sent: bool = True) -> bool:
    """Return True if the client does not know the answer yet; with `is_sent`, remember it as known."""
    check = session.note_sent if is_sent else session.is_news
    return check(
        interest.key,
        answer.high_watermark,
        answer.log_start_offset,
        len(answer.records or b"") > 0,
        answer.error_code != 0 or answer.preferred_read_replica >= 0,
        answer.diverging_epoch.epoch >= 0,
    )


def interests_of(request: FetchRequest, by_id: bool) -> Iterable[Interest]:
    for topic in request.topics:
        for wanted in topic.partitions:
            yield Interest(topic.topic_id if by_id else topic.topic, wanted)


def forgotten(request: FetchRequest, by_id: bool) -> Iterable[Key]:
    for topic in request.forgotten_topics_data:
        for partition in topic.partitions:
            yield (topic.topic_id if by_id else topic.topic), partition


def new_context(
    cache: FetchSessionCache,
    version: int,
    request: FetchRequest,
    now_ms: int,
    *,
    maker: Maker,
    privileged: bool = False,
    again: bool = False,
) -> FetchContext | ErrorCode:
    """Return the context of a fetch, or the error if its session cannot continue.

    (Kafka: FetchManager.newContext.)

    `again`: the fetch was answered before, but the response could not be sent.
    """
    by_id = version >= FIRST_TOPIC_ID_VERSION
    if version < FIRST_SESSION_VERSION:
        return FetchContext(request, by_id)
    if request.session_epoch in (FULL_EPOCH, FINAL_EPOCH):
        cache.remove(request.session_id)
        if request.session_epoch == FINAL_EPOCH:
            return FetchContext(request, by_id)
        if again:
            cache.remove_made_by(maker)
        return FullFetchContext(request, by_id, cache, privileged=privileged, maker=maker)
    session = cache.get(request.session_id)
    if session is None:
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    is_again = again and session.follows(request.session_epoch)
    if request.session_epoch != session.epoch and not is_again:
        return ErrorCode.INVALID_FETCH_SESSION_EPOCH
    if session.by_id != by_id:
        return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    for interest in interests_of(request, by_id):
        session.put(interest.key, interest.wanted)
    for key in forgotten(request, by_id):
        session.forget(key)
    cache.resized(session)
    if not 0 < len(session) <= cache.partitions_max:
        cache.remove(session.id)
        return FetchContext(request, by_id)
    if is_again:
        session.forget_sent()
    else:
        session.use(now_ms)
    return IncrementalFetchContext(request, session)
