"""A coordinator and a log process, either of which can be killed, and handlers that forward requests."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from mpbroker.handlers.apis import all_apis
from mpbroker.ipc.calls import (
    CreateTopic,
    CreateTopics,
    Failed,
    ForwardedRequest,
    ForwardedResponse,
    HoldsEnded,
)
from mpbroker.ipc.topology import LOG
from mpbroker.protocol.codec import decode_response, encode_bytes, encode_request
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    AddPartitionsToTxnRequest,
    ConsumerGroupHeartbeatRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    ListGroupsRequest,
    Message,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)
from tests.support.coordinator_tree import CoordinatorTree
from tests.support.group_rig import subscription
from tests.support.real_log import RealLog

KEYS = {
    OffsetCommitRequest: 8,
    OffsetFetchRequest: 9,
    JoinGroupRequest: 11,
    HeartbeatRequest: 12,
    SyncGroupRequest: 14,
    ListGroupsRequest: 16,
    InitProducerIdRequest: 22,
    AddPartitionsToTxnRequest: 24,
    EndTxnRequest: 26,
    TxnOffsetCommitRequest: 28,
    DescribeTransactionsRequest: 65,
    ConsumerGroupHeartbeatRequest: 68,
}
VERSIONS = {8: 9, 9: 9, 14: 4}
RETRIED = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)


def version_of(key: int) -> int:
    return VERSIONS.get(key, all_apis()[key].latest)


def forwarded(key: int, version: int, request: Message) -> ForwardedRequest:
    """Return a request as a handler passes it on."""
    body = encode_bytes(encode_request(key, version, request))
    return ForwardedRequest(key, version, "c", "/h", "User:u", body)


class CoordinatorParty:
    """A coordinator and a log process, either of which can be killed, and handlers that ask about groups."""

    def __init__(self, make_tree: Callable[..., CoordinatorTree], **options: int) -> None:
        settings = {"group_initial_rebalance_delay_ms": 0, "offsets_topic_num_partitions": 3, **options}
        self.tree = make_tree(real_log=True, **settings)
        self.lives = itertools.count(2)
        self.log = RealLog(self.tree, 1)
        self.tree.until(self.log.is_ready)
        self.tree.serve()
        self.tree.ask(CreateTopics([CreateTopic("t", 2)]))

    def call(self, request: Message, number: int = 0) -> int:
        key = KEYS[type(request)]  # type: ignore[index]
        sent: int = self.tree.handlers[number].call(forwarded(key, version_of(key), request))
        return sent

    def heard(self, request: int, key: int, number: int = 0) -> Any:
        """The response, or the error code of the whole request; None if there is no answer yet."""
        answer = self.tree.handlers[number].answers.get(request)
        if isinstance(answer, ForwardedResponse):
            return decode_response(key, version_of(key), answer.body)[0]
        return ErrorCode(answer.error) if isinstance(answer, Failed) else None  # type: ignore[call-arg]

    def ask(self, request: Message, number: int = 0) -> Any:
        """Asks until the coordinator can say something, as clients do."""
        key = KEYS[type(request)]  # type: ignore[index]
        while True:
            answer = self.answer_to(self.call(request, number), key, number)
            if answer not in RETRIED:
                return answer

    def answer_to(self, request: int, key: int, number: int = 0) -> Any:
        """Wait for the answer to a request that was made."""
        self.tree.until(lambda: self.heard(request, key, number) is not None)
        return self.heard(request, key, number)

    def begin_transaction(self, *partitions: int) -> tuple[int, int]:
        """Return the producer of id x, whose transaction has these partitions of topic t."""
        for handler in self.tree.handlers:
            handler.call(HoldsEnded())
        begun = self.ask(InitProducerIdRequest("x", 60_000))
        producer = begun.producer_id, begun.producer_epoch
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic("t", list(partitions))
        self.ask(AddPartitionsToTxnRequest("x", *producer, [topic]))
        return producer

    def commit(
        self, offset: int, partition: int = 0, group: str = "g", topic: str = "t"
    ) -> OffsetCommitRequest:
        partitions = [OffsetCommitRequest.OffsetCommitRequestPartition(partition, offset)]
        topics = [OffsetCommitRequest.OffsetCommitRequestTopic(topic, partitions=partitions)]
        return OffsetCommitRequest(group, topics=topics)

    def committed(self, group: str = "g", topic: str = "t") -> list[int]:
        asked = OffsetFetchRequest.OffsetFetchRequestGroup(
            group, topics=[OffsetFetchRequest.OffsetFetchRequestTopics(topic, partition_indexes=[0, 1])]
        )
        answers: list[Any] = []

        def is_loaded() -> bool:
            answers.append(self.ask(OffsetFetchRequest(groups=[asked])).groups[0])
            return not answers[-1].error_code

        self.tree.until(is_loaded)
        return [p.committed_offset for p in answers[-1].topics[0].partitions]

    def join(self, member_id: str = "", protocol: str = "range") -> JoinGroupRequest:
        protocols = [JoinGroupRequest.JoinGroupRequestProtocol(protocol, subscription("t"))]
        return JoinGroupRequest("g", 10_000, 10_000, member_id, None, "consumer", protocols)

    def stable_member(self) -> str:
        """The only member of a stable group."""
        member_id: str = self.ask(self.join()).member_id
        generation = self.ask(self.join(member_id)).generation_id
        share = SyncGroupRequest.SyncGroupRequestAssignment(member_id, b"all")
        answer = self.ask(SyncGroupRequest("g", generation, member_id, assignments=[share]))
        assert answer.assignment == b"all"
        return member_id

    def kill_coordinator(self) -> None:
        self.tree.kill(self.log.fence)
        self.tree.serve()

    def kill_log(self) -> None:
        self.log.kill()
        self.tree.fence(LOG, 0)
        self.tree.memory.reset_rings_of(LOG)
        life = next(self.lives)
        self.log = RealLog(self.tree, life)
        self.tree.until(self.log.is_ready)
        self.tree.fence(LOG, life)
