"""Segments that were removed after the cut that is restored."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from mpbroker.records.batch import checksum
from mpbroker.remote.ledger.events import (
    LogStartMoved,
    ObjectsDeleted,
    SegmentAdded,
    SegmentRevived,
    SegmentsRemoved,
    TopicDeleted,
)
from mpbroker.remote.ledger.state import EventRefused
from mpbroker.remote.restore.plan import Plan, make_plan
from mpbroker.remote.restore.revival import revived
from mpbroker.remote.restore.take_over import take_over
from mpbroker.remote.store.object_store import StoreError
from mpbroker.storage.checkpoints import text_of_id
from mpbroker.storage.names import PARTITION_METADATA
from tests.support.cut_world import CutWorld
from tests.support.ledger_parts import TOPIC, TOPIC_ID, read, segment

DIRECTORY = "0/t-0"
LATE_MS = 1_000_000
ALL = [0, 10, 20]


def with_objects(world: CutWorld, base: int) -> SegmentAdded:
    """Put a segment into the store; return its event."""
    log, indexes = base.to_bytes(2) * 500, bytes([base]) * 50
    made = replace(segment(base), log_crc=checksum(log), indexes_crc=checksum(indexes))
    for name, data in ((made.objects.log, log), (made.objects.indexes, indexes)):
        world.objects.put(name, [data], len(data))
    return made


@pytest.fixture
def world(tmp_path: Path) -> CutWorld:
    """A cut with three segments; another one came later, and the first two were removed."""
    made = CutWorld(tmp_path)
    (made.log_dirs[0] / "t-0").mkdir()
    (made.log_dirs[0] / "t-0" / PARTITION_METADATA).write_bytes(text_of_id(TOPIC_ID))
    made.ledger.append([TOPIC, *(with_objects(made, base) for base in ALL)])
    made.cut()
    remove(made, 0, 10)
    made.ledger.append([with_objects(made, 30), LogStartMoved(TOPIC_ID, 0, 20)])
    made.cut()
    return made


def remove(world: CutWorld, *bases: int) -> None:
    world.ledger.append([SegmentsRemoved(TOPIC_ID, 0, tuple(segment(base).segment_id for base in bases))])


def taken(world: CutWorld, before_ms: int | None = 1_000) -> Plan:
    """Take over with what the first cut had."""
    return take_over(lambda: revived(world.objects, make_plan(world.objects, before_ms)), is_forced=True)[0]


def test_they_come_back_under_other_names(world: CutWorld) -> None:
    plan = taken(world)
    state = read(world.objects).state
    now = state.segments_of(TOPIC_ID, 0)
    assert now == plan.segments[DIRECTORY]
    assert [one.base for one in now] == ALL
    assert plan.removed == 0
    # The tier tells the ledger where the log starts.
    assert state.log_starts == {}
    # The owner before deletes what it knows, late.
    for base in (0, 10, 30):
        world.objects.delete(segment(base).objects.all)
    for one in now:
        log = world.objects.objects[one.objects.log]
        assert (checksum(log), len(log)) == (one.log_crc, one.size)
        assert checksum(world.objects.objects[one.objects.indexes]) == one.indexes_crc
    assert all(name in world.objects.objects for one in now[:2] for name in one.objects.all)


def test_without_the_objects_of_one_those_before_it_are_gone_too(world: CutWorld) -> None:
    world.ledger.append([ObjectsDeleted((segment(0).segment_id,))])
    assert [one.base for one in taken(world).segments[DIRECTORY]] == [10, 20]


def test_what_is_deleted_while_it_is_copied_is_left_out(world: CutWorld) -> None:
    plan = make_plan(world.objects, 1_000)
    world.objects.delete(segment(10).objects.all)
    found = revived(world.objects, plan)
    assert ([one.base for one in found.segments[DIRECTORY]], found.removed) == ([20], 2)


def test_the_newest_cut_revives_nothing(world: CutWorld) -> None:
    assert [one.base for one in taken(world, None).segments[DIRECTORY]] == [20, 30]


def test_a_topic_whose_last_segment_was_removed_comes_back(world: CutWorld) -> None:
    world.ledger.append([TopicDeleted(TOPIC_ID)])
    remove(world, 20, 30)
    assert read(world.objects).state.topics == {}
    taken(world)
    state = read(world.objects).state
    assert [one.base for one in state.segments_of(TOPIC_ID, 0)] == ALL
    assert state.topics[TOPIC_ID].deleted_ms is None


def test_a_deleted_topic_comes_back(world: CutWorld) -> None:
    world.ledger.append([TopicDeleted(TOPIC_ID)])
    taken(world)
    assert read(world.objects).state.topics[TOPIC_ID].deleted_ms is None


def test_damaged_bytes_are_not_copied(world: CutWorld) -> None:
    name = segment(10).objects.log
    world.objects.put(name, [bytes(1000)], 1000)
    with pytest.raises(StoreError, match="is damaged"):
        taken(world)


def test_the_ledger_refuses_what_does_not_come_before_the_others(world: CutWorld) -> None:
    state = read(world.objects).state
    for wrong in ([20], [15], [0, 10]):
        with pytest.raises(EventRefused):
            state.check([SegmentRevived(segment(base)) for base in wrong])
    state.check([SegmentRevived(segment(10)), SegmentRevived(segment(0))])
