"""Descriptions of groups of the consumer protocol, and what a client may not see of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mpbroker.config.broker import STANDARD_AUTHORIZER, BrokerConfig
from mpbroker.handlers.api_parts.acl_operations import NOT_ASKED
from mpbroker.handlers.apis import k69_consumer_group_describe
from mpbroker.handlers.calls.forwarding import NAMES_AT_ONCE
from mpbroker.ipc.acls import AclImage
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from mpbroker.security.acls import Operation, PatternType, Permission, ResourceType
from tests.support.forwarded_requests import answered, body_of, hand_on
from tests.support.handler_rig import Rig, topic_image
from tests.support.handler_rig import rig as make_rig

KEY, VERSION = ApiKey.CONSUMER_GROUP_DESCRIBE, 1
READY = (topic_image("t", 1),)
Response = ConsumerGroupDescribeResponse
SEEN, HIDDEN = (("seen", "seen", "seen"), ("hidden", "seen", "secret"))


def described(name: str, assigned: str = "t", target: str = "t") -> Response.DescribedGroup:
    assignments = [
        Response.Assignment([Response.TopicPartitions(topic_name=topic, partitions=[0])])
        for topic in (assigned, target)
    ]
    member = Response.Member("m", assignment=assignments[0], target_assignment=assignments[1])
    return Response.DescribedGroup(group_id=name, group_state="Stable", members=[member])


@pytest.fixture(name="guarded")
def _guarded() -> Iterator[Rig]:
    def allow(kind: ResourceType, name: str) -> AclImage:
        return AclImage(kind, name, PatternType.LITERAL, "User:*", "*", Operation.DESCRIBE, Permission.ALLOW)

    groups = [allow(ResourceType.GROUP, name) for name in ("seen", "hidden", "gone")]
    with make_rig(BrokerConfig(authorizer_class_name=STANDARD_AUTHORIZER)) as made:
        made.publish(*READY, acls=[*groups, allow(ResourceType.TOPIC, "seen")])
        yield made


@pytest.mark.parametrize("topics", [("secret", "seen"), ("seen", "secret")])
def test_a_group_with_a_topic_that_the_client_may_not_describe_has_no_members(
    guarded: Rig, topics: tuple[str, str]
) -> None:
    names = ["denied", "seen", "hidden", "gone"]
    request = ConsumerGroupDescribeRequest(names, include_authorized_operations=True)
    call, message = hand_on(guarded, KEY, VERSION, request)
    assert body_of(message).group_ids == names[1:]
    gone = Response.DescribedGroup(ErrorCode.GROUP_ID_NOT_FOUND, "none", "gone")
    answered(
        guarded,
        call,
        Response(groups=[described("seen", "seen", "seen"), described("hidden", *topics), gone]),
    )
    found = {group.group_id: group for group in guarded.answer(KEY, VERSION).groups}
    assert {name: (group.error_code, len(group.members)) for name, group in found.items()} == {
        "denied": (ErrorCode.GROUP_AUTHORIZATION_FAILED, 0),
        "seen": (ErrorCode.NONE, 1),
        "hidden": (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0),
        "gone": (ErrorCode.GROUP_ID_NOT_FOUND, 0),
    }
    may = {name: group.authorized_operations for name, group in found.items()}
    assert may == dict.fromkeys(names, NOT_ASKED) | {"seen": 1 << Operation.DESCRIBE}


def test_others_are_served_while_a_large_group_is_looked_through(
    guarded: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(k69_consumer_group_describe, "LOOKUPS_PER_PIECE", 2)
    call, _ = hand_on(guarded, KEY, VERSION, ConsumerGroupDescribeRequest(["seen"]))
    group = described("seen", "seen", "seen")
    group.members *= 5
    answered(guarded, call, Response(groups=[group]))
    assert guarded.serve_others() >= 4
    assert len(guarded.answer(KEY, VERSION).groups[0].members) == 5


def test_many_groups_are_asked_for_in_parts_and_each_once(ready: Rig) -> None:
    names = [f"g{number}" for number in range(NAMES_AT_ONCE + 3)]
    ready.send(KEY, VERSION, ConsumerGroupDescribeRequest([*names, *names[::-1]]))
    asked = []
    for _ in range(2):
        ready.processor.replies()
        ((call, message),) = ready.coordinator.take()
        some = body_of(message).group_ids
        asked += some
        answered(ready, call, Response(groups=[described(name) for name in some]))
    found = ready.answer(KEY, VERSION).groups
    assert asked == names == [group.group_id for group in found]
    assert {group.authorized_operations for group in found} == {NOT_ASKED}


def test_without_the_protocol_each_group_is_refused() -> None:
    with make_rig(BrokerConfig(group_coordinator_rebalance_protocols=("classic",))) as rig:
        rig.publish(*READY)
        groups = rig.ask(KEY, VERSION, ConsumerGroupDescribeRequest(["a", "b", "a"])).groups
    assert [(group.group_id, group.error_code) for group in groups] == [
        ("a", ErrorCode.UNSUPPORTED_VERSION),
        ("b", ErrorCode.UNSUPPORTED_VERSION),
    ]
