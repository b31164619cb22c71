"""What events add up to."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mpbroker.remote.ledger.events import (
    CutsRemoved,
    CutTaken,
    Event,
    Exported,
    LogStartMoved,
    ObjectsDeleted,
    Released,
    SegmentsRemoved,
    SnapshotWritten,
    StandbyGone,
    StandbySet,
    Started,
    TakenOver,
    TopicDeleted,
    TopicRestored,
    TopicSet,
)
from mpbroker.remote.ledger.state import EventRefused, RemoteState, RemoteTopic
from mpbroker.storage.remote_segments import RemoteSegment
from tests.support.ledger_parts import STARTED, TOPIC, TOPIC_ID, segment

OTHER_ID = b"o" * 16


def state_of(*events: Event) -> RemoteState:
    state = RemoteState()
    for at, event in enumerate(events):
        state.check([event])
        state.apply([event], at)
    return state


def removed(*bases: int) -> SegmentsRemoved:
    return SegmentsRemoved(TOPIC_ID, 0, tuple(segment(base).segment_id for base in bases))


def test_segments_by_offset() -> None:
    """Compaction and transactions leave gaps between them."""
    state = state_of(STARTED, TOPIC, segment(0), segment(20), segment(0, partition=1))
    assert state.segments_of(TOPIC_ID, 0) == [segment(0), segment(20)]
    assert state.segments_of(TOPIC_ID, 1) == [segment(0, partition=1)]
    assert state.segments_of(OTHER_ID, 0) == ()
    wanted = [RemoteSegment(base, base + 10, 1000, base, segment(base).segment_id) for base in (0, 20)]
    assert list(state.remote_segments(TOPIC_ID, 0)) == wanted


def test_removed_segments_are_kept_until_their_objects_are_gone() -> None:
    state = state_of(TOPIC, segment(0), segment(10), segment(20))
    before = state.segments_of(TOPIC_ID, 0)
    state.apply([removed(0, 10)], 77)
    # Whoever reads on meanwhile reads what was there.
    assert len(before) == 3
    assert state.segments_of(TOPIC_ID, 0) == [segment(20)]
    assert {one.segment.base: one.removed_ms for one in state.removed.values()} == {0: 77, 10: 77}
    gone = ObjectsDeleted((segment(0).segment_id, b"unknown" + bytes(9)))
    for _ in range(2):
        state.check([gone])
        state.apply([gone], 78)
    assert [one.segment.base for one in state.removed.values()] == [10]


def test_a_deleted_topic_comes_back_with_its_segments() -> None:
    state = state_of(TOPIC, segment(0), LogStartMoved(TOPIC_ID, 0, 3), TopicDeleted(TOPIC_ID))
    assert state.topics[TOPIC_ID] == RemoteTopic("topic", TOPIC_ID, 2, TOPIC.settings, deleted_ms=3)
    assert state.segments_of(TOPIC_ID, 0) == [segment(0)]
    with pytest.raises(EventRefused):
        state.check([segment(10)])
    state.check([TopicRestored(TOPIC_ID), segment(10)])
    state.apply([TopicRestored(TOPIC_ID), segment(10)], 9)
    assert state.topics[TOPIC_ID].deleted_ms is None
    assert len(state.segments_of(TOPIC_ID, 0)) == 2


def test_a_deleted_topic_is_forgotten_with_its_last_segment() -> None:
    state = state_of(TOPIC, segment(0), segment(0, partition=1), LogStartMoved(TOPIC_ID, 0, 3))
    state.apply([TopicDeleted(TOPIC_ID), removed(0)], 9)
    assert TOPIC_ID in state.topics
    state.apply([SegmentsRemoved(TOPIC_ID, 1, (segment(0, partition=1).segment_id,))], 9)
    assert (state.topics, state.segments, state.log_starts) == ({}, {}, {})
    # One that has none is forgotten at once.
    assert state_of(TOPIC, TopicDeleted(TOPIC_ID)).topics == {}
    assert state_of(TOPIC, segment(0), removed(0)).topics != {}


def test_a_topic_that_changes() -> None:
    more = TopicSet("topic", TOPIC_ID, 5, {"remote.log.copy.disable": "true"})
    state = state_of(TOPIC, segment(0), more)
    assert state.topics[TOPIC_ID] == RemoteTopic("topic", TOPIC_ID, 5, more.settings)
    assert state.segments_of(TOPIC_ID, 0) == [segment(0)]


@pytest.mark.parametrize(
    "events",
    [
        [segment(0, topic_id=OTHER_ID)],
        [segment(5)],
        [segment(10, end=10)],
        [segment(20), segment(20)],
        [segment(20), segment(15)],
        [removed(5)],
        [removed(0), removed(0)],
        [TopicDeleted(OTHER_ID)],
        [TopicDeleted(TOPIC_ID), TopicDeleted(TOPIC_ID)],
        [TopicDeleted(TOPIC_ID), TOPIC],
        [TopicDeleted(TOPIC_ID), segment(20)],
        [TopicRestored(TOPIC_ID)],
        [LogStartMoved(TOPIC_ID, 0, 2)],
        [LogStartMoved(TOPIC_ID, 0, 9), LogStartMoved(TOPIC_ID, 0, 8)],
    ],
)
def test_events_that_contradict_are_refused(events: list[Event]) -> None:
    state = state_of(TOPIC, segment(0), LogStartMoved(TOPIC_ID, 0, 3))
    with pytest.raises(EventRefused):
        state.check(events)
    assert state.segments_of(TOPIC_ID, 0) == [segment(0)]


def test_only_an_import_follows_an_export() -> None:
    state = state_of(TOPIC, segment(0), Exported("cluster", 1, "host"))
    taken = TakenOver("cluster", 1, "host", cut_id=b"")
    for events in ([], [segment(10)], [STARTED], [taken], [segment(10), replace(taken, imported=True)]):
        with pytest.raises(EventRefused, match="only an import may"):
            state.check(events)
    imported: list[Event] = [replace(taken, imported=True), segment(10)]
    state.check(imported)
    state.apply(imported, 1)
    state.check([])
    assert [one.base for one in state.segments_of(TOPIC_ID, 0)] == [0, 10]


def test_events_of_one_entry_build_on_each_other() -> None:
    moved = LogStartMoved(TOPIC_ID, 0, 10)
    events: list[Event] = [TOPIC, segment(0), segment(10), removed(0), moved, TopicDeleted(TOPIC_ID)]
    state = RemoteState()
    state.check(events)
    state.apply(events, 1)
    assert state.segments_of(TOPIC_ID, 0) == [segment(10)]


def test_segments_may_replace_others_that_their_entry_removes() -> None:
    state = state_of(TOPIC, segment(0), segment(10))
    again = replace(segment(10), segment_id=b"another segment!")
    with pytest.raises(EventRefused):
        state.check([removed(0), again])
    events: list[Event] = [removed(10), again]
    state.check(events)
    state.apply(events, 1)
    assert state.segments_of(TOPIC_ID, 0) == [segment(0), again]


def test_cuts_and_their_bundles_come_and_go() -> None:
    state, first, second = RemoteState(), b"1" * 16, b"2" * 16
    state.apply([CutTaken(first, 5, 1, "", 3, (b"a", b"b"), ())], 50)
    assert state.bundles == {b"a": None, b"b": None}
    state.apply([CutTaken(second, 6, 1, "", 4, (b"c",), (b"a",))], 60)
    assert [(one.event.cut_id, one.time_ms) for one in state.cuts] == [(first, 50), (second, 60)]
    assert state.bundles == {b"a": 4, b"b": None, b"c": None}
    state.apply([CutsRemoved((first,), (b"a",))], 70)
    assert [one.event.cut_id for one in state.cuts] == [second]
    assert state.bundles == {b"b": None, b"c": None}


def test_cuts_after_the_one_that_was_restored_are_undone() -> None:
    state, first, second, third = RemoteState(), b"1" * 16, b"2" * 16, b"3" * 16
    state.apply([CutTaken(first, 5, 1, "", 3, (b"a", b"b"), ())], 50)
    state.apply([CutTaken(second, 6, 1, "", 4, (b"c",), (b"a",))], 60)
    state.apply([TakenOver("cluster", 1, "host", first)], 70)
    assert [one.event.cut_id for one in state.cuts] == [first]
    # The first cut keeps its bundle, and the next one drops that of the second.
    state.apply([CutTaken(third, 8, 1, "", 9, (b"a",), (b"c",))], 80)
    assert state.bundles == {b"a": None, b"b": None, b"c": 9}


def test_nothing_is_left_of_a_deleted_topic_without_segments() -> None:
    moved = LogStartMoved(TOPIC_ID, 0, 10)
    state = state_of(TOPIC, segment(0), moved, TopicDeleted(TOPIC_ID), removed(0), moved)
    assert (state.topics, state.segments, state.log_starts) == ({}, {}, {})


def standby(broker_id: int) -> StandbySet:
    return StandbySet(broker_id, "host", "rack", {"PLAINTEXT": ("host", 9092)})


def test_who_leads_and_who_stands_by() -> None:
    owner = Started("cluster", 1, "host", listeners={"PLAINTEXT": ("host", 9092)}, lease_ms=5, acks="ledger")
    state = state_of(owner, standby(2), standby(3), standby(4), StandbyGone(4), StandbyGone(5), Released())
    assert (state.leader, sorted(state.standbys), state.is_released) == (owner, [2, 3], True)
    successor = TakenOver("cluster", 2, "host", b"c" * 16, by_standby=True)
    state.apply([successor], 0)
    assert (state.leader, sorted(state.standbys), state.is_released) == (successor, [3], False)


def test_a_restored_broker_has_no_standby() -> None:
    """It may take longer than a lease to begin."""
    state = state_of(STARTED, standby(2), TakenOver("cluster", 1, "host", b"c" * 16))
    assert state.standbys == {}


def test_snapshots_that_are_named_no_longer_are_forgotten() -> None:
    named = [SnapshotWritten(3, 0), SnapshotWritten(6, 3), SnapshotWritten(9, 6)]
    state = state_of(*named)
    assert [(one.event, one.time_ms) for one in state.snapshots] == [(named[1], 1), (named[2], 2)]
