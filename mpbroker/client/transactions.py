"""Begins and ends transactions by Kafka's first protocol for them (KIP-98), which every broker speaks.

Partitions are added explicitly and the epoch stays the same when a transaction ends: AddPartitionsToTxn up to
v3, Produce up to v11, EndTxn up to v4 (versions.VERSION_CAPS). So the end of a transaction may be asked for
again, by another process too, as long as nobody began the next one with its transactional id; the newer
protocol (KIP-890) bumps the epoch with each end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from mpbroker.client.clock import monotonic_ms
from mpbroker.client.cluster import Cluster
from mpbroker.client.errors import ApiFailed, ClientError, ConnectionLost
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode, error_code

TRANSACTION = 1
"""What FindCoordinator is asked for, by a transactional id (Kafka: CoordinatorType)."""

FENCED = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
)
"""The transaction is over, or was never there: a timeout, or a newer producer with its transactional id."""


class ProducerId(NamedTuple):
    """Who writes: all that another process needs to end the transaction, beside the transactional id."""

    id: int
    epoch: int


class TransactionFailed(ApiFailed):
    """The coordinator refused for good; `is_over` says that there is no such transaction any more."""

    @property
    def is_over(self) -> bool:
        return self.code in FENCED


class TransactionState(NamedTuple):
    """What a coordinator knows of a transactional id; the state is Kafka's word, such as Ongoing."""

    transactional_id: str
    state: str
    producer: ProducerId


class Transactions:
    """Asks the coordinators of a cluster, with patience until delivery.timeout.ms.

    Every method raises TransactionFailed for a final refusal, ConnectionLost or ApiFailed when time is up.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._coordinators: dict[str, int] = {}

    def init(self, transactional_id: str, timeout_ms: int) -> ProducerId:
        """Asks for a producer id with a new epoch.

        Who had the transactional id is fenced, its transaction over.
        """
        request = m.InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        answer: m.InitProducerIdResponse = self._ask(transactional_id, request, _own_code)
        return ProducerId(answer.producer_id, answer.producer_epoch)

    def add(self, transactional_id: str, producer: ProducerId, partitions: Iterable[tuple[str, int]]) -> None:
        """Adds partitions to the transaction; needed before the first record is sent to each of them."""
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
        """Ends the transaction.

        May be repeated. Raises TransactionFailed if it ended with the other outcome.
        """
        request = m.EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            committed=committed,
        )
        self._ask(transactional_id, request, _own_code)

    def describe(self, transactional_id: str) -> TransactionState:
        """Asks for the state of a transactional id.

        Raises TransactionFailed with TRANSACTIONAL_ID_NOT_FOUND for one that nobody knows.
        """
        request = m.DescribeTransactionsRequest(transactional_ids=[transactional_id])
        answer: m.DescribeTransactionsResponse = self._ask(transactional_id, request, _code_of_states)
        (found,) = answer.transaction_states
        return TransactionState(
            found.transactional_id,
            found.transaction_state,
            ProducerId(found.producer_id, found.producer_epoch),
        )

    def ongoing(self, prefix: str) -> list[str]:
        """Lists the transactional ids with this prefix whose transactions are open, of all coordinators."""
        self._know_brokers()
        found = []
        for node in self._cluster.metadata.nodes():
            request = m.ListTransactionsRequest(state_filters=["Ongoing"])
            answer: m.ListTransactionsResponse = self._cluster.ask(node.id, request)
            if answer.error_code:
                raise ApiFailed(f"transactions of {node.address}", answer.error_code)
            found += [one.transactional_id for one in answer.transaction_states]
        return sorted({one for one in found if one.startswith(prefix)})

    def _ask(self, transactional_id: str, request: m.Message, code_of: Callable[[Any], int]) -> Any:
        deadline_ms = monotonic_ms() + self._cluster.config.delivery_timeout_ms
        attempts = 0
        while True:
            error: ClientError
            try:
                answer = self._cluster.ask(self._coordinator(transactional_id), request)
                code = error_code(code_of(answer))
                if code is ErrorCode.NONE:
                    return answer
                error = TransactionFailed(f"transaction {transactional_id}", code)
            except (ConnectionLost, ApiFailed) as failed:
                error = failed
            if not error.retriable or monotonic_ms() >= deadline_ms:
                raise error
            if not isinstance(error, ApiFailed) or error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                self._coordinators.pop(transactional_id, None)
            self._cluster.client.poll(self._cluster.retry_backoff.after(attempts))
            attempts += 1

    def _coordinator(self, transactional_id: str) -> int:
        node = self._coordinators.get(transactional_id)
        if node is None:
            self._know_brokers()
            request = m.FindCoordinatorRequest(
                key=transactional_id, key_type=TRANSACTION, coordinator_keys=[transactional_id]
            )
            answer: m.FindCoordinatorResponse = self._cluster.ask_any(request)
            found = answer.coordinators[0] if answer.coordinators else answer
            if found.error_code:
                raise ApiFailed(f"coordinator of {transactional_id}", found.error_code, found.error_message)
            node = self._coordinators[transactional_id] = found.node_id
        return node

    def _know_brokers(self) -> None:
        """Asks for the brokers' ids: a coordinator is named by its id, and bootstrap servers have none."""
        self._cluster.refresh(m.MetadataRequest(topics=[]))


class Transaction:
    """An open transaction that a Producer writes in."""

    def __init__(self, transactions: Transactions, transactional_id: str, timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self.producer = transactions.init(transactional_id, timeout_ms)
        self._transactions = transactions
        self._partitions: set[tuple[str, int]] = set()

    @property
    def is_empty(self) -> bool:
        """Tells whether no partition was added: then no coordinator would end the transaction."""
        return not self._partitions

    def add(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Tells the coordinator of partitions that are new to it."""
        new = set(partitions) - self._partitions
        if new:
            self._transactions.add(self.transactional_id, self.producer, sorted(new))
            self._partitions |= new

    def end(self, *, committed: bool) -> None:
        """Ends the transaction; the same producer may begin the next one then."""
        if not self.is_empty:
            self._transactions.end(self.transactional_id, self.producer, committed=committed)
            self._partitions.clear()


def _own_code(answer: Any) -> int:
    return int(answer.error_code)


def _code_of_partitions(answer: m.AddPartitionsToTxnResponse) -> int:
    results = (part for topic in answer.results_by_topic_v3_and_below for part in topic.results_by_partition)
    codes = [part.partition_error_code for part in results]
    # What was not attempted because of another partition says less than that one.
    told = [code for code in codes if code and code != ErrorCode.OPERATION_NOT_ATTEMPTED]
    return (told or [*filter(None, codes), 0])[0]


def _code_of_states(answer: m.DescribeTransactionsResponse) -> int:
    return next((one.error_code for one in answer.transaction_states if one.error_code), 0)
