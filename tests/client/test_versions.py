"""Which version a request goes in."""

from __future__ import annotations

import pytest

from mpbroker.client.versions import (
    VERSION_CAPS,
    ApiVersionsTalk,
    NodeApiVersions,
    VersionRange,
    client_throttles,
    expects_response,
    names_topics_by_id,
)
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey, valid_versions
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.wire import UnsupportedVersion


def test_the_highest_that_both_sides_have() -> None:
    ours = valid_versions(ApiKey.LIST_GROUPS)
    assert NodeApiVersions({ApiKey.LIST_GROUPS: VersionRange(0, 2)}).usable(ApiKey.LIST_GROUPS) == 2
    assert NodeApiVersions({ApiKey.LIST_GROUPS: VersionRange(0, 99)}).usable(ApiKey.LIST_GROUPS) == ours[-1]


@pytest.mark.parametrize("key", VERSION_CAPS)
def test_not_beyond_what_this_client_means(key: ApiKey) -> None:
    every = NodeApiVersions({key: VersionRange(0, 99)})
    assert every.usable(key) == VERSION_CAPS[key]
    assert every.usable(key, by_id=True) == valid_versions(key)[-1]


def test_a_fetch_by_id_goes_in_any_version() -> None:
    topic = m.FetchRequest.FetchTopic(topic="t", topic_id=bytes(15) + b"1")
    assert names_topics_by_id(m.FetchRequest(topics=[topic]))
    assert not names_topics_by_id(m.FetchRequest(topics=[topic, m.FetchRequest.FetchTopic(topic="u")]))
    assert not names_topics_by_id(m.FetchRequest())


@pytest.mark.parametrize(
    ("spans", "text"),
    [
        ({}, "the broker has no LIST_GROUPS requests"),
        (
            {ApiKey.LIST_GROUPS: VersionRange(98, 99)},
            "the broker speaks LIST_GROUPS v98 to v99, this client v0 to",
        ),
    ],
)
def test_a_broker_without_a_version_of_ours(spans: dict[int, VersionRange], text: str) -> None:
    with pytest.raises(UnsupportedVersion, match=text):
        NodeApiVersions(spans).usable(ApiKey.LIST_GROUPS)


def test_the_talk_ends_with_what_the_node_speaks() -> None:
    talk = ApiVersionsTalk()
    assert talk.request()[0] == valid_versions(ApiKey.API_VERSIONS)[-1]
    assert talk.received(m.ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION)) is None
    assert (talk.request()[0], talk.versions) == (0, None)
    api = m.ApiVersionsResponse.ApiVersion(ApiKey.LIST_GROUPS, 0, 1)
    assert talk.received(m.ApiVersionsResponse(api_keys=[api])) is None
    assert talk.versions is not None
    assert talk.versions.usable(ApiKey.LIST_GROUPS) == 1


def test_any_other_error_is_final() -> None:
    problem = ApiVersionsTalk().received(m.ApiVersionsResponse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    assert problem == "it does not name its versions (ApiVersions failed with error 31)"


def test_only_a_produce_without_acks_has_no_response() -> None:
    bodies = (m.ProduceRequest(acks=0), m.ProduceRequest(acks=1), m.ListGroupsRequest())
    assert [expects_response(body) for body in bodies] == [False, True, True]


def test_who_waits_for_a_throttle() -> None:
    assert [client_throttles(ApiKey.PRODUCE, version) for version in (5, 6)] == [False, True]
    assert client_throttles(ApiKey.DESCRIBE_CLUSTER, 0), "newer APIs are all of that kind"
