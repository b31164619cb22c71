"""Transactions with Kafka's first transaction protocol (KIP-98), which every broker supports.

Partitions are added explicitly and the epoch stays the same when a transaction ends: AddPartitionsToTxn up to
v3, Produce up to v11, EndTxn up to v4 (versions.VERSION_CAPS). Therefore any process may retry the end of a
transaction until the next transaction of the same transactional id begins. The newer protocol (KIP-890) bumps
the epoch at each end and would not allow such retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from mpbroker.client.cluster import Cluster, CoordinatorType
from mpbroker.client.errors import ApiFailed, ClientError
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode, error_code

# The transaction is over, or was never there: a timeout, or a newer producer with its transactional id.
FENCED = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
)


class ProducerId(NamedTuple):
    """A producer id with its epoch. With both and the transactional id, any process can end a transaction."""

    id: int
    epoch: int


class TransactionFailed(ApiFailed):
    """The coordinator answered with an error. `is_over` is True if the transaction has already ended."""

    @property
    def is_over(self) -> bool:
        return self.code in FENCED


class TransactionState(NamedTuple):
    """A coordinator's view of a transactional id; `state` is Kafka's word, such as Ongoing."""

    transactional_id: str
    state: str
    producer: ProducerId


class Transactions:
    """Requests to coordinators, retried until delivery.timeout.ms. Raises TransactionFailed, ApiFailed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._coordinators: dict[str, int] = {}

    def init(self, transactional_id: str, timeout_ms: int) -> ProducerId:
        """Get a producer id with a new epoch, which fences the last producer and ends its transaction."""
        request = m.InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        answer: m.InitProducerIdResponse = self._ask(transactional_id, request, _own_code)
        return ProducerId(answer.producer_id, answer.producer_epoch)

    def add(self, transactional_id: str, producer: ProducerId, partitions: Iterable[tuple[str, int]]) -> None:
        """Add partitions to the transaction. Call it before the first record is sent to a partition."""
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)
        wanted = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer.id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[wanted(name=name, partitions=parts) for name, parts in topics.items()],
        )
        self._ask(transactional_id, request, _code_of_partitions)

    def end(self, transactional_id: str, producer: ProducerId, *, committed: bool) -> None:
        """End the transaction. Idempotent. Raises TransactionFailed if it ended with the other outcome."""
        request = m.EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            committed=committed,
        )
        self._ask(transactional_id, request, _own_code)

    def describe(self, transactional_id: str) -> TransactionState:
        """Return the state of a transactional id. Raises TransactionFailed (TRANSACTIONAL_ID_NOT_FOUND)."""
        request = m.DescribeTransactionsRequest(transactional_ids=[transactional_id])
        answer: m.DescribeTransactionsResponse = self._ask(transactional_id, request, _code_of_states)
        (found,) = answer.transaction_states
        return TransactionState(
            found.transactional_id,
            found.transaction_state,
            ProducerId(found.producer_id, found.producer_epoch),
        )

    def ongoing(self, prefix: str) -> list[str]:
        """Return, from all brokers, the transactional ids with this prefix that have open transactions."""
        # Coordinators are asked by id, which bootstrap servers do not have.
        self._cluster.refresh()
        found = []
        for node in self._cluster.metadata.nodes():
            request = m.ListTransactionsRequest(state_filters=["Ongoing"])
            answer: m.ListTransactionsResponse = self._cluster.ask(node.id, request)
            if answer.error_code:
                raise ApiFailed(f"transactions of {node.address}", answer.error_code)
            found += [one.transactional_id for one in answer.transaction_states]
        return sorted({one for one in found if one.startswith(prefix)})

    def _ask(self, transactional_id: str, request: m.Message, code_of: Callable[[Any], int]) -> Any:
        return self._cluster.patiently(lambda: self._ask_once(transactional_id, request, code_of))

    def _ask_once(self, transactional_id: str, request: m.Message, code_of: Callable[[Any], int]) -> Any:
        """Ask the coordinator. After errors except CONCURRENT_TRANSACTIONS, forget the coordinator's node."""
        try:
            answer = self._cluster.ask(self._coordinator(transactional_id), request)
            if code := error_code(code_of(answer)):
                raise TransactionFailed(f"transaction {transactional_id}", code)
        except ClientError as error:
            if not isinstance(error, ApiFailed) or error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                self._coordinators.pop(transactional_id, None)
            raise
        return answer

    def _coordinator(self, transactional_id: str) -> int:
        node = self._coordinators.get(transactional_id)
        if node is None:
            node = self._cluster.coordinator(CoordinatorType.TRANSACTION, transactional_id)
            self._coordinators[transactional_id] = node
        return node


class Transaction:
    """An open transaction, to which a Producer writes."""

    def __init__(self, transactions: Transactions, transactional_id: str, timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self.producer = transactions.init(transactional_id, timeout_ms)
        self._transactions = transactions
        self._partitions: set[tuple[str, int]] = set()

    @property
    def is_empty(self) -> bool:
        """Return whether the transaction has no partitions. The coordinator then has nothing to end."""
        return not self._partitions

    def add(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Add to the transaction those partitions that it does not have yet."""
        new = set(partitions) - self._partitions
        if new:
            self._transactions.add(self.transactional_id, self.producer, sorted(new))
            self._partitions |= new

    def end(self, *, committed: bool) -> None:
        """End the transaction. The same producer may then begin another one."""
        if not self.is_empty:
            self._transactions.end(self.transactional_id, self.producer, committed=committed)
            self._partitions.clear()


def _own_code(answer: Any) -> int:
    return int(answer.error_code)


def _code_of_partitions(answer: m.AddPartitionsToTxnResponse) -> int:
    results = (part for topic in answer.results_by_topic_v3_and_below for part in topic.results_by_partition)
    codes = [part.partition_error_code for part in results]
    # A partition that was not attempted because of another one has no cause of its own.
    causes = [code for code in codes if code and code != ErrorCode.OPERATION_NOT_ATTEMPTED]
    return (causes or [*filter(None, codes), 0])[0]


def _code_of_states(answer: m.DescribeTransactionsResponse) -> int:
    return next((one.error_code for one in answer.transaction_states if one.error_code), 0)
