"""Requests about transactions in a handler: handed on, answered in their version, and forgotten in time."""

from __future__ import annotations

from typing import Any

import pytest

from mpbroker.handlers.calls.forwarding import NAMES_AT_ONCE
from mpbroker.ipc.calls import ForwardedRequest
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    Message,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from tests.support.forwarded_requests import answered, body_of, each_version, errors_in, hand_on
from tests.support.handler_rig import Rig, topic_image

Offset = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
Offsets = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
Partitions = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic

REQUEST: dict[ApiKey, Message] = {
    ApiKey.INIT_PRODUCER_ID: InitProducerIdRequest("tx", 60_000),
    ApiKey.ADD_PARTITIONS_TO_TXN: AddPartitionsToTxnRequest("tx", 9, 1, [Partitions("t", [3, 4])]),
    ApiKey.ADD_OFFSETS_TO_TXN: AddOffsetsToTxnRequest("tx", 9, 1, "g"),
    ApiKey.END_TXN: EndTxnRequest("tx", 9, 1, True),
    ApiKey.TXN_OFFSET_COMMIT: TxnOffsetCommitRequest("tx", "g", 9, 1, topics=[Offsets("t", [Offset(3, 5)])]),
    ApiKey.DESCRIBE_TRANSACTIONS: DescribeTransactionsRequest(["tx"]),
    ApiKey.LIST_TRANSACTIONS: ListTransactionsRequest(["Ongoing"], [9]),
}
EVERY = each_version(REQUEST)


def respond(key: ApiKey, code: int) -> Message:
    """Answer the request above as the coordinator."""
    match key:
        case ApiKey.INIT_PRODUCER_ID:
            return InitProducerIdResponse(error_code=code, producer_id=9, producer_epoch=2)
        case ApiKey.ADD_PARTITIONS_TO_TXN:
            results = [AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(n, code) for n in (3, 4)]
            topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult("t", results)
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic])
        case ApiKey.ADD_OFFSETS_TO_TXN:
            return AddOffsetsToTxnResponse(error_code=code)
        case ApiKey.END_TXN:
            return EndTxnResponse(error_code=code, producer_id=9, producer_epoch=2)
        case ApiKey.TXN_OFFSET_COMMIT:
            partition = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(3, code)
            return TxnOffsetCommitResponse(
                topics=[TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic("t", [partition])]
            )
        case ApiKey.DESCRIBE_TRANSACTIONS:
            state = DescribeTransactionsResponse.TransactionState(code, "tx", "Ongoing", producer_id=9)
            return DescribeTransactionsResponse(transaction_states=[state])
        case _:
            listed = ListTransactionsResponse.TransactionState("tx", 9, "Ongoing")
            return ListTransactionsResponse(error_code=code, transaction_states=[listed])


READY = (topic_image("t", 1),)


def sent(ready: Rig, key: ApiKey, version: int, connection: int = 7) -> tuple[Any, ForwardedRequest]:
    return hand_on(ready, key, version, REQUEST[key], connection)


def told(ready: Rig, key: ApiKey, version: int, code: int) -> set[int]:
    """The errors that a client hears when the coordinator says this one."""
    call, _ = sent(ready, key, version)
    answered(ready, call, respond(key, code))
    return set(errors_in(ready.answer(key, version))) - {0}


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_a_request_is_handed_on_and_its_answer_back(ready: Rig, key: ApiKey, version: int) -> None:
    call, message = sent(ready, key, version)
    assert (message.api_key, message.version) == (key, version)
    body = body_of(message)
    for name in ("transactional_id", "producer_id", "producer_epoch", "group_id", "committed"):
        if hasattr(body, name):
            assert getattr(body, name) == getattr(REQUEST[key], name)
    if key == ApiKey.ADD_PARTITIONS_TO_TXN:
        assert body == REQUEST[key]
    answered(ready, call, respond(key, 0))
    response = ready.answer(key, version)
    assert set(errors_in(response)) == {0}
    if key == ApiKey.INIT_PRODUCER_ID or (key == ApiKey.END_TXN and version >= 5):
        assert (response.producer_id, response.producer_epoch) == (9, 2)
    if key in (ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS):
        assert [(s.transactional_id, s.producer_id) for s in response.transaction_states] == [("tx", 9)]
    if key == ApiKey.ADD_PARTITIONS_TO_TXN:
        (topic,) = response.results_by_topic_v3_and_below
        assert (topic.name, [p.partition_index for p in topic.results_by_partition]) == ("t", [3, 4])


def test_errors_of_partitions_are_counted(ready: Rig) -> None:
    counted: list[tuple[int, int, int]] = []
    ready.handler.broker.meters = Counting(counted)  # type: ignore[assignment]
    told(ready, ApiKey.ADD_PARTITIONS_TO_TXN, 3, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.INVALID_PRODUCER_ID_MAPPING, 2) in counted


class Counting:
    def __init__(self, counted: list[tuple[int, int, int]]) -> None:
        self._counted = counted

    def error(self, api_key: int, code: int, times: int) -> None:
        self._counted.append((api_key, code, times))


def test_no_transactions_are_described_without_the_coordinator(ready: Rig) -> None:
    response = ready.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest([]))
    assert response.transaction_states == []
    assert not ready.coordinator.take()


def test_many_are_described_a_part_at_a_time_and_each_once(ready: Rig) -> None:
    key, names = ApiKey.DESCRIBE_TRANSACTIONS, [f"tx{number}" for number in range(NAMES_AT_ONCE + 3)]
    ready.send(key, 0, DescribeTransactionsRequest([*names, *names]))
    asked = []
    for _ in range(2):
        ready.processor.replies()
        ((call, message),) = ready.coordinator.take()
        some = body_of(message).transactional_ids
        asked.append(len(some))
        states = [DescribeTransactionsResponse.TransactionState(0, name) for name in some]
        answered(ready, call, DescribeTransactionsResponse(transaction_states=states))
    assert asked == [NAMES_AT_ONCE, 3]
    assert [s.transactional_id for s in ready.answer(key, 0).transaction_states] == names


def committing(topics: int, partitions: int) -> Message:
    return TxnOffsetCommitRequest("tx", "g", 9, 1, topics=[Offsets("t", [Offset(0)] * partitions)] * topics)


def test_offsets_that_are_no_single_batch_are_refused(ready: Rig) -> None:
    response = ready.ask(ApiKey.TXN_OFFSET_COMMIT, 3, committing(1, 30_000))
    assert set(errors_in(response)) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert not ready.coordinator.take()
