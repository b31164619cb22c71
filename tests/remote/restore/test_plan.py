"""What a restore finds in the store, and what it refuses before the first write."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.remote.cuts.manifest import bundle_name, cut_name
from mpbroker.remote.ledger.entries import LedgerDamaged
from mpbroker.remote.ledger.events import SegmentsRemoved
from mpbroker.remote.restore.plan import Plan, RestoreRefused, check_objects, make_plan, read_all
from mpbroker.storage.checkpoints import text_of_id
from mpbroker.storage.names import PARTITION_METADATA
from tests.support.cut_world import CutWorld
from tests.support.fault_store import MemoryStore
from tests.support.ledger_parts import TOPIC, TOPIC_ID, segment

SEGMENT = f"t-0/{20:020d}.log"
DIRECTORY = "0/t-0"


@pytest.fixture
def world(tmp_path: Path) -> CutWorld:
    """Two segments in the ledger, and a cut with the third."""
    made = CutWorld(tmp_path)
    (made.log_dirs[0] / SEGMENT).parent.mkdir()
    (made.log_dirs[0] / SEGMENT).write_bytes(b"records")
    (made.log_dirs[0] / "t-0" / PARTITION_METADATA).write_bytes(text_of_id(TOPIC_ID))
    made.ledger.append([TOPIC, segment(0), segment(10)])
    put_segments(made, 0, 10)
    made.cut()
    return made


def put_segments(world: CutWorld, *bases: int) -> None:
    for base in bases:
        one = segment(base)
        objects = one.objects
        for name, size in ((objects.log, one.size), (objects.indexes, sum(one.index_sizes))):
            world.objects.put(name, [bytes(size)], size)


def bases(plan: Plan) -> list[int]:
    return [one.base for one in plan.segments[DIRECTORY]]


def test_segments_up_to_the_cut_belong_to_it(world: CutWorld) -> None:
    world.ledger.append([segment(20)])
    put_segments(world, 20)
    assert bases(world.plan()) == [0, 10]


def test_what_was_removed_since_the_cut_stays_removed(world: CutWorld) -> None:
    world.ledger.append([SegmentsRemoved(TOPIC_ID, 0, (segment(0).segment_id,))])
    plan = world.plan()
    assert (bases(plan), plan.removed) == ([10], 1)


def test_the_newest_cut_is_found_or_the_newest_before_a_time(world: CutWorld) -> None:
    second = world.cut()
    assert world.plan().cut.cut_id == second.cut_id
    assert world.plan(1_999).cut.taken_ms == 1_000
    with pytest.raises(RestoreRefused, match="the oldest cut that is kept is of 1970-01-01T00:00:01Z"):
        world.plan(999)


def test_a_store_without_a_ledger_or_a_cut_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RestoreRefused, match="no ledger is there"):
        make_plan(MemoryStore())
    with pytest.raises(RestoreRefused, match="no cut"):
        make_plan(CutWorld(tmp_path).objects)


def test_every_object_that_is_missing_or_shorter_is_named(world: CutWorld) -> None:
    plan = make_plan(world.objects)
    objects = [one.objects for one in plan.segments[DIRECTORY]]
    bundle = bundle_name(bytes.fromhex(next(iter(plan.manifest.bundles))))
    del world.objects.objects[objects[0].log]
    world.objects.objects[objects[1].indexes] = b"short"
    world.objects.objects[bundle] += b"longer"
    with pytest.raises(RestoreRefused) as refused:
        check_objects(world.objects, plan)
    assert all(name in str(refused.value) for name in (objects[0].log, objects[1].indexes, bundle))
    assert objects[0].indexes not in str(refused.value)


def test_a_manifest_that_is_missing_or_damaged_is_refused(world: CutWorld) -> None:
    name = cut_name(world.plan().cut.cut_id)
    data = world.objects.objects.pop(name)
    with pytest.raises(RestoreRefused, match="cannot be restored"):
        make_plan(world.objects)
    world.objects.objects[name] = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(LedgerDamaged, match="digest"):
        make_plan(world.objects)


def test_verification_reads_all_objects(world: CutWorld) -> None:
    # The test's segments are zeros, and their checksums are not of those.
    plan = make_plan(world.objects)
    with pytest.raises(RestoreRefused) as refused:
        read_all(world.objects, plan, lambda _count: None)
    objects = [one.objects for one in plan.segments[DIRECTORY]]
    named = [name for one in objects for name in (one.log, one.indexes)]
    assert all(f"{name} is damaged" in str(refused.value) for name in named)
    whole = plan._replace(segments={})
    seen: list[int] = []
    read_all(world.objects, whole, seen.append)
    assert sum(seen) == plan.bundle_bytes
    bundle = bundle_name(bytes.fromhex(next(iter(plan.manifest.bundles))))
    data = world.objects.objects[bundle]
    world.objects.objects[bundle] = bytes([data[0] ^ 1]) + data[1:]
    with pytest.raises(RestoreRefused, match=f"{bundle} is damaged at byte 0"):
        read_all(world.objects, whole, seen.append)


def test_a_segment_that_came_into_the_ledger_after_the_instant_is_not_of_the_cut(world: CutWorld) -> None:
    world.at_the_instant = lambda: world.ledger.append([segment(20)])  # type: ignore[method-assign]
    put_segments(world, 20)
    world.cut()
    assert bases(world.plan()) == [0, 10]
