"""DescribeTransactions (Kafka: TransactionCoordinator.handleDescribeTransactions; KIP-664)."""

from __future__ import annotations

from typing import Final

from mpbroker.coordinator.runtime.requests import RequestContext
from mpbroker.coordinator.transactions.records import TransactionState, TransactionValue
from mpbroker.coordinator.transactions.state_manager import TransactionStateManager
from mpbroker.coordinator.transactions.steps import TransactionMetadata
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import DescribeTransactionsRequest, DescribeTransactionsResponse

# The most that one response describes: a transaction can have many partitions.
DESCRIBED_PARTITIONS: Final = 50_000


class DescribeTransactions:
    def __init__(self, state: TransactionStateManager) -> None:
        self._state = state

    def describe(
        self, _context: RequestContext, request: DescribeTransactionsRequest
    ) -> DescribeTransactionsResponse:
        """Describe the first ids of the request, up to a limit. The handler then asks for the others."""
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
        """Return the durable value of a transactional id. Raises ApiError if it has none."""
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        self._state.partitions.check_loaded(transactional_id)
        transaction = self._state.find(transactional_id)
        if transaction is None or transaction.value is None or _is_dead(transaction):
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return transaction.value


def _is_dead(transaction: TransactionMetadata) -> bool:
    return transaction.pending_state is TransactionState.DEAD
