"""What is removed, and when."""

from __future__ import annotations

from msgspec.structs import replace

from mpbroker.ipc.metadata import PartitionImage, PartitionSlots, TopicImage
from mpbroker.ipc.table import PartitionFlag
from mpbroker.remote.ledger.events import (
    LogStartMoved,
    SegmentsRemoved,
    TopicDeleted,
    TopicRestored,
    TopicSet,
)
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.tier.removal import TOPIC_DELAY_MS, due, of_partition, of_topics
from tests.remote.tier.test_backlog import place
from tests.remote.tier.test_collector import TOPIC, added

TOPIC_IMAGE = TopicImage("t", TOPIC, PartitionSlots.of([PartitionImage(0, 1, 1)]).packed, {"a": "b"})
T0 = 1_000_000


def state_with(*bases: int) -> RemoteState:
    state = RemoteState()
    state.apply([TopicSet("t", TOPIC, 1, {"a": "b"}), *map(added, bases)], T0)
    return state


def ids(*bases: int) -> tuple[bytes, ...]:
    return tuple(added(base).segment_id for base in bases)


def test_segments_below_the_log_start_are_removed_once() -> None:
    state = state_with(1, 2, 3)
    assert list(of_partition(state, place(log_start=1))) == [LogStartMoved(TOPIC, 0, 1)]
    events = list(of_partition(state, place(log_start=3)))
    assert events == [LogStartMoved(TOPIC, 0, 3), SegmentsRemoved(TOPIC, 0, ids(1, 2))]
    state.check(events)
    state.apply(events, T0)
    assert list(of_partition(state, place(log_start=3))) == []


def test_a_partition_that_is_no_longer_tiered_loses_all() -> None:
    flags = PartitionFlag.PARTITION_REMOTE_DELETED | PartitionFlag.PARTITION_LIVE
    assert list(of_partition(state_with(1, 2), place(flags=flags))) == [SegmentsRemoved(TOPIC, 0, ids(1, 2))]
    assert list(of_partition(RemoteState(), place(flags=flags))) == []


def test_a_deleted_topic_keeps_its_segments_for_a_day() -> None:
    state = state_with(1, 2)
    assert list(of_topics(state, {TOPIC: TOPIC_IMAGE}, T0)) == []
    assert list(of_topics(state, {}, T0)) == [TopicDeleted(TOPIC)]
    state.apply([TopicDeleted(TOPIC)], T0)
    assert list(of_topics(state, {}, T0 + TOPIC_DELAY_MS - 1)) == []
    # A clock that was set back delays.
    assert list(of_topics(state, {}, 0)) == []
    (event,) = of_topics(state, {}, T0 + TOPIC_DELAY_MS)
    assert event == SegmentsRemoved(TOPIC, 0, ids(1, 2))
    state.check([event])


def test_a_topic_that_is_there_again_is_restored() -> None:
    state = state_with(1)
    state.apply([TopicDeleted(TOPIC)], T0)
    assert list(of_topics(state, {TOPIC: TOPIC_IMAGE}, T0)) == [TopicRestored(TOPIC)]


def test_a_changed_topic_is_told_once() -> None:
    state = state_with(1)
    changed = replace(TOPIC_IMAGE, configs={"a": "c"})
    events = list(of_topics(state, {TOPIC: changed}, T0))
    assert events == [TopicSet("t", TOPIC, 1, {"a": "c"})]
    state.apply(events, T0)
    assert list(of_topics(state, {TOPIC: changed}, T0)) == []


def test_objects_are_due_after_the_delay() -> None:
    state = state_with(1, 2)
    state.apply([SegmentsRemoved(TOPIC, 0, ids(1))], T0)
    assert due(state, T0 + 99, 100) == []
    assert due(state, 0, 100) == []
    assert [one.segment.base for one in due(state, T0 + 100, 100)] == [1]
