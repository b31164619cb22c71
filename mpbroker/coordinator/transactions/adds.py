"""Which partitions a transaction has: AddPartitionsToTxn, AddOffsetsToTxn, and checks before an append.

(Kafka: TransactionCoordinator.handleAddPartitionsToTransaction, -VerifyPartitionsInTransaction.) A partition
that is not in the transaction gets no marker: what is appended to it would be open for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeAlias

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.runtime.answers import Answers, Then, Waiter
from mpbroker.coordinator.runtime.batches import Producer
from mpbroker.coordinator.runtime.partitions import java_hash
from mpbroker.coordinator.runtime.timers import Clock
from mpbroker.coordinator.transactions import transaction as steps
from mpbroker.coordinator.transactions.holds import Holds
from mpbroker.coordinator.transactions.manager import TransactionManager
from mpbroker.coordinator.transactions.records import TV1, TV2, TopicPartition, encode
from mpbroker.coordinator.transactions.states import TransactionState
from mpbroker.coordinator.transactions.transaction import Step
from mpbroker.ipc.calls import CheckedTransaction, CheckTransaction
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from mpbroker.protocol.topic_names import GROUP_TOPIC, INTERNAL_TOPICS

# What the record of the end has more than one that adds: tagged fields, and the batch around it.
SPARE_BYTES: Final = 128

Checked: TypeAlias = CheckedTransaction | ErrorCode
TopicResult: TypeAlias = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
PartitionResult: TypeAlias = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult

log = logging.getLogger("mpbroker")


class Topics(Protocol):
    """What there is to append to."""

    def partitions_of(self, name: str) -> int:
        """0 if there is no such topic."""


class Adds:
    def __init__(
        self,
        config: BrokerConfig,
        manager: TransactionManager,
        holds: Holds,
        clock: Clock,
        answers: Answers,
        topics: Topics,
    ) -> None:
        self._config = config
        self._manager = manager
        self._holds = holds
        self._clock = clock
        self._answers = answers
        self._topics = topics

    # --- what clients add

    def add_partitions(self, waiter: Waiter, request: AddPartitionsToTxnRequest) -> None:
        """As clients of TV1 ask for it, up to version 3: for one transaction. All partitions or none."""
        wanted = [(t.name, index) for t in request.v3_and_below_topics for index in t.partitions]
        producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        refused = {partition: error for partition in wanted if (error := self._problem_with(partition))}

        def added(error: ErrorCode) -> None:
            self._answers.answer(waiter, _add_response(request, dict.fromkeys(wanted, error)))

        if refused:
            others = dict.fromkeys(wanted, ErrorCode.OPERATION_NOT_ATTEMPTED)
            self._answers.answer(waiter, _add_response(request, others | refused))
            return
        name = request.v3_and_below_transactional_id
        self.add(name, producer, wanted, TV1, added, waiter)

    def _problem_with(self, partition: TopicPartition) -> ErrorCode:
        topic, index = partition
        if topic in INTERNAL_TOPICS:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        exists = 0 <= index < self._topics.partitions_of(topic)
        return ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def add_offsets(self, waiter: Waiter, request: AddOffsetsToTxnRequest) -> None:
        """Adds the partition of `__consumer_offsets` that has the group, or will have it."""
        count = self._topics.partitions_of(GROUP_TOPIC) or self._config.offsets_topic_num_partitions
        partition = GROUP_TOPIC, java_hash(request.group_id) % count
        producer = Producer(request.producer_id, request.producer_epoch)

        def added(error: ErrorCode) -> None:
            self._answers.answer(waiter, AddOffsetsToTxnResponse(error_code=error))

        self.add(request.transactional_id, producer, [partition], TV1, added, waiter)

    # --- adding

    def add(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[TopicPartition],
        client_version: int,
        then: Then,
        waiter: Waiter | None,
    ) -> None:
        """`then` hears, at the very moment at which it is so, that the transaction has them, or why not."""
        wanted = frozenset(partitions)

        def attempt() -> bool:
            transaction, value = self._manager.existing(transactional_id)
            steps.check_producer(value, producer)
            is_open = value.state is TransactionState.ONGOING and not transaction.is_ending
            if is_open and wanted <= value.partitions:
                then(ErrorCode.NONE)
                return True
            if transaction.is_busy:
                return False
            step = steps.add(transaction, wanted, client_version, self._clock.wall_ms())
            self._check_size(transactional_id, step)
            self._manager.write(transaction, step, then, waiter)
            return True

        self._manager.submit(transactional_id, attempt, then, waiter)

    def _check_size(self, transactional_id: str, step: Step) -> None:
        """Raises ApiError. What is too large to be ended must not begin."""
        key, value = encode((transactional_id, step.value))
        assert value is not None
        size = len(key) + len(value) + SPARE_BYTES
        if size > self._config.message_max_bytes:
            log.error(
                "transactional id %s: %d partitions in a transaction take %d bytes, more than "
                "message.max.bytes allows",
                transactional_id,
                len(step.value.partitions),
                size,
            )
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)

    # --- before an append

    def check(self, waiter: Waiter, call: CheckTransaction, then: Callable[[Checked], None]) -> None:
        if call.adds:
            self._add_what_exists(waiter, call, then)
            return

        def verified(errors: list[ErrorCode]) -> None:
            granted = ErrorCode.NONE in errors
            hold = self._holds.open(call.transactional_id, waiter) if granted else 0
            then(CheckedTransaction(list(errors), hold))

        producer = Producer(call.producer_id, call.producer_epoch)
        self._verify(call.transactional_id, producer, call.partitions, verified, then, waiter)

    def _add_what_exists(
        self, waiter: Waiter, call: CheckTransaction, then: Callable[[Checked], None]
    ) -> None:
        problems = [self._problem_with(partition) for partition in call.partitions]
        known = [one for one, problem in zip(call.partitions, problems, strict=True) if not problem]

        def added(error: ErrorCode) -> None:
            if error:
                then(error)
                return
            transaction, _ = self._manager.existing(call.transactional_id)
            hold = 0
            if transaction.bumps:
                transaction.is_granted = True
            else:
                hold = self._holds.open(call.transactional_id, waiter)
            then(CheckedTransaction(list(problems), hold))

        if known:
            producer = Producer(call.producer_id, call.producer_epoch)
            self.add(call.transactional_id, producer, known, TV2, added, waiter)
        else:
            then(CheckedTransaction(list(problems)))

    def check_offsets(
        self,
        transactional_id: str,
        producer: Producer,
        partition: int,
        adds: bool,
        then: Then,
    ) -> None:
        """Of one partition of `__consumer_offsets`; nothing is held: it has its marker from this process."""
        wanted = [(GROUP_TOPIC, partition)]
        if adds:
            self.add(transactional_id, producer, wanted, TV2, then, None)
        else:
            self._verify(transactional_id, producer, wanted, lambda errors: then(errors[0]), then, None)

    def _verify(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: list[TopicPartition],
        then: Callable[[list[ErrorCode]], None],
        refuse: Then,
        waiter: Waiter | None,
    ) -> None:
        """`then` has an error for each."""

        def attempt() -> bool:
            transaction, value = self._manager.existing(transactional_id)
            steps.check_producer(value, producer)
            if transaction.is_ending:
                return False
            found = value.partitions if value.state is TransactionState.ONGOING else frozenset()
            if transaction.is_busy and not found.issuperset(partitions):
                return False
            missing = ErrorCode.TRANSACTION_ABORTABLE
            then([ErrorCode.NONE if one in found else missing for one in partitions])
            return True

        self._manager.submit(transactional_id, attempt, refuse, waiter)


def _add_response(
    request: AddPartitionsToTxnRequest, errors: dict[TopicPartition, ErrorCode]
) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            TopicResult(
                topic.name,
                [PartitionResult(index, errors[topic.name, index]) for index in topic.partitions],
            )
            for topic in request.v3_and_below_topics
        ]
    )
