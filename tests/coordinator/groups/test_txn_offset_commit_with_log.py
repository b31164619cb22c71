"""Offsets in transactions with the real log process: either dies between the commit and its marker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from mpbroker.ipc.calls import ForwardedRequest
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    EndTxnRequest,
    InitProducerIdRequest,
    Message,
    TxnOffsetCommitRequest,
)
from tests.support.coordinator_party import RETRIED, CoordinatorParty
from tests.support.coordinator_tree import CoordinatorTree

VERSIONS = {InitProducerIdRequest: (22, 5), EndTxnRequest: (26, 5), TxnOffsetCommitRequest: (28, 5)}


@pytest.fixture
def party(make_tree: Callable[..., CoordinatorTree]) -> Iterator[CoordinatorParty]:
    made = CoordinatorParty(make_tree)
    yield made
    made.log.kill()


def ask(party: CoordinatorParty, request: Message) -> Any:
    """Asks until the coordinator can say something, as clients do."""
    key, version = VERSIONS[type(request)]  # type: ignore[index]
    while True:
        call = ForwardedRequest(key, version, "c", "/h", msgspec.msgpack.encode(request))
        sent = party.tree.handlers[0].call(call)
        party.tree.until(lambda sent=sent: party.heard(sent, key) is not None)
        answer = party.heard(sent, key)
        code = answer if isinstance(answer, ErrorCode) else getattr(answer, "error_code", 0)
        if code not in (*RETRIED, ErrorCode.CONCURRENT_TRANSACTIONS):
            return answer


@pytest.mark.parametrize("victim", ["coordinator", "log"])
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_death_between_commit_and_marker(party: CoordinatorParty, victim: str, is_commit: bool) -> None:
    party.ask(party.commit(3))
    made = ask(party, InitProducerIdRequest("id", 60_000))
    producer = made.producer_id, made.producer_epoch
    asked = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(0, 9)
    topics = [TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic("t", [asked])]
    answer = ask(party, TxnOffsetCommitRequest("id", "g", *producer, topics=topics))
    assert answer.topics[0].partitions[0].error_code == 0
    party.kill_coordinator() if victim == "coordinator" else party.kill_log()
    assert party.committed() == [3, -1]
    ended = ask(party, EndTxnRequest("id", *producer, committed=is_commit))
    assert (ended.error_code, ended.producer_epoch) == (0, producer[1] + 1)
    # Decided, and perhaps without its marker.
    party.kill_coordinator() if victim == "coordinator" else party.kill_log()
    if is_commit:
        party.tree.until(lambda: party.committed() == [9, -1])
    else:
        ask(party, InitProducerIdRequest("id", 60_000))
        assert party.committed() == [3, -1]
