"""The partitions of a transaction: AddPartitionsToTxn, AddOffsetsToTxn, and checks before an append.

Only partitions of the transaction get markers. A batch in another partition would stay without a marker.
(Kafka: TransactionCoordinator.handleAddPartitionsToTransaction and handleVerifyPartitionsInTransaction.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.runtime.host import Host
from mpbroker.coordinator.runtime.java_hash import java_hash
from mpbroker.coordinator.runtime.requests import Answers, RequestContext, Then, Waiter
from mpbroker.coordinator.runtime.timers import Clock
from mpbroker.coordinator.runtime.write_queue import Producer
from mpbroker.coordinator.transactions import steps
from mpbroker.coordinator.transactions.marker_holds import MarkerHolds
from mpbroker.coordinator.transactions.records import TV1, TV2, TransactionState, encode
from mpbroker.coordinator.transactions.state_manager import TransactionStateManager
from mpbroker.coordinator.transactions.steps import Action, PendingStep, Step
from mpbroker.ipc.calls import CheckedTransaction, CheckTransaction
from mpbroker.protocol import messages
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.topic_names import GROUP_TOPIC, INTERNAL_TOPICS, TopicPartition

# By how much the record of the end can be longer than one that adds: tagged fields, and the batch around it.
SPARE_BYTES: Final = 128

Checked: TypeAlias = CheckedTransaction | ErrorCode
"""The outcome of a check: an error code for each partition, or one error for all of them."""
TopicResult: TypeAlias = messages.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
PartitionResult: TypeAlias = messages.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult

log = logging.getLogger("mpbroker.coordinator.transactions")


@dataclass(eq=False)
class AddPartitions:
    _config: BrokerConfig
    _state: TransactionStateManager
    _holds: MarkerHolds
    _clock: Clock
    _answers: Answers
    _host: Host

    # --- requests of clients

    def add_partitions(
        self, context: RequestContext, request: messages.AddPartitionsToTxnRequest
    ) -> messages.AddPartitionsToTxnResponse | None:
        """Serve AddPartitionsToTxn up to version 3: add all partitions to a client's transaction, or none."""
        wanted = [(t.name, index) for t in request.v3_and_below_topics for index in t.partitions]
        refused = {partition: error for partition in wanted if (error := self._problem_with(partition))}
        if refused:
            others = dict.fromkeys(wanted, ErrorCode.OPERATION_NOT_ATTEMPTED)
            return _add_response(request, others | refused)

        def added(error: ErrorCode) -> None:
            self._answers.answer(context.waiter, _add_response(request, dict.fromkeys(wanted, error)))

        producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        name = request.v3_and_below_transactional_id
        self._state.submit(self._step_to_add(name, producer, wanted, TV1, added, context.waiter))
        return None

    def _problem_with(self, partition: TopicPartition) -> ErrorCode:
        """Return why the partition cannot be added to a transaction, NONE if it can."""
        topic, index = partition
        if topic in INTERNAL_TOPICS:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        exists = 0 <= index < self._host.partitions_of(topic)
        return ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def add_offsets(self, context: RequestContext, request: messages.AddOffsetsToTxnRequest) -> None:
        """Add the group's partition of `__consumer_offsets` to the transaction."""
        count = self._host.partitions_of(GROUP_TOPIC) or self._config.offsets_topic_num_partitions
        partition = GROUP_TOPIC, java_hash(request.group_id) % count
        producer = Producer(request.producer_id, request.producer_epoch)

        def added(error: ErrorCode) -> None:
            self._answers.answer(context.waiter, messages.AddOffsetsToTxnResponse(error_code=error))

        name = request.transactional_id
        self._state.submit(self._step_to_add(name, producer, [partition], TV1, added, context.waiter))

    # --- adding

    def _step_to_add(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[TopicPartition],
        client_version: int,
        then: Then,
        waiter: Waiter | None,
    ) -> PendingStep:
        """Return a step to add partitions. It calls `then` with NONE once they are durable, or an error."""
        wanted = frozenset(partitions)

        def attempt() -> Action | None:
            transaction, value = self._state.existing(transactional_id)
            steps.check_producer(value, producer)
            is_open = value.state is TransactionState.ONGOING and not transaction.is_ending
            if is_open and wanted <= value.partitions:
                return partial(then, ErrorCode.NONE)
            if transaction.is_busy:
                return None
            step = steps.add(transaction, wanted, client_version, self._clock.wall_ms())
            self._check_size(transactional_id, step)
            return partial(self._state.append, transaction, step, then, waiter)

        return PendingStep(transactional_id, attempt, then, waiter)

    def _check_size(self, transactional_id: str, step: Step) -> None:
        """Raise ApiError if the record of the transaction's end could exceed message.max.bytes."""
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

    # --- checks before an append

    def check(self, waiter: Waiter, call: CheckTransaction, then: Callable[[Checked], bool]) -> None:
        """Check the transaction's partitions as `call` requests, and pass the outcome to `then`.

        If `then` returns False, end the hold that the outcome has (see CheckedTransaction).
        """

        def checked(outcome: Checked) -> None:
            if not then(outcome) and isinstance(outcome, CheckedTransaction):
                self._holds.end(outcome.hold)

        if call.adds:
            self._add_what_exists(waiter, call, checked)
            return

        producer = Producer(call.producer_id, call.producer_epoch)

        def verified(errors: list[ErrorCode]) -> None:
            hold = self._holds.open(call.transactional_id, waiter) if ErrorCode.NONE in errors else 0
            checked(CheckedTransaction(list(errors), hold))

        def attempt() -> Action | None:
            errors = self._verify(call.transactional_id, producer, call.partitions)
            return None if errors is None else partial(verified, errors)

        self._state.submit(PendingStep(call.transactional_id, attempt, checked, waiter))

    def _add_what_exists(
        self, waiter: Waiter, call: CheckTransaction, then: Callable[[Checked], None]
    ) -> None:
        problems = [self._problem_with(partition) for partition in call.partitions]
        known = [one for one, problem in zip(call.partitions, problems, strict=True) if not problem]

        def added(error: ErrorCode) -> None:
            if error:
                then(error)
                return
            transaction, _ = self._state.existing(call.transactional_id)
            hold = 0
            if transaction.bumps:
                transaction.is_epoch_verified = True
            else:
                hold = self._holds.open(call.transactional_id, waiter)
            then(CheckedTransaction(list(problems), hold))

        if known:
            producer = Producer(call.producer_id, call.producer_epoch)
            name = call.transactional_id
            self._state.submit(self._step_to_add(name, producer, known, TV2, added, waiter))
        else:
            then(CheckedTransaction(list(problems)))

    def check_offsets(
        self, transactional_id: str, producer: Producer, partition: int, adds: bool, then: Then
    ) -> None:
        """Call `then` with NONE as soon as offsets may be appended to `__consumer_offsets`, or with an error.

        Offsets that `then` appends come before the transaction's marker, since this process appends both to
        one queue: no hold is needed. `adds`: first add the partition to the transaction if it is missing.
        """
        wanted = [(GROUP_TOPIC, partition)]
        if adds:
            self._state.submit(self._step_to_add(transactional_id, producer, wanted, TV2, then, None))
            return

        def attempt() -> Action | None:
            errors = self._verify(transactional_id, producer, wanted)
            return None if errors is None else partial(then, errors[0])

        self._state.submit(PendingStep(transactional_id, attempt, then, None))

    def _verify(
        self, transactional_id: str, producer: Producer, partitions: list[TopicPartition]
    ) -> list[ErrorCode] | None:
        """Return an error code per partition, None if a step under way must end first. Raises ApiError."""
        transaction, value = self._state.existing(transactional_id)
        steps.check_producer(value, producer)
        if transaction.is_ending:
            return None
        found = value.partitions if value.state is TransactionState.ONGOING else frozenset()
        if transaction.is_busy and not found.issuperset(partitions):
            return None
        missing = ErrorCode.TRANSACTION_ABORTABLE
        return [ErrorCode.NONE if one in found else missing for one in partitions]


def _add_response(
    request: messages.AddPartitionsToTxnRequest, errors: dict[TopicPartition, ErrorCode]
) -> messages.AddPartitionsToTxnResponse:
    return messages.AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            TopicResult(
                topic.name, [PartitionResult(index, errors[topic.name, index]) for index in topic.partitions]
            )
            for topic in request.v3_and_below_topics
        ]
    )
