"""Offsets and times of tiered partitions, whose oldest records are in the object store alone.

What lies below the first local segment is searched in windows that the tier brings. The local segments are
searched first: segments that are deleted meanwhile are found by the search in the remote ones. (Kafka:
RemoteLogOffsetReader, RemoteLogManager.findOffsetByTimestamp.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.fetch.remote_windows import NotYet, Place, RemoteUnavailable, RemoteWindow
from mpbroker.handlers.requests.metadata import Topic
from mpbroker.ipc import calls
from mpbroker.ipc.table import Partition, PartitionFlag
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.records.validation import Pieces
from mpbroker.storage.reader import (
    NOTHING_FOUND,
    Bound,
    FoundOffset,
    PartitionReader,
    SegmentGone,
    offset_of_largest_time,
    offset_of_time,
)
from mpbroker.storage.remote_segments import RemoteSegment, RemoteSegments
from mpbroker.storage.segments import segments_of

TRIES: Final = 3


def earliest_local(context: RequestContext, topic: Topic, now: Partition) -> FoundOffset:
    """Return the first offset that a local segment may have."""
    is_all_local = not _segments(context, topic, now)
    return FoundOffset(-1, now.log_start_offset if is_all_local else _local_start(context, topic, now))


def latest_tiered(context: RequestContext, topic: Topic, now: Partition) -> FoundOffset:
    """Return the last offset that the object store has."""
    segments = _segments(context, topic, now)
    return FoundOffset(-1, segments.end - 1) if segments else NOTHING_FOUND


def earliest_pending_upload(context: RequestContext, topic: Topic, now: Partition) -> FoundOffset:
    """Return the first offset that the object store does not have."""
    segments = _segments(context, topic, now)
    if segments or (context.broker.remote.tier is not None and now.flags & PartitionFlag.PARTITION_TIERED):
        return FoundOffset(-1, max(segments.end, now.log_start_offset))
    return NOTHING_FOUND


def _local_start(context: RequestContext, topic: Topic, now: Partition) -> int:
    bases = segments_of(context.broker.readers.directory(topic.name, now))
    if not bases:
        raise FileNotFoundError(f"{topic.name}-{now.partition} has no segment")
    return max(bases[0], now.log_start_offset)


def _segments(context: RequestContext, topic: Topic, now: Partition) -> RemoteSegments:
    directory = context.broker.readers.directory(topic.name, now)
    return context.broker.remote.segments(topic.partitions[now.partition], directory)


def first_of_time(
    context: RequestContext, topic: Topic, now: Partition, timestamp_ms: int, local: FoundOffset
) -> Pieces[FoundOffset]:
    """Return the first record at or after a time, of which `local` was found in local segments."""
    search = _Search(context, topic, now)
    if not search.segments:
        return local
    end = _local_start(context, topic, now)
    if local.offset >= 0:
        end = min(end, local.offset)
    found = yield from search.first(timestamp_ms, now.log_start_offset, end)
    return found if found.offset >= 0 else local


def largest_time(
    context: RequestContext, topic: Topic, now: Partition, local: FoundOffset
) -> Pieces[FoundOffset]:
    """Return the first record with the largest timestamp, of which `local` was found in local segments."""
    search, start = _Search(context, topic, now), now.log_start_offset
    if not search.segments:
        return local
    best, end = local, _local_start(context, topic, now)
    remote = [segment for segment in search.segments if segment.end > start and segment.base < end]
    # The first one has the record if several have its time.
    for segment in sorted(remote, key=lambda one: (-one.largest_ms, one.base)):
        if (segment.largest_ms, -segment.base) <= (best.timestamp, -best.offset):
            continue
        found = yield from search.first(segment.largest_ms, max(start, segment.base), segment.end)
        if found.offset < 0 and segment.base < start:
            # Its latest record lies before the log start.
            found = yield from search.largest(start, segment.end)
        if found.offset >= 0 and (found.timestamp, -found.offset) > (best.timestamp, -best.offset):
            best = found
    return best


class _Search:
    """A search in the remote segments of a partition. All of it has one deadline."""

    def __init__(self, context: RequestContext, topic: Topic, now: Partition) -> None:
        self._context = context
        self._topic = topic
        self._now = now
        broker = context.broker
        self._deadline_ms = broker.monotonic_ms() + broker.config.remote_list_offsets_request_timeout_ms
        # Compaction may have left no record in a segment: it is not searched.
        self.segments = [one for one in _segments(context, topic, now) if one.size]

    def first(self, timestamp_ms: int, start: int, end: int) -> Pieces[FoundOffset]:
        """Find the first record at or after a time, from offset `start` on; look no further than `end`."""
        offset = start
        while (segment := self._next(offset, timestamp_ms)) is not None and segment.base < end:
            offset = max(offset, segment.base)
            window, found = yield from self._in_window(
                offset, timestamp_ms, lambda reader, bound: offset_of_time(reader, timestamp_ms, start, bound)
            )
            if found.offset >= 0:
                return found
            offset = window.end
            if offset >= end:
                break
        return NOTHING_FOUND

    def largest(self, start: int, end: int) -> Pieces[FoundOffset]:
        """Find the first record with the largest timestamp of the windows of [start, end)."""
        best, offset = NOTHING_FOUND, start
        while offset < end:
            window, found = yield from self._in_window(
                offset, -1, lambda reader, bound: offset_of_largest_time(reader, bound, start)
            )
            if found.timestamp > best.timestamp:
                best = found
            offset = window.end
        return best

    def _next(self, offset: int, timestamp_ms: int) -> RemoteSegment | None:
        return next(
            (one for one in self.segments if one.end > offset and one.largest_ms >= timestamp_ms), None
        )

    def _in_window(
        self,
        offset: int,
        timestamp_ms: int,
        search: Callable[[Callable[[], PartitionReader], Bound], Pieces[FoundOffset]],
    ) -> Pieces[tuple[RemoteWindow, FoundOffset]]:
        """Search a window; bring it again if it is removed from the cache meanwhile. Raises ApiError."""
        for _ in range(TRIES):
            try:
                window = yield from self._window(offset, timestamp_ms)
                found = yield from self._context.pausing(search(lambda: window.reader, window.bound))  # noqa: B023
            except (SegmentGone, FileNotFoundError):
                self._context.broker.remote.forget(self._now)
                continue
            return window, found
        raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _window(self, offset: int, timestamp_ms: int) -> Pieces[RemoteWindow]:
        now, broker = self._now, self._context.broker
        image = self._topic.partitions[now.partition]
        place = Place(self._topic.name, image, now.topic_id, now.partition, offset, timestamp_ms)

        def ask(then: Callable[[calls.Message], None]) -> None:
            broker.remote.call(place, then, self._deadline_ms)

        answer = yield from self._context.wait(ask)
        try:
            return broker.remote.open(place, answer)
        except NotYet:
            is_late = isinstance(answer, calls.Failed) and answer.error == ErrorCode.REQUEST_TIMED_OUT
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT if is_late else ErrorCode.NOT_LEADER_OR_FOLLOWER
            ) from None
        except RemoteUnavailable as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR) from error
