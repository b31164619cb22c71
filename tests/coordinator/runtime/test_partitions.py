"""The partitions of a coordinator's topic: what can be asked while they are read, or cannot be."""

from __future__ import annotations

import pytest

from mpbroker.coordinator.runtime.java_hash import java_hash
from mpbroker.coordinator.runtime.partitions import LoadState, TopicPartitions
from mpbroker.protocol.errors import ApiError, ErrorCode

NAME = "g"


def refusal(partitions: TopicPartitions) -> ErrorCode:
    try:
        partitions.check_loaded(NAME)
    except ApiError as error:
        return error.code
    return ErrorCode.NONE


def test_before_anything_is_known_nothing_can_be_asked() -> None:
    partitions = TopicPartitions()
    assert not partitions.is_missing
    assert refusal(partitions) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert not partitions.is_loaded(0)
    with pytest.raises(ApiError):
        partitions.check_none_is_loading()


def test_without_a_topic_everything_is_known() -> None:
    partitions = TopicPartitions()
    partitions.open(0)
    assert partitions.is_missing
    assert refusal(partitions) is ErrorCode.NONE
    partitions.check_none_is_loading()


def test_a_name_is_asked_about_as_its_partition_is() -> None:
    partitions = TopicPartitions()
    partitions.open(3)
    own = java_hash(NAME) % 3
    assert partitions.partition_for(NAME) == own
    assert refusal(partitions) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    partitions.set(own, LoadState.OFFLINE)
    assert refusal(partitions) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert partitions.reopen(own)
    assert not partitions.reopen(own)
    partitions.set(own, LoadState.LOADED)
    assert refusal(partitions) is ErrorCode.NONE
    assert partitions.is_loaded(own)
    with pytest.raises(ApiError):
        partitions.check_none_is_loading()
    partitions.close()
    assert refusal(partitions) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("a", 97), ("group", 98629247), ("polygenelubricants", 0), ("\U0001f600", 1772899)],
)
def test_groups_lie_where_kafka_looks_for_them(text: str, value: int) -> None:
    assert java_hash(text) == value
