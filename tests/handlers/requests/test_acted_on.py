"""The audit log names what a request of administration acts on, and none of its values."""

from __future__ import annotations

from typing import Any

import pytest

from mpbroker.handlers.requests.acted_on import NAMES, names_in
from mpbroker.handlers.requests.permissions import ADMINISTRATION
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.messages import REQUESTS
from tests.support.filled_requests import filled

SECRET = "5ecret"
DeletedTopic = m.DeleteTopicsRequest.DeleteTopicState
Alter, Change = m.AlterConfigsRequest, m.IncrementalAlterConfigsRequest
Forget, Markers, Move = m.OffsetDeleteRequest, m.WriteTxnMarkersRequest, m.AlterReplicaLogDirsRequest
Quotas, Scram = m.AlterClientQuotasRequest, m.AlterUserScramCredentialsRequest


def topics(cls: Any) -> Any:
    """A request about a topic, of an API whose topics have partitions or have none."""
    made: Any = filled(cls)
    made.topics[0].name = "t"
    return made


REQUESTS_AND_NAMES: list[tuple[ApiKey, Any, tuple[str, ...]]] = [
    (ApiKey.CREATE_TOPICS, topics(m.CreateTopicsRequest), ("t",)),
    (
        ApiKey.DELETE_TOPICS,
        m.DeleteTopicsRequest(["old"], [DeletedTopic("t"), DeletedTopic(None, bytes(16))]),
        ("old", "t", "0" * 32),
    ),
    (ApiKey.DELETE_RECORDS, topics(m.DeleteRecordsRequest), ("t-0",)),
    (ApiKey.CREATE_PARTITIONS, topics(m.CreatePartitionsRequest), ("t",)),
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, topics(m.AlterPartitionReassignmentsRequest), ("t-0",)),
    (
        ApiKey.WRITE_TXN_MARKERS,
        Markers([Markers.WritableTxnMarker(7, 0, False, [Markers.WritableTxnMarkerTopic("t", [0])])]),
        ("producer 7 abort t",),
    ),
    (
        ApiKey.CREATE_ACLS,
        m.CreateAclsRequest([m.CreateAclsRequest.AclCreation(2, "t", 4, "User:ann", "*", 4, 3)]),
        ("Allow User:ann from * Write Prefixed Topic t",),
    ),
    (
        ApiKey.CREATE_ACLS,
        m.CreateAclsRequest([m.CreateAclsRequest.AclCreation(99, "t", 4, "User:ann", "*", 4, -3)]),
        ("unknown (-3) User:ann from * Write Prefixed unknown (99) t",),
    ),
    (
        ApiKey.DELETE_ACLS,
        m.DeleteAclsRequest([m.DeleteAclsRequest.DeleteAclsFilter(2, None, 3, None, "*", 1, 1)]),
        ("Any any from * Any Literal Topic any",),
    ),
    (
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        Change([Change.AlterConfigsResource(4, "1", [Change.AlterableConfig("k", 0, SECRET)])], True),
        ("Broker 1: k", "(only checked)"),
    ),
    (
        ApiKey.ALTER_CONFIGS,
        Alter([Alter.AlterConfigsResource(2, "t", [Alter.AlterableConfig("retention.ms", SECRET)])]),
        ("Topic t: retention.ms",),
    ),
    (
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        Move([Move.AlterReplicaLogDir("/data", [Move.AlterReplicaLogDirTopic("t", [3])])]),
        ("t-3 to /data",),
    ),
    (ApiKey.DELETE_GROUPS, m.DeleteGroupsRequest(["g"]), ("g",)),
    (
        ApiKey.ELECT_LEADERS,
        m.ElectLeadersRequest(0, [m.ElectLeadersRequest.TopicPartitions("t", [0, 1])]),
        ("t-0", "t-1"),
    ),
    (ApiKey.ELECT_LEADERS, m.ElectLeadersRequest(0, None), ()),
    (
        ApiKey.OFFSET_DELETE,
        Forget("g", [Forget.OffsetDeleteRequestTopic("t", [Forget.OffsetDeleteRequestPartition(0)])]),
        ("g t-0",),
    ),
    (
        ApiKey.ALTER_CLIENT_QUOTAS,
        Quotas(
            [
                Quotas.EntryData(
                    [Quotas.EntityData("user", None)], [Quotas.OpData("producer_byte_rate", 1.0, False)]
                )
            ]
        ),
        ("user=<default> producer_byte_rate",),
    ),
    (
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        Scram(
            [Scram.ScramCredentialDeletion("bob", 9)],
            [Scram.ScramCredentialUpsertion("ann", 2, 4096, SECRET.encode(), SECRET.encode())],
        ),
        ("bob mechanism 9", "ann SCRAM-SHA-512"),
    ),
    (
        ApiKey.UPDATE_FEATURES,
        m.UpdateFeaturesRequest(
            feature_updates=[m.UpdateFeaturesRequest.FeatureUpdateKey("group.version", 0)], validate_only=True
        ),
        ("group.version to 0", "(only checked)"),
    ),
    (ApiKey.UNREGISTER_BROKER, m.UnregisterBrokerRequest(7), ("broker 7",)),
    (
        ApiKey.CREATE_DELEGATION_TOKEN,
        m.CreateDelegationTokenRequest(
            "User", "ann", [m.CreateDelegationTokenRequest.CreatableRenewers("User", "bob")], 1
        ),
        ("User:ann", "renewer User:bob"),
    ),
    (ApiKey.RENEW_DELEGATION_TOKEN, m.RenewDelegationTokenRequest(SECRET.encode(), 1), ()),
    (ApiKey.EXPIRE_DELEGATION_TOKEN, m.ExpireDelegationTokenRequest(SECRET.encode(), 1), ()),
    (
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        m.DescribeDelegationTokenRequest(
            [m.DescribeDelegationTokenRequest.DescribeDelegationTokenOwner("User", "ann")]
        ),
        ("User:ann",),
    ),
]


@pytest.mark.parametrize(("key", "body", "names"), REQUESTS_AND_NAMES)
def test_names(key: ApiKey, body: Any, names: tuple[str, ...]) -> None:
    found = names_in(key, body)
    assert found == (names, 0)
    assert SECRET not in str(found)


def test_each_request_of_administration_has_its_names() -> None:
    assert NAMES.keys() >= ADMINISTRATION
    assert {key for key, *_ in REQUESTS_AND_NAMES} == NAMES.keys()


@pytest.mark.parametrize("key", NAMES, ids=lambda key: key.name)
def test_requests_with_and_without_all_their_lists(key: ApiKey) -> None:
    for body in (filled(REQUESTS[key]), REQUESTS[key]()):
        assert names_in(key, body).more == 0


def test_an_unknown_request_has_no_names() -> None:
    assert names_in(ApiKey.FETCH, m.FetchRequest()) == ((), 0)
