"""The members of the benchmark of groups: their bytes are those of the protocol, and they obey a broker."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Any

import pytest

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.codec import decode_request, encode_bytes
from mpbroker.protocol.headers import decode_request_header, encode_response_frame
from mpbroker.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    Message,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from ops.bench.frames import CORRELATION_ID
from ops.bench.group_members import Fleet, Member, MemberError, are_stable
from tests.support.threaded_server import HOST, ThreadedServer

ID = b"i" * 16
Owned = ConsumerGroupHeartbeatRequest.TopicPartitions
Assigned = ConsumerGroupHeartbeatResponse.TopicPartitions


def decoded(frame: bytes) -> Any:
    header, at = decode_request_header(frame, 4)
    body, end = decode_request(header.api_key, header.api_version, frame, at)
    assert end == len(frame)
    return body


def heartbeat_answer(error: int = 0, epoch: int = 3, partitions: list[int] | None = None) -> bytes:
    assignment = None
    if partitions is not None:
        assignment = ConsumerGroupHeartbeatResponse.Assignment(
            [Assigned(ID, partitions)] if partitions else []
        )
    response = ConsumerGroupHeartbeatResponse(0, error, "why", "m", epoch, 5000, assignment)
    return framed(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, response)


def framed(key: int, version: int, response: Message) -> bytes:
    return encode_bytes(encode_response_frame(key, version, CORRELATION_ID, response))


def test_a_member_joins_reports_what_it_owns_and_then_sends_nothing_but_its_epoch() -> None:
    member = Member("g", "t", "m")
    join = ConsumerGroupHeartbeatRequest(
        "g", "m", 0, rebalance_timeout_ms=300_000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    assert decoded(member.heartbeat()) == join
    member.take_heartbeat(heartbeat_answer(partitions=[1, 200]), now=10)
    assert (member.owned, member.due, member.is_settled) == ({(ID, 1), (ID, 200)}, 10, False)
    report = decoded(member.heartbeat())
    assert (report.member_epoch, report.subscribed_topic_names) == (3, None)
    assert [(one.topic_id, sorted(one.partitions)) for one in report.topic_partitions] == [(ID, [1, 200])]
    member.take_heartbeat(heartbeat_answer(), now=11)
    assert (member.due, member.is_settled) == (16, True)
    assert decoded(member.heartbeat()) == ConsumerGroupHeartbeatRequest("g", "m", 3, topic_partitions=None)
    member.take_heartbeat(heartbeat_answer(epoch=4, partitions=[200]), now=12)
    assert (member.lost, member.owned) == (1, {(ID, 200)})
    member.take_heartbeat(heartbeat_answer(epoch=4, partitions=[]), now=13)
    assert decoded(member.heartbeat()).topic_partitions == []
    assert decoded(member.leave()).member_epoch == -1


def test_a_fenced_member_joins_again_and_an_error_ends_the_run() -> None:
    member = Member("g", "t", "m")
    member.take_heartbeat(heartbeat_answer(partitions=[1]), now=1)
    member.take_heartbeat(heartbeat_answer(14), now=2)
    assert (member.epoch, member.due) == (3, 2.1)
    member.take_heartbeat(heartbeat_answer(110), now=3)
    assert (member.epoch, member.owned, member.lost, member.due) == (0, set(), 1, 3)
    with pytest.raises(MemberError, match="29: why"):
        member.take_heartbeat(heartbeat_answer(29), now=4)


def test_a_member_commits_with_its_epoch() -> None:
    member = Member("g", "t", "m")
    member.take_heartbeat(heartbeat_answer(partitions=[7]), now=1)
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(7, 1, committed_metadata="")
    topic = OffsetCommitRequest.OffsetCommitRequestTopic("t", partitions=[partition])
    assert decoded(member.commit()) == OffsetCommitRequest("g", 3, "m", topics=[topic])
    for error in (0, 113):
        found = OffsetCommitResponse.OffsetCommitResponsePartition(7, error)
        response = OffsetCommitResponse(
            topics=[OffsetCommitResponse.OffsetCommitResponseTopic("t", partitions=[found])]
        )
        with pytest.raises(MemberError, match="113") if error else contextlib.nullcontext():
            member.take_commit(framed(ApiKey.OFFSET_COMMIT, 9, response))


@pytest.mark.parametrize(
    ("numbers", "is_settled", "is_stable"),
    [
        ([[0, 1], [2]], True, True),
        ([[0, 1, 2], []], True, False),
        ([[0, 1], [1]], True, False),
        ([[0], [2]], True, False),
        ([[0, 1], [2]], False, False),
    ],
)
def test_a_group_is_stable_once_each_partition_has_one_owner_that_reported_it(
    numbers: list[list[int]], is_settled: bool, is_stable: bool
) -> None:
    members = [Member("g", "t") for _ in numbers]
    for member, partitions in zip(members, numbers, strict=True):
        member.take_heartbeat(heartbeat_answer(partitions=partitions), now=1)
        if is_settled:
            member.take_heartbeat(heartbeat_answer(), now=1)
    assert are_stable(members, 3) == is_stable


class Server(ThreadedServer):
    """Gives each member one partition, in order of joining, and accepts commits."""

    joined = 0

    def talk(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection.makefile("rb") as stream:
            while len(header := stream.read(4)) == 4:
                frame = header + stream.read(int.from_bytes(header))
                connection.sendall(self.answer(decoded(frame)))

    def answer(self, body: Any) -> bytes:
        if isinstance(body, OffsetCommitRequest):
            found = OffsetCommitResponse.OffsetCommitResponsePartition(0, 0)
            topic = OffsetCommitResponse.OffsetCommitResponseTopic("t", partitions=[found])
            return framed(ApiKey.OFFSET_COMMIT, 9, OffsetCommitResponse(topics=[topic]))
        if body.member_epoch:
            return heartbeat_answer(epoch=body.member_epoch)
        self.joined += 1
        return heartbeat_answer(partitions=[self.joined - 1])


def test_a_fleet_joins_commits_and_leaves() -> None:
    with Server() as server, Fleet((HOST, server.port)) as fleet:
        members = [Member("g", "t", due=time.monotonic()) for _ in range(5)]
        for member in members:
            fleet.add(member)
        fleet.run(lambda: are_stable(members, 5), 20)
        assert len(fleet.latencies) == 10
        fleet.start_commits()
        fleet.run(lambda: len(fleet.commits) > 50, 20)
        fleet.remove(members[0])
        assert {member.epoch for member in members[1:]} == {3}
        assert (members[0].epoch, len([*fleet.members])) == (-1, 4)
