"""OffsetCommit, OffsetFetch and OffsetDelete. (Kafka: OffsetMetadataManager, and KafkaApis for the topics.)

An OffsetCommit is answered when its records are durable. Keys of records have topic names. Requests of
version 10 or later have topic ids, which this module translates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.integers import LONG_MAX
from mpbroker.coordinator.groups.classic.group import Group, GroupState
from mpbroker.coordinator.groups.classic.rebalances import Rebalances
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.consumer.offset_checks import check_commit, check_fetch
from mpbroker.coordinator.groups.group_manager import AnyGroup, GroupMetadataManager
from mpbroker.coordinator.groups.offsets import NO_OFFSET, Offsets
from mpbroker.coordinator.groups.records import NO_EPOCH, NO_TIME, Entry, OffsetKey, OffsetValue
from mpbroker.coordinator.runtime.host import Host
from mpbroker.coordinator.runtime.requests import Answers, RequestContext, Then, Waiter, response_error
from mpbroker.coordinator.runtime.timers import Clock
from mpbroker.coordinator.runtime.write_queue import WriteQueue
from mpbroker.protocol import messages
from mpbroker.protocol.consumer_protocol import CONSUMER_PROTOCOL, NO_MEMBER
from mpbroker.protocol.errors import ApiError, ErrorCode

FIRST_COMMIT_VERSION_WITH_GROUP_ERROR: Final = 9

FetchedGroup: TypeAlias = messages.OffsetFetchResponse.OffsetFetchResponseGroup
FetchedTopic: TypeAlias = messages.OffsetFetchResponse.OffsetFetchResponseTopics
FetchedPartition: TypeAlias = messages.OffsetFetchResponse.OffsetFetchResponsePartitions
CommittedPartition: TypeAlias = messages.OffsetCommitResponse.OffsetCommitResponsePartition


@dataclass(eq=False)
class OffsetMetadataManager:
    _config: BrokerConfig
    _clock: Clock
    _queue: WriteQueue[Entry]
    offsets: Offsets
    _host: Host
    _manager: GroupMetadataManager
    _rebalances: Rebalances
    _answers: Answers

    def _write(
        self,
        group_id: str,
        offsets: list[tuple[OffsetKey, OffsetValue | None]],
        then: Then,
        waiter: Waiter | None = None,
    ) -> None:
        """Append offsets and apply them when they are durable. A value of None is a tombstone."""
        keys = [key for key, _ in offsets]

        def written(error: ErrorCode) -> None:
            self.offsets.end(keys)
            if not error:
                for key, value in offsets:
                    self.offsets.apply(key, value)
            then(error)

        self._queue.append(group_id, list(offsets), written, waiter)
        self.offsets.begin(keys)

    def expire(self, group_id: str, keys: list[OffsetKey]) -> None:
        """Delete offsets of a group. `keys`: the keys of these offsets."""
        self._write(group_id, [(key, None) for key in keys], lambda _error: None)

    # --- commit

    def commit(
        self, context: RequestContext, request: messages.OffsetCommitRequest
    ) -> messages.OffsetCommitResponse | None:
        """Commit offsets. The response has an error per partition. Raises ApiError if the request fails."""
        self._manager.partitions.check_loaded(request.group_id)
        group = self._group_for(request, context.version)
        self._manager.add(group)
        response = messages.OffsetCommitResponse()
        entries: list[tuple[OffsetKey, OffsetValue | None]] = []
        accepted: list[CommittedPartition] = []
        now_ms = self._clock.wall_ms()
        retention_ms = request.retention_time_ms
        expire_ms = NO_TIME if retention_ms < 0 else min(now_ms + retention_ms, LONG_MAX)
        for topic in request.topics:
            name, topic_id, unknown = self._resolve(topic.name, topic.topic_id)
            results = []
            for asked in topic.partitions:
                result = CommittedPartition(asked.partition_index)
                results.append(result)
                metadata = asked.committed_metadata or ""
                result.error_code = unknown or self.problem_with(name, asked.partition_index, metadata)
                if not result.error_code:
                    key = OffsetKey(group.group_id, name, asked.partition_index)
                    epoch = asked.committed_leader_epoch
                    value = OffsetValue(asked.committed_offset, epoch, metadata, now_ms, expire_ms, topic_id)
                    entries.append((key, value))
                    accepted.append(result)
            response.topics.append(
                messages.OffsetCommitResponse.OffsetCommitResponseTopic(topic.name, topic.topic_id, results)
            )
        if not entries:
            return response

        def written(error: ErrorCode) -> None:
            for result in accepted:
                result.error_code = response_error(error)
            self._answers.answer(context.waiter, response)

        self._write(group.group_id, entries, written, context.waiter)
        return None

    def _group_for(self, request: messages.OffsetCommitRequest, version: int) -> AnyGroup:
        """Return the group; make a missing group if the client names no generation. Raises ApiError."""
        group = self._manager.find(request.group_id)
        if isinstance(group, ConsumerGroup):
            member_id, epoch = request.member_id, request.generation_id_or_member_epoch
            check_commit(group, member_id, epoch, self.partitions_of(request), version)
            return group
        if group is not None:
            self._check_commit(group, request)
            return group
        if request.generation_id_or_member_epoch < 0:
            return self._manager.new_group(request.group_id)
        knows_it = version >= FIRST_COMMIT_VERSION_WITH_GROUP_ERROR
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND if knows_it else ErrorCode.ILLEGAL_GENERATION)

    def partitions_of(
        self, request: messages.OffsetCommitRequest | messages.TxnOffsetCommitRequest
    ) -> Iterator[tuple[bytes, int]]:
        """Yield topic id and number of each partition that the request names, of topics that exist."""
        for topic in request.topics:
            topic_id = getattr(topic, "topic_id", messages.ZERO_UUID)
            _, topic_id, unknown = self._resolve(topic.name, topic_id)
            if not unknown:
                for asked in topic.partitions:
                    yield topic_id, asked.partition_index

    def _check_commit(self, group: Group, request: messages.OffsetCommitRequest) -> None:
        """Raise ApiError if the client may not commit now; otherwise extend the member's session."""
        generation, member_id = request.generation_id_or_member_epoch, request.member_id
        if group.state is GroupState.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if generation < 0 and group.state is GroupState.EMPTY:
            return
        if generation < 0 and member_id == NO_MEMBER and request.group_instance_id is None:
            # A client that is not a member, of a group with members.
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = group.check_member(member_id, request.group_instance_id)
        if generation != group.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        if group.state is GroupState.COMPLETING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._rebalances.keep_alive(group, member)

    def problem_with(self, name: str, partition: int, metadata: str) -> ErrorCode:
        """Return the error of a commit for that partition, NONE if the commit is valid."""
        if not 0 <= partition < self._host.partitions_of(name):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if _java_length(metadata) > self._config.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def _resolve(self, name: str, topic_id: bytes) -> tuple[str, bytes, ErrorCode]:
        """Return (name, id, error) of a topic, named by its id or, if the id is ZERO_UUID, by its name."""
        if topic_id != messages.ZERO_UUID:
            found = self._host.name_of(topic_id)
            return found or "", topic_id, ErrorCode.UNKNOWN_TOPIC_ID if found is None else ErrorCode.NONE
        known = self._host.id_of(name)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known is None else ErrorCode.NONE
        return name, known or messages.ZERO_UUID, unknown

    # --- fetch

    def fetch(
        self, context: RequestContext, request: messages.OffsetFetchRequest
    ) -> messages.OffsetFetchResponse | None:
        """Fetch the offsets of the request's groups. The response has an error code for each group.

        With `require_stable` the answer waits until the commits under way have ended, and it has an error in
        place of each offset that an open transaction may replace.
        """
        by_id = any(t.topic_id != messages.ZERO_UUID for g in request.groups for t in g.topics or ())
        missing = 0

        def fetch_all() -> messages.OffsetFetchResponse:
            found = [self._fetch_group(g, by_id, request.require_stable) for g in request.groups]
            return messages.OffsetFetchResponse(groups=found)

        def settled(_error: ErrorCode) -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                self._answers.answer(context.waiter, fetch_all())

        unsettled = [g.group_id for g in request.groups if self.offsets.is_under_way(g.group_id)]
        if not request.require_stable or not unsettled:
            return fetch_all()
        missing = len(unsettled)
        for group_id in unsettled:
            self._queue.append(group_id, [], settled, context.waiter)
        return None

    def _fetch_group(
        self, asked: messages.OffsetFetchRequest.OffsetFetchRequestGroup, by_id: bool, require_stable: bool
    ) -> FetchedGroup:
        found = FetchedGroup(asked.group_id)
        try:
            self._manager.partitions.check_loaded(asked.group_id)
            if (group := self._manager.find_consumer(asked.group_id)) is not None:
                check_fetch(group, asked.member_id, asked.member_epoch)
        except ApiError as error:
            found.error_code = error.code
            return found
        offsets = self.offsets.of(asked.group_id)
        if asked.topics is None:
            found.topics = self._all_topics(asked.group_id, offsets, require_stable)
            return found
        for topic in asked.topics:
            name, unknown = topic.name, ErrorCode.NONE
            if by_id:
                name, _, unknown = self._resolve(topic.name, topic.topic_id)
            partitions = []
            for index in topic.partition_indexes:
                problem = unknown or self._instability(asked.group_id, name, index, require_stable)
                value = offsets.get((name, index))
                if value is not None and not _is_of(value, topic.topic_id):
                    value = None
                partitions.append(_fetched(index, value, problem))
            found.topics.append(FetchedTopic(topic.name, topic.topic_id, partitions))
        return found

    def _instability(self, group_id: str, topic: str, partition: int, require_stable: bool) -> ErrorCode:
        if require_stable and self.offsets.is_pending(OffsetKey(group_id, topic, partition)):
            return ErrorCode.UNSTABLE_OFFSET_COMMIT
        return ErrorCode.NONE

    def _all_topics(
        self, group_id: str, offsets: dict[tuple[str, int], OffsetValue], require_stable: bool
    ) -> list[FetchedTopic]:
        topics: dict[str, FetchedTopic] = {}
        for (name, index), value in offsets.items():
            if name not in topics:
                topics[name] = FetchedTopic(name, self._host.id_of(name) or messages.ZERO_UUID)
            error = self._instability(group_id, name, index, require_stable)
            topics[name].partitions.append(_fetched(index, value, error))
        return list(topics.values())

    # --- delete

    def delete(
        self, context: RequestContext, request: messages.OffsetDeleteRequest
    ) -> messages.OffsetDeleteResponse | None:
        """Delete offsets, except those of subscribed topics. Raises ApiError if the whole request fails."""
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        group = self._manager.existing(request.group_id)
        is_consumers = isinstance(group, ConsumerGroup) or group.protocol_type == CONSUMER_PROTOCOL
        if not group.is_empty and not is_consumers:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)
        response = messages.OffsetDeleteResponse()
        known = set(self.offsets.keys_of(group.group_id))
        doomed: list[OffsetKey] = []
        for topic in request.topics:
            results = []
            for asked in topic.partitions:
                result = messages.OffsetDeleteResponse.OffsetDeleteResponsePartition(asked.partition_index)
                results.append(result)
                key = OffsetKey(group.group_id, topic.name, asked.partition_index)
                if not 0 <= asked.partition_index < self._host.partitions_of(topic.name):
                    result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif group.is_subscribed_to(topic.name):
                    result.error_code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                elif key in known:
                    doomed.append(key)
            response.topics.append(
                messages.OffsetDeleteResponse.OffsetDeleteResponseTopic(topic.name, results)
            )
        if not doomed:
            return response

        def written(error: ErrorCode) -> None:
            response.error_code = response_error(error)
            if error:
                response.topics.clear()
            self._answers.answer(context.waiter, response)

        self._write(group.group_id, [(key, None) for key in doomed], written, context.waiter)
        return None


def _is_of(value: OffsetValue, topic_id: bytes) -> bool:
    """Return whether the offset belongs to this topic, not to a deleted topic with the same name."""
    return messages.ZERO_UUID in (value.topic_id, topic_id) or value.topic_id == topic_id


def _fetched(index: int, value: OffsetValue | None, error: ErrorCode) -> FetchedPartition:
    if value is None or error:
        return FetchedPartition(index, NO_OFFSET, NO_EPOCH, "", error)
    return FetchedPartition(index, value.offset, value.leader_epoch, value.metadata, error)


def _java_length(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
