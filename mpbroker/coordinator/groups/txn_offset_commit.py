"""TxnOffsetCommit, and the markers that commit or abort its offsets.

The transaction coordinator checks that the transaction is open and has the group's partition. The records are
appended right after the check, so they precede the transaction's marker. (Kafka:
OffsetMetadataManager.commitTransactionalOffset and .replayEndTransactionMarker;
GroupCoordinatorService.completeTransaction; KIP-98, KIP-447, KIP-890.)
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeAlias

from mpbroker.coordinator.groups.classic.group import Group, GroupState
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.consumer.offset_checks import check_commit_in_transaction
from mpbroker.coordinator.groups.group_manager import AnyGroup, GroupMetadataManager
from mpbroker.coordinator.groups.offset_manager import OffsetMetadataManager
from mpbroker.coordinator.groups.offsets import Offsets, TransactionKey
from mpbroker.coordinator.groups.records import Entry, OffsetKey, OffsetValue
from mpbroker.coordinator.runtime.requests import Answers, RequestContext, Then, Waiter, response_error
from mpbroker.coordinator.runtime.timers import Clock
from mpbroker.coordinator.runtime.write_queue import Marker, Producer, WriteQueue
from mpbroker.protocol.consumer_protocol import NO_MEMBER
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse

# Clients from this version on send no AddOffsetsToTxn: the partition is added with the offsets.
FIRST_VERSION_THAT_ADDS: Final = 5

CommittedPartition: TypeAlias = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition
CommittedTopic: TypeAlias = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic

log = logging.getLogger("mpbroker.coordinator.groups")


class Transactions(Protocol):
    def check_offsets(
        self, transactional_id: str, producer: Producer, partition: int, adds: bool, then: Then
    ) -> None:
        """Call `then` with NONE as soon as offsets may be appended to `__consumer_offsets`, or with an error.

        `adds`: first add `partition` of `__consumer_offsets` to the transaction if it is missing.
        """


class _Commit:
    """A TxnOffsetCommit request with its response, which is sent when the offsets are durable."""

    def __init__(self, context: RequestContext, request: TxnOffsetCommitRequest) -> None:
        self.waiter: Waiter = context.waiter
        self.request = request
        self.adds = context.version >= FIRST_VERSION_THAT_ADDS
        self.producer = Producer(request.producer_id, request.producer_epoch)
        self.response = TxnOffsetCommitResponse()
        self.entries: list[tuple[OffsetKey, OffsetValue]] = []
        self._results: list[CommittedPartition] = []

    def check(self, offset_manager: OffsetMetadataManager, now_ms: int) -> None:
        """Check each partition of the request: collect valid offsets in `entries`, errors in `response`."""
        self.response.topics.clear()
        self.entries.clear()
        self._results.clear()
        for topic in self.request.topics:
            results = []
            for asked in topic.partitions:
                metadata = asked.committed_metadata or ""
                error = offset_manager.problem_with(topic.name, asked.partition_index, metadata)
                result = CommittedPartition(asked.partition_index, error)
                results.append(result)
                if not error:
                    key = OffsetKey(self.request.group_id, topic.name, asked.partition_index)
                    epoch = asked.committed_leader_epoch
                    self.entries.append((key, OffsetValue(asked.committed_offset, epoch, metadata, now_ms)))
                    self._results.append(result)
            self.response.topics.append(CommittedTopic(topic.name, results))

    def settle(self, error: ErrorCode) -> TxnOffsetCommitResponse:
        """Set the error code of all valid partitions. Return the response."""
        for result in self._results:
            result.error_code = error
        return self.response


@dataclass(eq=False)
class TxnOffsetCommit:
    _clock: Clock
    _queue: WriteQueue[Entry]
    _offsets: Offsets
    _offset_manager: OffsetMetadataManager
    _manager: GroupMetadataManager
    _transactions: Transactions
    _answers: Answers

    def commit(
        self, context: RequestContext, request: TxnOffsetCommitRequest
    ) -> TxnOffsetCommitResponse | None:
        """Commit offsets in a transaction. The response has an error per partition. Raises ApiError."""
        self._group_for(request)
        commit = _Commit(context, request)
        commit.check(self._offset_manager, self._clock.wall_ms())
        if not commit.entries:
            return commit.response
        partition = self._manager.partitions.partition_for(request.group_id)
        append = partial(self._append, commit)
        name = request.transactional_id
        self._transactions.check_offsets(name, commit.producer, partition, commit.adds, append)
        return None

    def _group_for(self, request: TxnOffsetCommitRequest) -> AnyGroup:
        """Return the request's group, a new one if it does not exist. Raises ApiError."""
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        self._manager.partitions.check_loaded(request.group_id)
        group = self._manager.find(request.group_id)
        if isinstance(group, ConsumerGroup):
            member_id, instance_id = request.member_id, request.group_instance_id
            partitions = self._offset_manager.partitions_of(request)
            check_commit_in_transaction(group, member_id, instance_id, request.generation_id, partitions)
            return group
        if group is not None:
            _check_member(group, request)
            return group
        if request.generation_id >= 0:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        return self._manager.new_group(request.group_id)

    def _append(self, commit: _Commit, error: ErrorCode) -> None:
        """Append the offsets, or answer with `error` if the transaction coordinator has refused them."""
        if error:
            self._answers.answer(commit.waiter, commit.settle(error))
            return
        try:
            group = self._check_again(commit)
            if not commit.entries:
                self._answers.answer(commit.waiter, commit.response)
                return
            self._manager.add(group)
            keys = [key for key, _ in commit.entries]
            written = partial(self._written, commit, keys)
            entries: list[Entry] = list(commit.entries)
            self._queue.append(group.group_id, entries, written, commit.waiter, commit.producer)
            self._offsets.begin(keys)
        except ApiError as refused:
            self._answers.answer(commit.waiter, commit.settle(refused.code))
        except Exception:
            log.exception("group %.255s: a commit in a transaction failed", commit.request.group_id)
            self._answers.fail(commit.waiter, ErrorCode.UNKNOWN_SERVER_ERROR)

    def _check_again(self, commit: _Commit) -> AnyGroup:
        """Check the request again, because the group may have changed. Return the group. Raises ApiError."""
        group = self._group_for(commit.request)
        commit.check(self._offset_manager, self._clock.wall_ms())
        return group

    def _written(self, commit: _Commit, keys: list[OffsetKey], error: ErrorCode) -> None:
        self._offsets.end(keys)
        if not error:
            partition = self._manager.partitions.partition_for(commit.request.group_id)
            transaction = TransactionKey(partition, commit.producer.producer_id)
            for key, value in commit.entries:
                self._offsets.pend(transaction, key, value)
        self._answers.answer(commit.waiter, commit.settle(response_error(error)))

    def write_marker(self, partition: int, marker: Marker, then: Then) -> None:
        """Append a marker to a `__consumer_offsets` partition. Call `then` when it is durable or refused."""
        if not self._manager.partitions.is_loaded(partition):
            then(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return

        def written(error: ErrorCode) -> None:
            if not error:
                transaction = TransactionKey(partition, marker.producer_id)
                self._offsets.end_transaction(transaction, marker.is_commit)
            then(error)

        self._queue.append_marker(partition, marker, written)


def _check_member(group: Group, request: TxnOffsetCommitRequest) -> None:
    """Raise ApiError if the request names a wrong member or generation. A client may omit both."""
    if group.state is GroupState.DEAD:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    generation, member_id = request.generation_id, request.member_id
    if generation < 0 and group.state is GroupState.EMPTY:
        return
    if generation >= 0 or member_id != NO_MEMBER or request.group_instance_id is not None:
        group.check_member(member_id, request.group_instance_id)
        if generation != group.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
