"""Answers of administration as they are on the wire, where clients in other languages look at them."""

from __future__ import annotations

from typing import Any

import msgspec

from mpbroker.config.broker import STANDARD_AUTHORIZER
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import Message
from ops.bench.brokers import Broker
from tests.support.client_tools import eventually
from tests.support.real_brokers import TRANSACTIONS, TopicMaker
from tests.support.socket_client import SocketClient

BROKER_SETTINGS = {
    **TRANSACTIONS,
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:ANONYMOUS",
}
TOPIC, BROKER = 2, 4
TIMEOUT_MS = 60_000


def error_messages(answer: Any) -> list[str | None]:
    """Return the error messages of a response, the outer first. All its error codes must be NONE."""
    found: list[str | None] = []
    if isinstance(answer, list):
        return [message for one in answer for message in error_messages(one)]
    if isinstance(answer, msgspec.Struct):
        for name in answer.__struct_fields__:
            value = getattr(answer, name)
            if name == "error_code":
                assert value == ErrorCode.NONE, answer
            found += [value] if name == "error_message" else error_messages(value)
    return found


def acl_requests(topic: str) -> list[tuple[ApiKey, int, Message, list[str | None]]]:
    literal, read, anything, allow = 3, 3, 1, 3
    acl = m.CreateAclsRequest.AclCreation(TOPIC, topic, literal, "User:ann", "*", read, allow)
    one = m.DeleteAclsRequest.DeleteAclsFilter(TOPIC, topic, literal, None, None, anything, anything)
    described = m.DescribeAclsRequest(TOPIC, topic, literal, None, None, anything, anything)
    return [
        (ApiKey.CREATE_ACLS, 3, m.CreateAclsRequest([acl]), [""]),
        (ApiKey.DESCRIBE_ACLS, 3, described, [""]),
        (ApiKey.DELETE_ACLS, 3, m.DeleteAclsRequest([one]), [None, None]),
    ]


def config_requests(topic: str) -> list[tuple[ApiKey, int, Message, list[str | None]]]:
    described = m.DescribeConfigsRequest.DescribeConfigsResource
    alter, old = m.IncrementalAlterConfigsRequest, m.AlterConfigsRequest
    change = alter.AlterConfigsResource(TOPIC, topic, [alter.AlterableConfig("retention.ms", 0, "100000")])
    changed = old.AlterConfigsResource(TOPIC, topic, [old.AlterableConfig("retention.ms", "100000")])
    both = [described(TOPIC, topic), described(BROKER, "")]
    return [
        (ApiKey.DESCRIBE_CONFIGS, 4, m.DescribeConfigsRequest(both), ["", ""]),
        (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, alter([change]), [None]),
        (ApiKey.ALTER_CONFIGS, 2, old([changed]), [None]),
    ]


def user_requests() -> list[tuple[ApiKey, int, Message, list[str | None]]]:
    scram, quota = m.AlterUserScramCredentialsRequest, m.AlterClientQuotasRequest
    credential = scram.ScramCredentialUpsertion("ann", 1, 4096, b"salt", b"p" * 32)
    bound = quota.EntryData(
        [quota.EntityData("user", "ann")], [quota.OpData("producer_byte_rate", 1e6, False)]
    )
    described = m.DescribeUserScramCredentialsRequest(None)
    return [
        (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, scram([], [credential]), [None]),
        (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, described, ["", ""]),
        (ApiKey.ALTER_CLIENT_QUOTAS, 1, quota([bound]), [None]),
        (ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, m.DescribeClientQuotasRequest([]), [""]),
    ]


def topic_requests(topic: str) -> list[tuple[ApiKey, int, Message, list[str | None]]]:
    create, grow = m.CreateTopicsRequest, m.CreatePartitionsRequest
    grown = grow([grow.CreatePartitionsTopic(topic, 2, None)], TIMEOUT_MS)
    doomed = m.DeleteTopicsRequest([], [m.DeleteTopicsRequest.DeleteTopicState(f"{topic}-2")], TIMEOUT_MS)
    producers = m.DescribeProducersRequest([m.DescribeProducersRequest.TopicRequest(topic, [0])])
    return [
        (ApiKey.CREATE_TOPICS, 7, create([create.CreatableTopic(f"{topic}-2", 1, 1)]), [None]),
        (ApiKey.CREATE_PARTITIONS, 3, grown, [None]),
        (ApiKey.DELETE_TOPICS, 6, doomed, [None]),
        (
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
            0,
            m.ListPartitionReassignmentsRequest(TIMEOUT_MS, None),
            [None],
        ),
        (ApiKey.DESCRIBE_PRODUCERS, 0, producers, [None]),
    ]


def coordinator_requests() -> list[tuple[ApiKey, int, Message, list[str | None]]]:
    return [
        (ApiKey.FIND_COORDINATOR, 2, m.FindCoordinatorRequest("g"), ["NONE"]),
        (ApiKey.FIND_COORDINATOR, 3, m.FindCoordinatorRequest("g"), ["NONE"]),
        (ApiKey.FIND_COORDINATOR, 4, m.FindCoordinatorRequest(coordinator_keys=["g"]), ["", ""]),
        (ApiKey.DESCRIBE_CLUSTER, 1, m.DescribeClusterRequest(), [None]),
        (ApiKey.DESCRIBE_GROUPS, 5, m.DescribeGroupsRequest(["none"]), [None]),
    ]


def test_error_messages_of_what_succeeds(broker: Broker, new_topic: TopicMaker) -> None:
    """Some are null and some are empty, and one is "NONE"."""
    topic = new_topic(1)
    with SocketClient(broker) as client:

        def has_coordinator() -> bool:
            asked = m.FindCoordinatorRequest(coordinator_keys=["g"])
            (found,) = client.ask(ApiKey.FIND_COORDINATOR, 4, asked).coordinators
            return bool(found.error_code == ErrorCode.NONE)

        eventually(has_coordinator, "there is a coordinator")
        requests = [
            *acl_requests(topic),
            *config_requests(topic),
            *user_requests(),
            *topic_requests(topic),
            *coordinator_requests(),
        ]
        for key, version, body, expected in requests:
            assert error_messages(client.ask(key, version, body)) == expected, key.name
