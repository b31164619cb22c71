"""Requests that are repeated byte by byte: answered alike, as long as nothing has changed."""

from __future__ import annotations

import pytest

from mpbroker.coordinator.groups.consumer.heartbeat import ConsumerGroupHeartbeat
from mpbroker.coordinator.runtime.repeats import CALL_BYTES_MAX, REPEATS_MAX, Repeats
from mpbroker.coordinator.runtime.requests import Caller
from mpbroker.ipc.calls import ForwardedRequest, decode, encode
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.codec import encode_bytes, encode_request
from mpbroker.protocol.messages import ConsumerGroupHeartbeatRequest
from tests.support.services_rig import ServicesRig

HEARTBEAT = ApiKey.CONSUMER_GROUP_HEARTBEAT


def test_an_answer_is_found_until_it_no_longer_holds() -> None:
    repeats, holds = Repeats(), [True]
    assert repeats.find(b"call") is None
    repeats.learn(b"call", lambda: holds[0], b"answer")
    assert [repeats.find(b"call"), repeats.find(b"other")] == [b"answer", None]
    holds[0] = False
    assert repeats.find(b"call") is None
    holds[0] = True
    assert repeats.find(b"call") is None, "it is served once, and learned again"


def test_what_is_kept_is_bounded() -> None:
    repeats = Repeats()
    for call in (b"", bytes(CALL_BYTES_MAX + 1)):
        repeats.learn(call, lambda: True, b"answer")
        assert repeats.find(call) is None
    for number in range(REPEATS_MAX + 1):
        repeats.learn(number.to_bytes(4), lambda: True, b"answer")
    assert repeats.find(bytes(4)) is None
    assert repeats.find(REPEATS_MAX.to_bytes(4)) == b"answer"
    repeats.forget()
    assert repeats.find(REPEATS_MAX.to_bytes(4)) is None


class Member:
    """A member that is settled, with a call that was answered once."""

    def __init__(self) -> None:
        self.rig = ServicesRig()
        join = ConsumerGroupHeartbeatRequest("g", "a", 0, rebalance_timeout_ms=60_000, topic_partitions=[])
        join.subscribed_topic_names = ["t"]
        self.rig.send(join, 1)
        self.rig.settle()
        beat = ConsumerGroupHeartbeatRequest("g", "a", 1, topic_partitions=None)
        beat.member_epoch = self.rig.groups.manager.groups["g"].members["a"].epoch  # type: ignore[union-attr]
        owned = ConsumerGroupHeartbeatRequest.TopicPartitions(self.rig.metadata.ids["t"], [0, 1, 2, 3])
        beat.topic_partitions = [owned]
        self.rig.send(beat, 1)
        self.rig.settle()
        beat.topic_partitions = None
        body = encode_bytes(encode_request(HEARTBEAT, 1, beat))
        self.call = encode(ForwardedRequest(int(HEARTBEAT), 1, "c", "/h", "User:u", body))

    def serve(self, number: int) -> bytes:
        """Serve the call; return the encoded answer."""
        request = decode(self.call)
        assert isinstance(request, ForwardedRequest)
        self.rig.services.receive(Caller(0, 0, number, encoded=self.call), request)
        return encode(self.rig.answers[number])


def test_a_settled_member_is_answered_without_being_served(monkeypatch: pytest.MonkeyPatch) -> None:
    member = Member()
    answer = member.serve(-1)
    monkeypatch.delattr(ConsumerGroupHeartbeat, "_unchanged")
    assert member.rig.services.repeats.find(member.call) == answer


@pytest.mark.parametrize("change", ["metadata", "member", "unconfirmed", "topics", "epoch", "unload"])
def test_after_a_change_the_member_is_served(change: str) -> None:
    member = Member()
    member.serve(-1)
    assert member.rig.services.repeats.find(member.call) is not None
    group = member.rig.groups.manager.find_consumer("g")
    assert group is not None
    match change:
        case "metadata":
            member.rig.metadata = member.rig.metadata.draft()
        case "member":
            other = ConsumerGroupHeartbeatRequest("g", "b", 0, rebalance_timeout_ms=1, topic_partitions=[])
            other.subscribed_topic_names = ["t"]
            member.rig.send(other, 1)
        case "unconfirmed":
            group.unconfirmed.add("a")
        case "topics":
            member.rig.groups.topics_changed(["t"])
        case "epoch":
            member.rig.send(ConsumerGroupHeartbeatRequest("g", "a", -1), 1)
        case "unload":
            member.rig.services.log_died()
    assert member.rig.services.repeats.find(member.call) is None
