"""TxnOffsetCommit, and the markers by which its offsets count or are dropped.

Whether the transaction is open, and has our partition, the transaction coordinator says; what is written at
that moment is in front of the marker. (Kafka: OffsetMetadataManager.commitTransactionalOffset,
-.replayEndTransactionMarker; GroupCoordinatorService.completeTransaction; KIP-98, KIP-447, KIP-890.)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, Protocol, TypeAlias

from mpbroker.coordinator.groups.commits import Commits
from mpbroker.coordinator.groups.group import NO_MEMBER, Group, GroupState
from mpbroker.coordinator.groups.offsets import Offsets
from mpbroker.coordinator.groups.pending import Transaction
from mpbroker.coordinator.groups.rebalances import Writer
from mpbroker.coordinator.groups.records import Entry, OffsetKey, OffsetValue
from mpbroker.coordinator.runtime.answers import Answers, Then, Waiter, response_error
from mpbroker.coordinator.runtime.batches import Marker, Producer
from mpbroker.coordinator.runtime.timers import Clock
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse

# Its clients have said nothing to the transaction coordinator: the partition is added with the offsets.
FIRST_VERSION_THAT_ADDS: Final = 5

CommittedPartition: TypeAlias = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition
CommittedTopic: TypeAlias = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic

log = logging.getLogger("mpbroker")


class Transactions(Protocol):
    def check_offsets(
        self,
        transactional_id: str,
        producer: Producer,
        partition: int,
        adds: bool,
        then: Then,
    ) -> None:
        """May offsets be appended to that partition in the transaction? With NONE `then` is called at the
        very moment at which it is so. `adds`: if the transaction lacks the partition it gets it.
        """


class Groups(Protocol):
    """All groups there are, as far as their partitions were read."""

    def check_loaded(self, group_id: str) -> None:
        """Raises ApiError."""

    def find(self, group_id: str) -> Group | None: ...

    def add(self, group: Group) -> None: ...

    def partition_for(self, group_id: str) -> int: ...


class _Commit:
    """A request, and the answer that it gets when its offsets are durable."""

    def __init__(self, waiter: Waiter, request: TxnOffsetCommitRequest, version: int) -> None:
        self.waiter = waiter
        self.request = request
        self.adds = version >= FIRST_VERSION_THAT_ADDS
        self.producer = Producer(request.producer_id, request.producer_epoch)
        self.response = TxnOffsetCommitResponse()
        self.entries: list[tuple[OffsetKey, OffsetValue]] = []
        self._results: list[CommittedPartition] = []

    def check(self, commits: Commits, now_ms: int) -> None:
        """Of each partition whether an offset can be committed, at this moment."""
        self.response.topics.clear()
        self.entries.clear()
        self._results.clear()
        for topic in self.request.topics:
            results = []
            for asked in topic.partitions:
                metadata = asked.committed_metadata or ""
                error = commits.problem_with(topic.name, asked.partition_index, metadata)
                result = CommittedPartition(asked.partition_index, error)
                results.append(result)
                if not error:
                    key = OffsetKey(self.request.group_id, topic.name, asked.partition_index)
                    epoch = asked.committed_leader_epoch
                    self.entries.append((key, OffsetValue(asked.committed_offset, epoch, metadata, now_ms)))
                    self._results.append(result)
            self.response.topics.append(CommittedTopic(topic.name, results))

    def settle(self, error: ErrorCode) -> TxnOffsetCommitResponse:
        """What could be committed was, or all of that was not."""
        for result in self._results:
            result.error_code = error
        return self.response


class TransactionalCommits:
    def __init__(
        self,
        clock: Clock,
        writer: Writer,
        offsets: Offsets,
        commits: Commits,
        groups: Groups,
        transactions: Transactions,
        answers: Answers,
    ) -> None:
        self._clock = clock
        self._writer = writer
        self._offsets = offsets
        self._commits = commits
        self._groups = groups
        self._transactions = transactions
        self._answers = answers

    def commit(self, waiter: Waiter, request: TxnOffsetCommitRequest, version: int) -> None:
        """Raises ApiError."""
        self._group_for(request)
        commit = _Commit(waiter, request, version)
        commit.check(self._commits, self._clock.wall_ms())
        if not commit.entries:
            self._answers.answer(waiter, commit.response)
            return

        def checked(error: ErrorCode) -> None:
            if error:
                self._answers.answer(waiter, commit.settle(error))
                return
            try:
                self._write(commit)
            except Exception:
                log.exception("group %s: a commit in a transaction failed", request.group_id)
                self._answers.fail(waiter, ErrorCode.UNKNOWN_SERVER_ERROR)

        partition = self._groups.partition_for(request.group_id)
        self._transactions.check_offsets(
            request.transactional_id, commit.producer, partition, commit.adds, checked
        )

    def _group_for(self, request: TxnOffsetCommitRequest) -> Group:
        """The group, or a new one. Raises ApiError."""
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        self._groups.check_loaded(request.group_id)
        group = self._groups.find(request.group_id)
        if group is not None:
            _check_member(group, request)
            return group
        if request.generation_id >= 0:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        return Group(request.group_id, state_ms=self._clock.wall_ms())

    def _write(self, commit: _Commit) -> None:
        """The check may have taken its time: the group, or the topics, may be others now."""
        try:
            group = self._group_for(commit.request)
        except ApiError as error:
            self._answers.answer(commit.waiter, commit.settle(error.code))
            return
        commit.check(self._commits, self._clock.wall_ms())
        if not commit.entries:
            self._answers.answer(commit.waiter, commit.response)
            return
        self._groups.add(group)
        keys = [key for key, _ in commit.entries]
        transaction = Transaction(self._groups.partition_for(group.group_id), commit.producer.producer_id)

        def written(error: ErrorCode) -> None:
            self._offsets.end(keys)
            if not error:
                self._pend(transaction, commit.entries)
            self._answers.answer(commit.waiter, commit.settle(response_error(error)))

        entries: list[Entry] = list(commit.entries)
        self._writer.write(group.group_id, entries, written, commit.waiter, commit.producer)
        self._offsets.begin(keys)

    def _pend(self, transaction: Transaction, entries: Iterable[tuple[OffsetKey, OffsetValue]]) -> None:
        for key, value in entries:
            self._offsets.pend(transaction, key, value)

    def write_marker(self, partition: int, marker: Marker, then: Then) -> None:
        """Ends the transaction in that partition; `then` follows when that is durable or refused."""

        def written(error: ErrorCode) -> None:
            if not error:
                transaction = Transaction(partition, marker.producer_id)
                self._offsets.end_transaction(transaction, marker.is_commit)
            then(error)

        self._writer.write_marker(partition, marker, written)


def _check_member(group: Group, request: TxnOffsetCommitRequest) -> None:
    """Raises ApiError. Who says nothing of a member is believed, whatever state the group is in."""
    if group.state is GroupState.DEAD:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    generation, member_id = request.generation_id, request.member_id
    if generation < 0 and group.state is GroupState.EMPTY:
        return
    if generation >= 0 or member_id != NO_MEMBER or request.group_instance_id is not None:
        group.check_member(member_id, request.group_instance_id)
        if generation != group.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
