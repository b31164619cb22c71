"""Fetch (key 1), versions 4-18: answers with slices of segment files.

This is the slow path, for fetches that the native turn could not answer at once (see
mpbroker/handlers/hot_path/fetch.pxd). Only here do fetches wait: up to `max_wait_ms` for `min_bytes`.

Topics are named up to v12, and have ids from v13. From v7 on a session has the partitions that a fetch asks
for, and determines which of them are in the response (mpbroker/handlers/fetch/fetch_sessions.py). Nobody
follows by Fetch: a client that fetches as a follower needs ClusterAction, and gets NOT_LEADER_OR_FOLLOWER.
The last batch of a slice may be cut off; clients ignore a part of a batch. (Kafka:
KafkaApis.handleFetchRequest, ReplicaManager.fetchMessages, DelayedFetch.)

From v11 on a consumer may name its rack (KIP-392). The leader names a replica there that has what it asks for
(mpbroker/handlers/fetch/preferred_replicas.py). A replica answers what it has, and OFFSET_NOT_AVAILABLE
otherwise: consumers go back to the leader then.

Offsets below the first local segment of a tiered partition are read from windows that the tier brings from
the object store. Only a fetch that has nothing else to answer with waits for them, for up to
`remote.fetch.max.wait.ms`. (Kafka: DelayedRemoteFetch; KIP-405, KIP-1018.)

A fetch of very many partitions is worked on in pieces, between other requests.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator
from contextlib import suppress
from typing import NamedTuple

from mpbroker.handlers.api_parts.topic_meters import partition_fetched
from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import check_leader_epoch
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.fetch.fetch_sessions import (
    Answer,
    FetchContext,
    IncrementalFetchContext,
    Interest,
    Maker,
    Wanted,
    new_context,
)
from mpbroker.handlers.fetch.partition_readers import bound_of
from mpbroker.handlers.fetch.remote_windows import Place, RemoteUnavailable
from mpbroker.handlers.requests.limits import LOOKUPS_PER_PIECE
from mpbroker.handlers.requests.metadata import Topic
from mpbroker.handlers.requests.parked_memory import PARTITION_BYTES, REQUEST_BYTES
from mpbroker.handlers.requests.permissions import CLUSTER_ACTION, READ_TOPIC, Need
from mpbroker.handlers.requests.purgatory import NEVER_MS
from mpbroker.handlers.requests.responses import FileSlice
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.metadata import PartitionImage
from mpbroker.ipc.slots import SlotFlag
from mpbroker.ipc.table import Partition, PartitionFlag, read_partition
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.headers import encode_response_frame_in_pieces
from mpbroker.protocol.messages import FetchRequest, FetchResponse
from mpbroker.protocol.numbers import READ_COMMITTED
from mpbroker.records.errors import CorruptBatch
from mpbroker.security.acls import CLUSTER_NAME
from mpbroker.storage.leader_epochs import NO_EPOCH, NO_OFFSET, EpochEnd, end_of
from mpbroker.storage.reader import (
    Bound,
    NotResident,
    OffsetOutOfRange,
    RangeDamaged,
    SegmentGone,
    Slice,
)
from mpbroker.storage.remote_segments import RemoteSegment
from mpbroker.storage.transaction_index import AbortedTransaction
from shm.table import SlotBusy

log = logging.getLogger("mpbroker.handlers")

FIRST_FLEXIBLE_VERSION = 12
FIRST_VERSION_WITH_RACK = 11
# KIP-951: a client that asks the wrong broker, or too early, gets the leader in the response.
FIRST_VERSION_WITH_LEADER = 16
WITH_LEADER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
# Partitions with these errors at the first poll do not keep a fetch from waiting for the others.
NO_REASON = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)
# A segment that vanished was replaced: the table has its new state by now, or on the next try.
TRIES = 3
READ_ERRORS = (
    *(SegmentGone, OffsetOutOfRange, RangeDamaged, RemoteUnavailable, CorruptBatch),
    *(OSError, ValueError),
)
# Segments in one answer. Its processor has all of them open while it sends. Clients ask first for partitions
# that were left out.
FILES_MAX = 256
# If a request names at most this many partitions, each is read as often as it is named: that costs little.
# Otherwise each is read once.
AS_NAMED_MAX = 256
# After this long the handler waits for the disk itself: its pages are evicted before they are sent.
COLD_PATIENCE_MS = 15_000


class Read(NamedTuple):
    """A partition's answer. `more`: respond without waiting, since the answer has a `diverging_epoch`."""

    answer: Answer
    length: int = 0
    more: bool = False


class _Ask(NamedTuple):
    """A read of at most `most` bytes from `offset` on; if `first`, of at least one batch."""

    offset: int
    most: int
    first: bool


def refused(index: int, code: ErrorCode) -> Answer:
    return Answer(
        partition_index=index, error_code=code, high_watermark=-1, aborted_transactions=None, records=b""
    )


def all_refused(request: FetchRequest, code: ErrorCode) -> FetchResponse:
    return FetchResponse(
        error_code=code,
        responses=[
            FetchResponse.FetchableTopicResponse(
                t.topic, t.topic_id, [refused(p.partition, code) for p in t.partitions]
            )
            for t in request.topics
        ],
    )


def replica_of(request: FetchRequest) -> int:
    """Return the broker id of the follower that sent the request, -1 for a consumer."""
    return max(request.replica_id, request.replica_state.replica_id)


def failed(context: RequestContext, code: ErrorCode) -> FetchResponse:
    return all_refused(context.body, code)


class Fetch:
    """A fetch from its first poll to its response, parked in between if there is too little to send."""

    def __init__(self, context: RequestContext, fetch_context: FetchContext) -> None:
        self.context = context
        self.fetch_context = fetch_context
        # Interests whose topics do not exist at the start. They are no reason to respond early.
        self.unknown: frozenset[int] | None = None
        # Names of what the client may not use, whose refusals are logged.
        self.refused: set[str] = set()
        self.request: FetchRequest = context.body
        self.is_follower = replica_of(self.request) >= 0
        # Whether this broker answers as a replica. Like Kafka's followers, it serves clients that know racks.
        self.is_replica = context.broker.readers.is_replica and context.version >= FIRST_VERSION_WITH_RACK
        self.limit = min(self.request.max_bytes, context.broker.config.fetch_max_bytes)
        if context.broker.throttling.on:
            # A larger response would exceed the quota, and do so again the next time.
            quota = context.broker.throttling.fetch_bytes_max(context)
            self.limit = self.limit if quota is None else min(self.limit, quota)
        self.min_bytes = min(self.request.min_bytes, self.limit)
        self.deadline_ms = context.broker.monotonic_ms() + max(0, self.request.max_wait_ms)
        self.slots: list[int] = []
        self.overdue = self.request.max_wait_ms <= 0
        # Bytes and files asked of the disk by the last poll, and since when the fetch waits for it.
        self.cold_bytes = self.cold_files = 0
        self.cold_since_ms: int | None = None
        # Whether the last poll has asked the tier for a window, and how long the fetch may wait for that.
        self.is_remote = False
        self.remote_deadline_ms = (
            context.broker.monotonic_ms() + context.broker.config.remote_fetch_max_wait_ms
        )
        # A long fetch is polled in pieces; if another poll is wanted meanwhile, it follows.
        self.is_long = len(fetch_context.interests) >= LOOKUPS_PER_PIECE
        self._is_polling = self._poll_is_wanted = False

    # ---- what the purgatory calls

    def try_complete(self) -> bool:
        context = self.context
        if context.has_response:
            return True
        if self._is_polling:
            self._poll_is_wanted = True
        elif self.is_long:
            # The poll begins after this call.
            self._is_polling = context.takes_long = True
            context.pieces = self.poll_and_respond()
            context.broker.long_work.append(context)
        else:
            context.resume(context.finish, self.poll_and_respond())
        return context.has_response

    def expire(self) -> None:
        self.overdue = True
        if not self.try_complete():
            # Only the disk keeps it waiting, or the object store.
            until_ms = self.remote_deadline_ms if self.is_remote and not self.cold_files else NEVER_MS
            self.context.broker.fetches.park(self, self.slots, until_ms)

    # ----

    def find_slots(self) -> Generator[None]:
        """Find the partition table's slots of the requested partitions that exist."""
        for done, interest in enumerate(self.fetch_context.interests, start=1):
            if self.context.should_yield(done, LOOKUPS_PER_PIECE):
                yield
            topic = self._topic(interest)
            if isinstance(topic, Topic) and interest.wanted.partition in topic.partitions:
                self.slots.append(topic.partitions[interest.wanted.partition].slot)

    def forget_files(self) -> None:
        """Forget the partitions' open files: the processor has found that a path now has another file."""
        broker = self.context.broker
        for slot in self.slots:
            broker.fetch_positions.forget(slot)
            with suppress(SlotBusy):  # if so, the processor will find the same once more
                now = read_partition(broker.table, slot)
                broker.readers.forget(now)
                broker.remote.forget(now)

    def wait_for_bytes(self) -> None:
        """Have later appends wake the handler. The caller must poll next, to find earlier appends."""
        self._is_polling = self.is_long  # the caller polls next, even if `charge_wait` expires the fetch
        self.context.broker.fetches.park(self, self.slots, self.deadline_ms)

    def charge_wait(self) -> None:
        """Charge the memory of this waiting fetch. If there is no room, answer with the available bytes."""
        context, broker = self.context, self.context.broker
        size = REQUEST_BYTES + context.body_bytes + PARTITION_BYTES * len(self.fetch_context.interests)
        if not broker.parked_memory.has_room(context, size):
            broker.fetches.expire_now(context.slot.connection)
            return
        broker.parked_memory.charge(context, size)
        broker.counters.add(Counter.COUNT_FETCHES_PARKED)
        broker.responses.parked(context.slot)

    def _topic(self, interest: Interest) -> Topic | ErrorCode:
        metadata, names = self.context.broker.metadata, self.fetch_context.names
        if self.is_follower and not self._may_follow():
            return READ_TOPIC.denied
        if isinstance(interest.topic, str):
            topic = metadata.by_name.get(interest.topic)
            if topic is None and not self._may_read(interest.topic):
                return READ_TOPIC.denied
            return self._readable(topic) if topic is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topic = metadata.by_id.get(interest.topic)
        if topic is not None:
            names[interest.topic] = topic.name
            return self._readable(topic)
        if interest.topic not in names:
            return ErrorCode.UNKNOWN_TOPIC_ID
        # The topic existed when the session began; another one may have its name by now.
        if names[interest.topic] in metadata.by_name:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _readable(self, topic: Topic) -> Topic | ErrorCode:
        if not self._may_read(topic.name):
            return READ_TOPIC.denied
        if not self.is_follower:
            self.context.broker.authorization.grant(self.context, READ_TOPIC, topic)
        return topic

    def _may_read(self, name: str) -> bool:
        """Return True if the client may read the topic. True for followers, which `_may_follow` checks."""
        return self.is_follower or self._allows(READ_TOPIC, name)

    def _may_follow(self) -> bool:
        return self._allows(CLUSTER_ACTION, CLUSTER_NAME)

    def _allows(self, need: Need, name: str) -> bool:
        """Return True if the client has a permission. The fetch logs each refused name once."""
        is_logged = name not in self.refused
        may = self.context.broker.authorization.allows(self.context, need, name, is_logged=is_logged)
        if not may:
            self.refused.add(name)
        return may

    def poll_and_respond(self) -> Generator[None]:
        """Poll, and respond if there are answers.

        If another poll is requested meanwhile, begin it after other requests have been served.
        """
        self._is_polling, self._poll_is_wanted = True, False
        answers = yield from self.poll()
        if answers is not None:
            yield from self.respond(answers)
        elif self._poll_is_wanted:
            self.context.pieces = self.poll_and_respond()
        else:
            self._is_polling = False

    def poll(self) -> Generator[None, None, list[Answer] | None]:
        """Read the available bytes. Return the answers, or None if the fetch is to wait.

        A fetch waits for `min_bytes`, an error, or its deadline. Bytes that are not in the page cache
        are left out; if there are no other bytes, the fetch waits for the disk.
        """
        total, files, settled, answers = 0, 0, False, []
        unknown = yield from self._unknown()
        self.cold_bytes = self.cold_files = 0
        self.is_remote = False
        for i, interest in enumerate(self.fetch_context.interests):
            if i and self.context.should_yield(i, LOOKUPS_PER_PIECE):
                yield
            about = interest.wanted, self.limit - total if files < FILES_MAX else 0, total == 0
            topic = self._topic(interest)
            try:
                read = self._read(topic, *about)
            except READ_ERRORS as error:
                read = self._read_again(error, topic, *about)
            total += read.length
            files += read.length > 0
            settled = settled or read.more or (read.answer.error_code != 0 and i not in unknown)
            answers.append(read.answer)
        if total == 0 and (self.cold_files or (not settled and self._waits_for_remote())):
            return None
        settled = settled or self.overdue or len(unknown) == len(answers)
        return answers if settled or total >= self.min_bytes else None

    def _waits_for_remote(self) -> bool:
        return self.is_remote and self.context.broker.monotonic_ms() < self.remote_deadline_ms

    def _has_lost_patience(self) -> bool:
        since_ms = self.cold_since_ms
        return since_ms is not None and self.context.broker.monotonic_ms() - since_ms > COLD_PATIENCE_MS

    def _prefetch(self, cold: NotResident) -> None:
        """Begin to read bytes from the disk, unless this poll has begun enough reads for a full response.

        If it has, a later fetch reads these bytes. Raises OSError if an earlier read failed.
        """
        broker = self.context.broker
        if self.cold_files and (self.cold_bytes >= self.limit or self.cold_files >= FILES_MAX):
            return
        broker.prefetch.read(cold.fd, cold.position, cold.length, self._bytes_were_read)
        self.cold_bytes += cold.length
        self.cold_files += 1
        if self.cold_since_ms is None:
            self.cold_since_ms = broker.monotonic_ms()
        broker.counters.add(Counter.COUNT_FETCHES_COLD)

    def _bytes_were_read(self) -> None:
        self.context.broker.fetches.check(self.slots)

    def _unknown(self) -> Generator[None, None, frozenset[int]]:
        """Return the indices of the requested partitions that were unknown or refused at the first poll."""
        if self.unknown is None:
            found = []
            for i, interest in enumerate(self.fetch_context.interests):
                if i and self.context.should_yield(i, LOOKUPS_PER_PIECE):
                    yield
                topic = self._topic(interest)
                is_known = isinstance(topic, Topic) and interest.wanted.partition in topic.partitions
                if topic in NO_REASON or (isinstance(topic, Topic) and not is_known):
                    found.append(i)
            self.unknown = frozenset(found)
        return self.unknown

    def respond(self, answers: list[Answer]) -> Generator[None]:
        """Send the answers. A client over its quota gets an empty response, and no bytes are charged."""
        context = self.context
        # A mark that comes while the response is built must not poll once more.
        context.broker.fetches.release(context.slot)
        throttled = False
        if context.broker.throttling.on:
            size = yield from self._size_of(answers)
            throttled = context.broker.admission.charge(context, size).ms > 0
        if throttled:
            response = self.fetch_context.respond_throttled()
        else:
            response = yield from self.fetch_context.respond_in_pieces(answers)
        if any(
            each.current_leader.leader_id >= 0 for topic in response.responses for each in topic.partitions
        ):
            address = context.broker.advertised(context)
            node = context.broker.metadata.node_id
            response.node_endpoints = [FetchResponse.NodeEndpoint(node, address.host, address.port)]
        yield from self._count(answers, sent=not throttled)
        context.respond(response, in_pieces=self.is_long)

    def _count(self, answers: list[Answer], *, sent: bool) -> Generator[None]:
        meters = self.context.broker.meters
        for i, (interest, answer) in enumerate(zip(self.fetch_context.interests, answers, strict=True)):
            if i and self.context.should_yield(i, LOOKUPS_PER_PIECE):
                yield
            topic = self._topic(interest)
            if isinstance(topic, Topic):
                size = len(answer.records or b"") if sent else 0
                partition_fetched(meters, topic, answer.partition_index, answer.error_code, size)

    def _size_of(self, answers: list[Answer]) -> Generator[None, None, int]:
        """Return the response's size in bytes as Kafka counts it: the body and the size field of 4 bytes."""
        slot, response = self.context.slot, self.fetch_context.preview(answers)
        frame = yield from encode_response_frame_in_pieces(
            slot.api_key, slot.api_version, slot.correlation, response
        )
        header_bytes = 4 if slot.api_version < FIRST_FLEXIBLE_VERSION else 5
        return sum(len(segment) for segment in frame) - header_bytes

    def _read_again(
        self, error: Exception, topic: Topic | ErrorCode, wanted: Wanted, budget: int, first: bool
    ) -> Read:
        """Read again if files were replaced meanwhile. If no read succeeds, return an error answer."""
        for _ in range(TRIES - 1):
            # A file that is missing: the partition may just have moved to another log directory.
            if not isinstance(error, (SegmentGone, FileNotFoundError)):
                break
            try:
                return self._read(topic, wanted, budget, first)
            except READ_ERRORS as again:
                error = again
        assert isinstance(topic, Topic)
        match error:
            case SegmentGone():
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            case FileNotFoundError() if self.context.broker.readers.is_replica:
                # Two cuts were applied since the handler learned of these links.
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            case OffsetOutOfRange():
                code = ErrorCode.OFFSET_OUT_OF_RANGE
            case RangeDamaged():
                # The scrubber has found the damage.
                code = ErrorCode.CORRUPT_MESSAGE
            case RemoteUnavailable():
                code = ErrorCode.KAFKA_STORAGE_ERROR
            case CorruptBatch():
                log.error("%s-%d: %s", topic.name, wanted.partition, error)
                code = ErrorCode.CORRUPT_MESSAGE
            case _:
                # ValueError: the leader epochs or the transaction index are corrupt.
                log.error("%s-%d cannot be read: %s", topic.name, wanted.partition, error)
                code = ErrorCode.KAFKA_STORAGE_ERROR
        return Read(refused(wanted.partition, code))

    def _read(
        self, topic: Topic | ErrorCode, wanted: Wanted, budget: int, first: bool, start: int = 0
    ) -> Read:
        """Read up to `budget` bytes; if `first`, at least one batch. Raises one of `READ_ERRORS`.

        There are no records between the offset that is wanted and `start`.
        """
        broker, index = self.context.broker, wanted.partition
        found = topic if isinstance(topic, ErrorCode) else broker.partition(topic, index)
        if isinstance(found, ErrorCode):
            return Read(refused(index, found))
        assert isinstance(topic, Topic)
        image, now = found
        if (refusal := self._refused(wanted, now)) is not None:
            return refusal
        parted = self._parted(topic, wanted, now)
        if parted is not None:
            return Read(self._answer_of(index, now, parted), more=True)
        if not now.log_start_offset <= wanted.fetch_offset <= now.log_end_offset:
            raise OffsetOutOfRange(f"offset {wanted.fetch_offset} of {topic.name}-{index}")
        bound = bound_of(now, self.request.isolation_level)
        answer = self._answer_of(index, now)
        offset = max(wanted.fetch_offset, start)
        if offset >= bound.offset or (budget <= 0 and not first):
            return Read(answer)
        ask = _Ask(offset, max(min(wanted.partition_max_bytes, budget), 0), first)
        reader, piece = broker.reader(topic, now), None
        aborted: list[AbortedTransaction] = []
        try:
            piece = reader.fetch_slice(
                ask.offset, ask.most, bound, min_one_batch=first, wait=self._has_lost_patience()
            )
        except NotResident as cold:
            if (away := self._sent_away(answer, image, now, cold.fd)) is not None:
                return away
            self._prefetch(cold)
        except OffsetOutOfRange:
            # The offset is below the first local segment.
            if self.is_replica:
                return Read(refused(index, ErrorCode.OFFSET_NOT_AVAILABLE))
            segment = self._remote_segment(topic, image, now, ask.offset)
            if segment is None:
                raise
            next_offset = segment.end
            if segment.size:
                place = Place(topic.name, image, now.topic_id, now.partition, ask.offset)
                read = self._read_remote(answer, place, ask, now)
                if not isinstance(read, int):
                    return read
                next_offset = read
            # Compaction has left no record from the offset on: the next segment has the next one.
            return self._read(topic, wanted, budget, first, next_offset)
        if piece is not None:
            if (away := self._sent_away(answer, image, now, piece.path)) is not None:
                return away
            if self.request.isolation_level == READ_COMMITTED:
                aborted = reader.aborted(ask.offset, piece, bound, now.aborted_end)
            # The turn can answer the next fetch.
            broker.fetch_positions.learn(
                image.slot,
                image.slot_generation,
                piece.segment_base,
                piece.inode,
                piece.path,
                now.log_dir,
            )
        return self._found(answer, image, bound, piece, aborted)

    def _refused(self, wanted: Wanted, now: Partition) -> Read | None:
        """Return the answer with an error if this broker may not read the log for the client, else None."""
        broker = self.context.broker
        if not (self.is_replica or broker.leading.leads()):
            return Read(refused(wanted.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        problem = self._refusal(wanted, now)
        if self.is_replica and self._is_behind(wanted, now, problem):
            problem = ErrorCode.OFFSET_NOT_AVAILABLE
        if problem is None:
            return None
        answer = refused(wanted.partition, problem)
        names_leader = self.context.version >= FIRST_VERSION_WITH_LEADER and not self.is_replica
        if names_leader and problem in WITH_LEADER:
            node = broker.metadata.node_id
            answer.current_leader = FetchResponse.LeaderIdAndEpoch(node, now.leader_epoch)
        return Read(answer)

    def _is_behind(self, wanted: Wanted, now: Partition, problem: ErrorCode | None) -> bool:
        """Return whether a replica has no record at the offset, or does not know the leader's epoch, yet."""
        bound = bound_of(now, self.request.isolation_level)
        is_beyond = problem is None and wanted.fetch_offset >= bound.offset
        return is_beyond or problem == ErrorCode.UNKNOWN_LEADER_EPOCH

    def _sent_away(
        self, answer: Answer, image: PartitionImage, now: Partition, file: int | bytes
    ) -> Read | None:
        """Return the answer that names a replica to read a segment from; None: read it here.

        `file` is the segment's descriptor or path. Of a tiered partition replicas lack the segments that are
        in the object store alone. Raises OSError.
        """
        preferred, rack = self.context.broker.preferred, self.request.rack_id
        if now.flags & PartitionFlag.PARTITION_TIERED or not preferred.has_replicas(rack):
            return None
        changed_ns = os.stat(file).st_mtime_ns  # noqa: PTH116 - a descriptor or a path
        replica = preferred.find(rack, self.context.slot.connection, image.slot, changed_ns)
        if replica is None:
            return None
        answer.preferred_read_replica = replica
        return Read(answer, more=True)

    def _remote_segment(
        self, topic: Topic, image: PartitionImage, now: Partition, offset: int
    ) -> RemoteSegment | None:
        """Return the segment in the object store with an offset that is in no local segment; None if none.

        If compaction has left no record in it, return the next one with records, or else the last one.
        """
        broker = self.context.broker
        again = broker.in_table(image)
        if again is None or offset < again.log_start_offset:
            return None
        segments = broker.remote.segments(image, broker.readers.directory(topic.name, now))
        found = segments.find(offset)
        if found is None or found.size:
            return found
        return next((one for one in segments if one.base > offset and one.size), segments[-1])

    def _read_remote(self, answer: Answer, place: Place, ask: _Ask, now: Partition) -> Read | int:
        """Put a slice of a window into an answer; none if the window has to be brought first.

        Return the window's end if it has no record at or after the offset.
        """
        remote = self.context.broker.remote
        window = remote.find(place, self._bytes_were_read)
        if window is None:
            self.is_remote = True
            return Read(answer)
        reader, offset, piece = window.reader, max(ask.offset, window.base), None
        aborted: list[AbortedTransaction] = []
        try:
            piece = reader.fetch_slice(
                offset, ask.most, window.bound, min_one_batch=ask.first, wait=self._has_lost_patience()
            )
            if piece is not None and self.request.isolation_level == READ_COMMITTED:
                # `aborted_end` of the partition does not cover markers in segments that are remote alone.
                aborted = reader.aborted(offset, piece, window.bound, window.end)
            elif piece is None and reader.locate(offset, window.bound) is None:
                return window.end
        except NotResident as cold:
            self._prefetch(cold)
        except (SegmentGone, FileNotFoundError):
            # It was removed from the cache.
            remote.forget(now)
            raise
        read = self._found(answer, place.image, window.bound, piece, aborted)
        return read._replace(more=piece is not None)

    def _refusal(self, wanted: Wanted, now: Partition) -> ErrorCode | None:
        if self.is_follower:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return check_leader_epoch(wanted.current_leader_epoch, now)

    def _parted(self, topic: Topic, wanted: Wanted, now: Partition) -> EpochEnd | None:
        """Return where the log diverges from the records that the client has read (KIP-595); None if nowhere.

        Raises OffsetOutOfRange if the log never had the client's epoch.
        """
        epoch = wanted.last_fetched_epoch
        if epoch < 0:
            return None
        if epoch == now.leader_epoch:
            end = EpochEnd(epoch, now.log_end_offset)
        else:
            epochs = self.context.broker.readers.get(topic.name, now).epochs()
            end = end_of(epochs, epoch, now.log_end_offset)
        if end.offset == NO_OFFSET or end.epoch == NO_EPOCH:
            raise OffsetOutOfRange(f"{topic.name}-{wanted.partition} had no epoch {epoch}")
        return end if end.epoch < epoch or end.offset < wanted.fetch_offset else None

    def _answer_of(self, index: int, now: Partition, parted: EpochEnd | None = None) -> Answer:
        """Return an answer without records for a partition."""
        answer = Answer(
            partition_index=index,
            high_watermark=now.high_watermark,
            last_stable_offset=now.last_stable_offset,
            log_start_offset=now.log_start_offset,
            aborted_transactions=[] if self.request.isolation_level == READ_COMMITTED else None,
            records=b"",
        )
        if parted is not None:
            answer.diverging_epoch = FetchResponse.EpochEndOffset(*parted)
        return answer

    def _found(
        self,
        answer: Answer,
        image: PartitionImage,
        bound: Bound,
        piece: Slice | None,
        aborted: list[AbortedTransaction],
    ) -> Read:
        if piece is None:
            return Read(answer)
        if aborted:
            answer.aborted_transactions = [
                FetchResponse.AbortedTransaction(each.producer_id, each.first_offset) for each in aborted
            ]
        answer.records = FileSlice(  # type: ignore[assignment]
            piece.length,
            slot=image.slot,
            generation=image.slot_generation,
            segment_base=piece.segment_base,
            file_generation=piece.inode,
            path=piece.path,
            position=piece.position,
        )
        return Read(answer, piece.length, piece.segment_base < bound.segment_base)


def each_once(
    context: RequestContext, topics: list[FetchRequest.FetchTopic]
) -> Generator[None, None, list[FetchRequest.FetchTopic]]:
    """Return the topics with only the last entry of each partition. (Kafka puts the entries into a map.)"""
    found: dict[tuple[str, bytes], dict[int, Wanted]] = {}
    for done, topic in enumerate(topics, start=1):
        partitions = found.setdefault((topic.topic, topic.topic_id), {})
        partitions.update((wanted.partition, wanted) for wanted in topic.partitions)
        if context.should_yield(done, LOOKUPS_PER_PIECE):
            yield
    return [FetchRequest.FetchTopic(*key, list(each.values())) for key, each in found.items()]


@api(ApiKey.FETCH, 4, 18, name="Fetch", failed=failed)
def handle(context: RequestContext) -> Generator[None, None, FetchResponse | None]:
    """Reads records from partitions, waiting for a minimum of bytes."""
    broker = context.broker
    named = sum(len(topic.partitions) for topic in context.body.topics)
    if named > AS_NAMED_MAX:
        context.body.topics = yield from each_once(context, context.body.topics)
    fetch_context = new_context(
        broker.fetch_sessions,
        context.version,
        context.body,
        broker.monotonic_ms(),
        maker=Maker(context.slot.connection, context.slot.correlation),
        privileged=replica_of(context.body) >= 0,
        again=bool(context.slot.flags & SlotFlag.AGAIN),
    )
    if isinstance(fetch_context, ErrorCode):
        return FetchResponse(error_code=fetch_context)
    if isinstance(fetch_context, IncrementalFetchContext):
        broker.counters.add(Counter.COUNT_FETCHES_INCREMENTAL)
    broker.counters.add(Counter.COUNT_FETCHES)
    fetch = Fetch(context, fetch_context)
    yield from fetch.find_slots()
    if context.slot.flags & SlotFlag.AGAIN:
        fetch.forget_files()
    if fetch.is_long:
        fetch.wait_for_bytes()
        fetch.charge_wait()
        yield from fetch.poll_and_respond()
        return None
    answers = yield from fetch.poll()
    if answers is None:
        fetch.wait_for_bytes()
        answers = yield from fetch.poll()
    if answers is None:
        fetch.charge_wait()
    else:
        yield from fetch.respond(answers)
    return None
