"""DescribeTopicPartitions, through a handler whose peers are the test."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from mpbroker.config.broker import STANDARD_AUTHORIZER, BrokerConfig
from mpbroker.handlers.apis import k75_describe_topic_partitions
from mpbroker.ipc.acls import AclImage
from mpbroker.ipc.table import PartitionFlag
from mpbroker.protocol.messages import (
    ZERO_UUID,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from tests.support.handler_rig import Rig, partition_payload, topic_image
from tests.support.handler_rig import rig as make_rig

DESCRIBE_TOPICS = 75
ALPHA = topic_image("alpha", 1, partitions=3)
OFFSETS = topic_image("__consumer_offsets", 2, first_slot=4, internal=True)
ZETA = topic_image("zeta", 3, partitions=5, first_slot=8)
HIDDEN = topic_image("__cluster_metadata", 4, first_slot=16, internal=True)
READY = (ZETA, ALPHA, OFFSETS, HIDDEN)
Cursor = DescribeTopicPartitionsRequest.Cursor
Part = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition
UNKNOWN, INVALID_TOPIC, DENIED, INVALID_REQUEST = 3, 17, 29, 42


def request(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    topics = [DescribeTopicPartitionsRequest.TopicRequest(name) for name in names]
    return DescribeTopicPartitionsRequest(topics, limit, None if cursor is None else Cursor(*cursor))


def shown(response: Any) -> tuple[list[tuple[str, int | list[int]]], tuple[str, int] | None]:
    """Return error or partitions of each topic, and the cursor."""
    topics = [(t.name, t.error_code or [p.partition_index for p in t.partitions]) for t in response.topics]
    cursor = response.next_cursor
    return topics, None if cursor is None else (cursor.topic_name, cursor.partition_index)


def ask(ready: Rig, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    return shown(ready.ask(DESCRIBE_TOPICS, 0, request(*names, limit=limit, cursor=cursor)))


def test_all_topics_are_described(ready: Rig) -> None:
    ready.table.write(9, partition_payload(ZETA, 1, flags=PartitionFlag.PARTITION_OFFLINE, leader_epoch=3))
    response = ready.ask(DESCRIBE_TOPICS, 0, request())
    assert shown(response) == (
        [("__consumer_offsets", [0]), ("alpha", [0, 1, 2]), ("zeta", [0, 1, 2, 3, 4])],
        None,
    )
    assert [(t.topic_id, t.is_internal) for t in response.topics] == [
        (OFFSETS.topic_id, True),
        (ALPHA.topic_id, False),
        (ZETA.topic_id, False),
    ]
    assert {t.topic_authorized_operations for t in response.topics} == {0b110111111000}
    assert response.topics[2].partitions[:2] == [
        Part(0, 0, 1, 0, [1], [1], [], [], []),
        Part(0, 1, -1, 3, [1], [1], [], [], [1]),
    ]


@pytest.mark.parametrize("limit", [-4, 0, 1, 2, 3, 4, 8, 9])
def test_pages_have_each_partition_once(ready: Rig, limit: int) -> None:
    found, cursor, sizes = [], None, []
    while True:
        topics, cursor = ask(ready, limit=limit, cursor=cursor)
        page = [(name, number) for name, numbers in topics for number in numbers]
        found += page
        sizes.append(len(page))
        if cursor is None:
            break
    names = ("__consumer_offsets", 1), ("alpha", 3), ("zeta", 5)
    assert found == [(name, number) for name, count in names for number in range(count)]
    assert set(sizes[:-1]) <= {max(1, limit)}


def test_a_full_page_ends_at_the_beginning_of_the_next_topic(ready: Rig) -> None:
    assert ask(ready, "alpha", "zeta", limit=3) == ([("alpha", [0, 1, 2])], ("zeta", 0))
    assert ask(ready, "alpha", "nope", limit=3) == ([("alpha", [0, 1, 2])], ("nope", 0))


def test_a_cursor_may_be_where_nothing_is(ready: Rig) -> None:
    assert ask(ready, cursor=("b", 9)) == ([("zeta", [0, 1, 2, 3, 4])], None)
    assert ask(ready, cursor=("zeta", 9)) == ([("zeta", [])], None)
    assert ask(ready, cursor=("zz", 0)) == ([], None)
    assert ask(ready, "zeta", "nope", cursor=("nope", 7)) == ([("nope", 3), ("zeta", [0, 1, 2, 3, 4])], None)


def test_named_topics_come_once_and_in_order(ready: Rig) -> None:
    topics, _ = ask(ready, "zeta", "b@d", "nope", "alpha", "zeta", "__cluster_metadata", "")
    assert topics == [
        ("", INVALID_TOPIC),
        ("__cluster_metadata", UNKNOWN),
        ("alpha", [0, 1, 2]),
        ("b@d", INVALID_TOPIC),
        ("nope", UNKNOWN),
        ("zeta", [0, 1, 2, 3, 4]),
    ]
    (absent,) = ready.ask(DESCRIBE_TOPICS, 0, request("__transaction_state")).topics
    assert (absent.is_internal, absent.topic_id) == (True, ZERO_UUID)


@pytest.mark.parametrize(
    ("names", "cursor"), [(["alpha", "zeta"], ("beta", 0)), (["alpha"], ("alpha", -1)), ([], ("alpha", -1))]
)
def test_a_cursor_that_is_wrong_refuses_the_request(
    ready: Rig, names: list[str], cursor: tuple[str, int]
) -> None:
    assert ask(ready, *names, cursor=cursor) == ([(name, INVALID_REQUEST) for name in names], None)


def test_the_broker_limits_pages_too() -> None:
    with make_rig(BrokerConfig(max_request_partition_size_limit=2)) as made:
        made.publish(*READY)
        assert ask(made) == ([("__consumer_offsets", [0]), ("alpha", [0])], ("alpha", 1))


def test_who_may_not_describe_a_topic_does_not_learn_whether_it_exists(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "mpbroker.kafka.authorizer.logger")
    read, another = (AclImage(2, name, 3, "User:ANONYMOUS", "*", 3, 3) for name in ("alpha", "beta"))
    with make_rig(BrokerConfig(authorizer_class_name=STANDARD_AUTHORIZER)) as made:
        made.publish(*READY, acls=[read, another])
        # The names are not the client's, so refusals are no news.
        assert ask(made) == ([("alpha", [0, 1, 2])], None)
        assert caplog.messages == []
        denied = [("nope", DENIED), ("zeta", DENIED)]
        page = ask(made, "zeta", "beta", "nope", "alpha", limit=2)
        assert page == ([("alpha", [0, 1]), *denied], ("alpha", 2)), "denied ones are in each page"
        assert len(caplog.messages) == 2
        response = made.ask(DESCRIBE_TOPICS, 0, request("zeta", "alpha"))
        assert response.topics[0].topic_authorized_operations == 1 << 3 | 1 << 8
        assert response.topics[1].topic_id == ZERO_UUID


def test_topics_are_described_between_other_work(ready: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece ends after so many topics and partitions together: here after each topic."""
    monkeypatch.setattr(k75_describe_topic_partitions, "LOOKUPS_PER_PIECE", 2)
    ready.send(DESCRIBE_TOPICS, 0, request())
    assert ready.serve_others() == 1
    topics, _ = shown(ready.answer(DESCRIBE_TOPICS, 0))
    assert [name for name, _ in topics] == ["__consumer_offsets", "alpha", "zeta"]
