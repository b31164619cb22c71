"""The calls of a request from the coordinator's ring to the queued record: few enough to be followed."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from mpbroker.coordinator.runtime.write_queue import WriteQueue
from mpbroker.coordinator.services import Services
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)
from mpbroker.protocol.messages import Message as Request
from tests.support.group_rig import subscription
from tests.support.services_rig import ServicesRig

CALLS_MAX = 8
# Coordinator._called, which stands between the ring and Services.receive.
CALLS_BEFORE_SERVICES = 1

Producer = tuple[int, int]


class PathRig(ServicesRig):
    """`paths` has the calls of each record that was queued, the outermost first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.paths: list[list[str]] = []
        append = WriteQueue.append

        def recorded(*args: object, **options: object) -> None:
            frame, path = sys._getframe(1), ["WriteQueue.append"]
            while frame is not None and frame.f_code is not Services.receive.__code__:
                path.append(frame.f_code.co_qualname)
                frame = frame.f_back  # type: ignore[assignment]
            self.paths.append(["Services.receive", *reversed(path)])
            append(*args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(WriteQueue, "append", recorded)

    def path_of(self, request: Request, version: int) -> list[str]:
        """Return the path of the only record that the request queues, which becomes durable."""
        self.paths.clear()
        number = self.send(request, version)
        (path,) = self.paths
        self.settle()
        answer = self.heard(number)
        assert not isinstance(answer, ErrorCode), answer
        return path

    def producer(self) -> Producer:
        answer = self.heard(self.send_and_settle(InitProducerIdRequest("x", 60_000), 5))
        return answer.producer_id, answer.producer_epoch

    def with_partition(self) -> Producer:
        producer = self.producer()
        self.send_and_settle(add_partitions(producer), 3)
        return producer

    def send_and_settle(self, request: Request, version: int) -> int:
        number = self.send(request, version)
        self.settle()
        return number


def add_partitions(producer: Producer) -> AddPartitionsToTxnRequest:
    topics = [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic("t", [0])]
    return AddPartitionsToTxnRequest("x", *producer, topics)


def commit_in_transaction(producer: Producer) -> TxnOffsetCommitRequest:
    asked = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(0, 5)
    topics = [TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic("t", [asked])]
    return TxnOffsetCommitRequest("x", "g", *producer, topics=topics)


def join() -> JoinGroupRequest:
    protocols = [JoinGroupRequest.JoinGroupRequestProtocol("range", subscription("t"))]
    return JoinGroupRequest("g", 10_000, 60_000, "", "instance", "consumer", protocols)


def init_producer_id(rig: PathRig) -> list[str]:
    """Ask for an unknown id while there are producer ids in stock."""
    rig.send_and_settle(InitProducerIdRequest("y", 60_000), 5)
    return rig.path_of(InitProducerIdRequest("x", 60_000), 5)


def init_producer_id_again(rig: PathRig) -> list[str]:
    rig.producer()
    return rig.path_of(InitProducerIdRequest("x", 60_000), 5)


def add_partitions_to_txn(rig: PathRig) -> list[str]:
    return rig.path_of(add_partitions(rig.producer()), 3)


def add_offsets_to_txn(rig: PathRig) -> list[str]:
    return rig.path_of(AddOffsetsToTxnRequest("x", *rig.producer(), "g"), 3)


def end_txn(rig: PathRig) -> list[str]:
    return rig.path_of(EndTxnRequest("x", *rig.with_partition(), committed=True), 4)


def end_txn_of_tv2(rig: PathRig) -> list[str]:
    return rig.path_of(EndTxnRequest("x", *rig.with_partition(), committed=True), 5)


def txn_offset_commit(rig: PathRig) -> list[str]:
    producer = rig.producer()
    rig.send_and_settle(AddOffsetsToTxnRequest("x", *producer, "g"), 3)
    return rig.path_of(commit_in_transaction(producer), 3)


def txn_offset_commit_of_tv2(rig: PathRig) -> list[str]:
    """The partition is added with the offsets, so the transaction is written before them."""
    rig.path_of(commit_in_transaction(rig.producer()), 5)
    return rig.paths[0]


def offset_commit(rig: PathRig) -> list[str]:
    asked = OffsetCommitRequest.OffsetCommitRequestPartition(0, 5)
    topics = [OffsetCommitRequest.OffsetCommitRequestTopic("t", partitions=[asked])]
    return rig.path_of(OffsetCommitRequest("g", topics=topics), 9)


def sync_group(rig: PathRig) -> list[str]:
    """The leader's, with the assignment."""
    number = rig.send(join(), 9)
    while rig.heard(number) is None:
        rig.wait()
    joined = rig.heard(number)
    share = SyncGroupRequest.SyncGroupRequestAssignment(joined.member_id, b"all")
    request = SyncGroupRequest("g", joined.generation_id, joined.member_id, "instance", assignments=[share])
    return rig.path_of(request, 4)


def join_group(rig: PathRig) -> list[str]:
    """Join as a static member that was started anew, the only join that writes at once."""
    sync_group(rig)
    return rig.path_of(join(), 9)


@pytest.mark.parametrize(
    "path_of",
    [
        init_producer_id,
        init_producer_id_again,
        add_partitions_to_txn,
        add_offsets_to_txn,
        end_txn,
        end_txn_of_tv2,
        txn_offset_commit,
        txn_offset_commit_of_tv2,
        offset_commit,
        sync_group,
        join_group,
    ],
)
def test_few_calls_lie_between_the_ring_and_the_queued_record(
    path_of: Callable[[PathRig], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_of(PathRig(monkeypatch))
    assert len(path) + CALLS_BEFORE_SERVICES <= CALLS_MAX, " > ".join(path)
