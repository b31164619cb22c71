"""What is known of a cluster, and when it is asked for again."""

from __future__ import annotations

import pytest

from mpbroker.client.backoff import ExponentialBackoff
from mpbroker.client.config import parse_servers
from mpbroker.client.metadata import NEVER_MS, Metadata, Node, bootstrap_nodes
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode
from tests.client.fakes import metadata as answer
from tests.client.fakes import middle

MAX_AGE_MS = 300_000


@pytest.fixture
def metadata() -> Metadata:
    return Metadata([("a", 1), ("b", 2)], ExponentialBackoff(100, 1_000, middle), MAX_AGE_MS)


def test_it_begins_with_the_bootstrap_servers(metadata: Metadata) -> None:
    assert metadata.nodes() == [Node(-2, "a", 1), Node(-3, "b", 2)]
    metadata.updated(answer(7), 0)
    assert metadata.nodes() == [Node(7, "host7", 9092)]
    metadata.rebootstrap()
    assert metadata.node_ids() == {-2, -3}


def test_what_an_answer_says(metadata: Metadata) -> None:
    metadata.updated(answer(1, 2, leaders={1: 2, 0: -1}), 0)
    assert metadata.partitions("t") == [0, 1]
    assert metadata.leader("t", 1) == Node(2, "host2", 9092) == metadata.node(2)
    assert metadata.leader("t", 0) is None
    assert metadata.leader("t", 5) is metadata.leader("u", 0) is None
    assert metadata.error("t") == 0


def test_nobody_asks_while_nobody_tracks_a_topic(metadata: Metadata) -> None:
    metadata.request_update()
    assert metadata.time_to_next_update_ms(0) == NEVER_MS


def test_it_is_asked_for_when_it_is_old_or_wrong(metadata: Metadata) -> None:
    metadata.track("t", auto_create=True)
    assert metadata.time_to_next_update_ms(0) == 0
    request = metadata.request()
    assert [topic.name for topic in request.topics or ()] == ["t"]
    assert request.allow_auto_topic_creation
    metadata.updated(answer(1, leaders={0: 1}), 0)
    assert metadata.time_to_next_update_ms(0) == MAX_AGE_MS
    metadata.request_update()
    assert metadata.time_to_next_update_ms(0) == 100, "not before the back-off is over"
    assert metadata.time_to_next_update_ms(100) == 0


def test_an_answer_that_settles_nothing_is_asked_for_again_less_and_less_often(metadata: Metadata) -> None:
    metadata.track("t")
    rests = []
    for unsettled in (answer(1, leaders={0: -1}), answer(1, leaders={0: -1})):
        metadata.updated(unsettled, 0)
        rests.append(metadata.time_to_next_update_ms(0))
    metadata.failed(0)
    rests.append(metadata.time_to_next_update_ms(0))
    assert rests == [200, 400, 800]


def test_a_topic_that_is_not_there_keeps_its_error(metadata: Metadata) -> None:
    metadata.track("t")
    missing = m.MetadataResponse.MetadataResponseTopic(
        name="t", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    metadata.updated(m.MetadataResponse(topics=[missing]), 0)
    assert metadata.error("t") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert metadata.partitions("t") == []


@pytest.mark.parametrize("text", ["host:9092", "[::1]:9092", "unix:/run/kafka.sock"])
def test_the_address_of_a_node_is_what_a_user_would_write(text: str) -> None:
    assert [node.address for node in bootstrap_nodes(parse_servers(text))] == [text]
