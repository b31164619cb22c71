"""Heartbeats of the consumer protocol: the checks before the coordinator gets them, in their order."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from mpbroker.config.broker import STANDARD_AUTHORIZER, BrokerConfig
from mpbroker.ipc.acls import AclImage
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.codec import encode_bytes, encode_request
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from mpbroker.security.acls import Operation, PatternType, Permission, ResourceType
from tests.support.forwarded_requests import answered, hand_on
from tests.support.handler_rig import Rig, topic_image
from tests.support.handler_rig import rig as make_rig

KEY = ApiKey.CONSUMER_GROUP_HEARTBEAT
READY = (topic_image("seen", 1),)


def join(*topics: str, group: str = "g") -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group, "m", 0, rebalance_timeout_ms=1000, subscribed_topic_names=[*topics], topic_partitions=[]
    )


@pytest.fixture(name="guarded")
def _guarded() -> Iterator[Rig]:
    def allow(kind: ResourceType, name: str, operation: Operation) -> AclImage:
        return AclImage(kind, name, PatternType.LITERAL, "User:*", "*", operation, Permission.ALLOW)

    acls = [
        allow(ResourceType.GROUP, "g", Operation.READ),
        allow(ResourceType.TOPIC, "seen", Operation.DESCRIBE),
    ]
    with make_rig(BrokerConfig(authorizer_class_name=STANDARD_AUTHORIZER)) as made:
        made.publish(*READY, acls=acls)
        yield made


@pytest.mark.parametrize("version", range(2))
def test_a_client_that_may_describe_its_topics_is_passed_on_as_it_came(guarded: Rig, version: int) -> None:
    request = join("seen", "seen")
    call, message = hand_on(guarded, KEY, version, request)
    assert message.body == encode_bytes(encode_request(KEY, version, request))
    answered(guarded, call, ConsumerGroupHeartbeatResponse(member_id="m", member_epoch=3))
    assert guarded.answer(KEY, version).member_epoch == 3


@pytest.mark.parametrize("topics", [("secret",), ("seen", "secret"), ("secret", "seen")])
def test_one_topic_that_a_client_may_not_describe_refuses_all(guarded: Rig, topics: tuple[str, ...]) -> None:
    response = guarded.ask(KEY, 1, join(*topics))
    assert response.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert guarded.coordinator.take() == []


def test_names_are_not_looked_at_for_a_group_that_the_client_may_not_read(
    guarded: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mpbroker.kafka.authorizer.logger")
    response = guarded.ask(KEY, 1, join("secret", group="other"))
    assert response.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert "other" in caplog.text
    assert "secret" not in caplog.text


def test_others_are_served_while_many_topics_are_looked_up(
    guarded: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpbroker.handlers.context.LOOKUPS_PER_PIECE", 2)
    guarded.send(KEY, 1, join(*(f"t{number}" for number in range(10))))
    assert guarded.serve_others() >= 4
    assert guarded.answer(KEY, 1).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_without_the_protocol_a_heartbeat_is_refused_first_of_all() -> None:
    config = BrokerConfig(
        authorizer_class_name=STANDARD_AUTHORIZER, group_coordinator_rebalance_protocols=("classic",)
    )
    with make_rig(config) as rig:
        rig.publish(*READY)
        response = rig.ask(KEY, 1, join("secret", group="other"))
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert "group.coordinator.rebalance.protocols" in response.error_message


def test_without_the_protocol_the_turn_leaves_heartbeats_to_python() -> None:
    with make_rig(BrokerConfig(group_coordinator_rebalance_protocols=("classic",))) as rig:
        rig.publish(*READY)
        response = rig.ask(KEY, 1, ConsumerGroupHeartbeatRequest("g", "m", 5, topic_partitions=None))
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_a_heartbeat_that_no_record_can_hold_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with make_rig(BrokerConfig(message_max_bytes=10_000)) as rig:
        rig.publish(*READY)
        response = rig.ask(KEY, 1, join(*(f"topic-{number:04}" for number in range(1_000))))
        assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert "message.max.bytes is 10000" in caplog.text
        hand_on(rig, KEY, 1, join(*(f"topic-{number:04}" for number in range(500))))
