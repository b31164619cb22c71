"""DescribeTransactions and ListTransactions: what there is, without changing any of it.

(Kafka: TransactionCoordinator.handleDescribeTransactions, -ListTransactions; KIP-664, KIP-994, KIP-1152.)
"""

from __future__ import annotations

from typing import Any, Final

from mpbroker.coordinator.runtime.partitions import PartitionState
from mpbroker.coordinator.runtime.timers import Clock
from mpbroker.coordinator.transactions.manager import TransactionManager
from mpbroker.coordinator.transactions.records import TransactionValue
from mpbroker.coordinator.transactions.states import BY_LABEL, TransactionState
from mpbroker.coordinator.transactions.transaction import Transaction
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

# Of what is described at once: a transaction can have many partitions.
DESCRIBED_PARTITIONS: Final = 50_000
# Of memory for one compiled pattern; the module re2 keeps the last 128.
PATTERN_BYTES_MAX: Final = 1 << 20


class Looks:
    def __init__(self, manager: TransactionManager, clock: Clock) -> None:
        self._manager = manager
        self._clock = clock

    # --- some

    def describe(self, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
        """Of the first, at least one: as many as can be answered at once. The handler asks for the rest."""
        described: list[DescribeTransactionsResponse.TransactionState] = []
        count = 0
        for transactional_id in request.transactional_ids:
            if count >= DESCRIBED_PARTITIONS:
                break
            one = self._describe(transactional_id)
            count += sum(len(topic.partitions) for topic in one.topics)
            described.append(one)
        return DescribeTransactionsResponse(transaction_states=described)

    def _describe(self, transactional_id: str) -> DescribeTransactionsResponse.TransactionState:
        described = DescribeTransactionsResponse.TransactionState(transactional_id=transactional_id)
        try:
            value = self._value_of(transactional_id)
        except ApiError as error:
            described.error_code = error.code
            return described
        described.transaction_state = value.state.label
        described.transaction_timeout_ms = value.timeout_ms
        described.transaction_start_time_ms = value.start_ms
        described.producer_id = value.producer_id
        described.producer_epoch = value.producer_epoch
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(value.partitions):
            topics.setdefault(topic, []).append(partition)
        described.topics = [
            DescribeTransactionsResponse.TopicData(name, partitions) for name, partitions in topics.items()
        ]
        return described

    def _value_of(self, transactional_id: str) -> TransactionValue:
        """Raises ApiError."""
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        self._manager.check_loaded(transactional_id)
        transaction = self._manager.find(transactional_id)
        if transaction is None or transaction.value is None or _is_dead(transaction):
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return transaction.value

    # --- all

    def list(self, request: ListTransactionsRequest) -> ListTransactionsResponse:
        """Raises ApiError: half a list would look like a whole one."""
        partitions = self._manager.partitions
        if partitions is None or PartitionState.LOADING in partitions:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        response = ListTransactionsResponse()
        states: set[TransactionState] = set()
        for label in request.state_filters:
            if label in BY_LABEL:
                states.add(BY_LABEL[label])
            else:
                response.unknown_state_filters.append(label)
        pattern = _pattern(request.transactional_id_pattern)
        producer_ids = set(request.producer_id_filters)
        started_before = self._clock.wall_ms() - request.duration_filter
        for transaction in self._manager:
            value = transaction.value
            assert value is not None
            wanted = (
                not _is_dead(transaction)
                and (not request.state_filters or value.state in states)
                and (not producer_ids or value.producer_id in producer_ids)
                and (request.duration_filter < 0 or value.start_ms < started_before)
                and (pattern is None or pattern.fullmatch(transaction.transactional_id))
            )
            if wanted:
                response.transaction_states.append(
                    ListTransactionsResponse.TransactionState(
                        transaction.transactional_id, value.producer_id, value.state.label
                    )
                )
        return response


def _is_dead(transaction: Transaction) -> bool:
    return transaction.pending is TransactionState.DEAD


def _pattern(text: str | None) -> Any:
    """Compile a client's pattern, None if there is none. Raises ApiError.

    Kafka has RE2/J for it: Python's `re` backtracks, and a dozen characters can keep it busy for hours.
    """
    if not text:
        return None
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.never_capture, options.log_errors, options.max_mem = True, False, PATTERN_BYTES_MAX
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, error.args[0].decode()) from error
