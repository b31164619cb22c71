"""Requests to a transaction's coordinator: what is sent, what is asked again, and what is final."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mpbroker.client.cluster import Cluster, CoordinatorType
from mpbroker.client.config import ClientConfig
from mpbroker.client.errors import ApiFailed, ConnectionLost
from mpbroker.client.transactions import ProducerId, Transaction, TransactionFailed, Transactions
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode

NAME = "x"
PRODUCER = ProducerId(7, 3)
GIVEN = m.InitProducerIdResponse(producer_id=7, producer_epoch=3)


class Scripted(Cluster):
    """Answers as a test says, and notes what it was asked; the coordinator is another node each time."""

    def __init__(self) -> None:
        config = ClientConfig(retry_backoff_ms=1, retry_backoff_max_ms=1, delivery_timeout_ms=60_000)
        super().__init__([("nowhere", 1)], config)
        self.answers: list[m.Message | Exception] = []
        self.asked: list[tuple[int, Any]] = []
        self.looked_up = 0

    def ask(self, node_id: int, body: m.Message, timeout_ms: float | None = None) -> Any:
        del timeout_ms
        self.asked.append((node_id, body))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def coordinator(self, kind: CoordinatorType, key: str, timeout_ms: float | None = None) -> int:
        del timeout_ms
        assert (kind, key) == (CoordinatorType.TRANSACTION, NAME)
        self.looked_up += 1
        return self.looked_up

    def refresh(self, *_topics: object, **_how: object) -> m.MetadataResponse:
        broker = m.MetadataResponse.MetadataResponseBroker
        response = m.MetadataResponse(brokers=[broker(1, "a", 1), broker(2, "b", 1)])
        self.metadata.updated(response, 0)
        return response


@pytest.fixture
def cluster() -> Iterator[Scripted]:
    made = Scripted()
    yield made
    made.close()


def test_one_transaction_from_its_begin_to_its_end(cluster: Scripted) -> None:
    cluster.answers = [GIVEN, m.AddPartitionsToTxnResponse(), m.EndTxnResponse(), m.EndTxnResponse()]
    transaction = Transaction(Transactions(cluster), NAME, 1_000)
    assert (transaction.producer, transaction.is_empty) == (PRODUCER, True)
    transaction.end(committed=True)
    transaction.add([("t", 1), ("t", 0), ("u", 0)])
    transaction.add([("t", 1)])
    assert not transaction.is_empty
    transaction.end(committed=True)
    init, added, ended = (body for _, body in cluster.asked)
    assert (init.transactional_id, init.transaction_timeout_ms) == (NAME, 1_000)
    topics = [(one.name, one.partitions) for one in added.v3_and_below_topics]
    assert topics == [("t", [0, 1]), ("u", [0])]
    assert (added.v3_and_below_producer_id, added.v3_and_below_producer_epoch) == PRODUCER
    assert (ended.producer_id, ended.producer_epoch, ended.committed) == (7, 3, True)
    assert transaction.is_empty, "the next one begins"
    assert cluster.looked_up == 1


def test_a_lost_coordinator_is_looked_up_again(cluster: Scripted) -> None:
    moved = m.InitProducerIdResponse(error_code=ErrorCode.NOT_COORDINATOR)
    cluster.answers = [ConnectionLost("gone"), moved, GIVEN]
    assert Transactions(cluster).init(NAME, 1_000) == PRODUCER
    assert [node for node, _ in cluster.asked] == [1, 2, 3]


def test_a_coordinator_that_is_busy_is_asked_again(cluster: Scripted) -> None:
    busy = m.InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
    cluster.answers = [busy, busy, GIVEN]
    assert Transactions(cluster).init(NAME, 1_000) == PRODUCER
    assert [node for node, _ in cluster.asked] == [1, 1, 1]


@pytest.mark.parametrize(
    ("code", "is_over"),
    [(ErrorCode.PRODUCER_FENCED, True), (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, False)],
)
def test_a_final_refusal(cluster: Scripted, code: ErrorCode, is_over: bool) -> None:
    cluster.answers = [m.EndTxnResponse(error_code=code)]
    with pytest.raises(TransactionFailed, match=f"transaction x: .*{code.name}") as failed:
        Transactions(cluster).end(NAME, PRODUCER, committed=False)
    assert failed.value.is_over is is_over


def test_of_several_partitions_the_reason_is_told(cluster: Scripted) -> None:
    result = m.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
    topic = m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    codes = (ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    parts = [result(index, code) for index, code in enumerate(codes)]
    cluster.answers = [m.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic("t", parts)])]
    with pytest.raises(TransactionFailed, match="TOPIC_AUTHORIZATION_FAILED"):
        Transactions(cluster).add(NAME, PRODUCER, [("t", 0), ("t", 1)])


def test_the_state_of_a_transaction(cluster: Scripted) -> None:
    state = m.DescribeTransactionsResponse.TransactionState(
        transactional_id=NAME, transaction_state="Ongoing", producer_id=7, producer_epoch=3
    )
    cluster.answers = [m.DescribeTransactionsResponse(transaction_states=[state])]
    assert Transactions(cluster).describe(NAME) == (NAME, "Ongoing", PRODUCER)


def test_open_transactions_of_all_coordinators(cluster: Scripted) -> None:
    state = m.ListTransactionsResponse.TransactionState
    cluster.answers = [
        m.ListTransactionsResponse(transaction_states=[state("p/b"), state("q/a")]),
        m.ListTransactionsResponse(transaction_states=[state("p/a")]),
    ]
    assert Transactions(cluster).ongoing("p/") == ["p/a", "p/b"]
    cluster.answers = [m.ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)]
    with pytest.raises(ApiFailed, match="transactions of a:1"):
        Transactions(cluster).ongoing("p/")
