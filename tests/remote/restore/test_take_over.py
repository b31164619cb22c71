"""Two owners of one ledger: the one that was restored from a cut, and the one before."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from mpbroker.remote.ledger.events import Exported, TopicDeleted, TopicRestored
from mpbroker.remote.ledger.ledger import Fenced, Ledger
from mpbroker.remote.ledger.owner import OwnerFile
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.restore.plan import Plan, RestoreRefused, make_plan
from mpbroker.remote.restore.take_over import SILENT_MS, TakenLedger, check_silent, take_over, write_owner
from mpbroker.remote.store.object_store import ObjectStore
from mpbroker.storage.checkpoints import text_of_id
from mpbroker.storage.names import PARTITION_METADATA
from tests.support.cut_world import CutWorld
from tests.support.killing_store import Killed, KillingStore
from tests.support.ledger_parts import STARTED, TOPIC, TOPIC_ID, ledger_of, read, segment

DIRECTORY = "0/t-0"


@pytest.fixture
def world(tmp_path: Path) -> CutWorld:
    return made_world(tmp_path)


def made_world(root: Path) -> CutWorld:
    """Make a cut with one segment in the ledger, which has got a second one since."""
    made = CutWorld(root)
    (made.log_dirs[0] / "t-0").mkdir()
    (made.log_dirs[0] / "t-0" / PARTITION_METADATA).write_bytes(text_of_id(TOPIC_ID))
    made.ledger.append([TOPIC, segment(0)])
    made.cut()
    made.ledger.append([segment(10)])
    return made


def taken(world: CutWorld, store: ObjectStore | None = None) -> tuple[Plan, TakenLedger]:
    used = store or world.objects
    return take_over(lambda: make_plan(used), is_forced=True)


def successor(world: CutWorld, owner: TakenLedger) -> Ledger:
    """Begin to write the ledger as the restored broker does."""
    directory = world.root / f"new{owner.seq}"
    directory.mkdir()
    write_owner(directory, owner)
    ledger = ledger_of(world.objects, directory)
    ledger.start(STARTED)
    return ledger


def bases(reader: LedgerReader) -> list[int]:
    return [one.base for one in reader.state.segments_of(TOPIC_ID, 0)]


def test_the_new_owner_has_the_segments_of_the_cut_and_goes_on(world: CutWorld) -> None:
    _, owner = taken(world)
    assert bases(read(world.objects)) == [0]
    ledger = successor(world, owner)
    ledger.append([segment(15)])
    found = read(world.objects)
    assert bases(found) == [0, 15]
    assert found.generation == 2


@pytest.mark.parametrize("is_undeleted", [False, True])
def test_a_topic_that_was_deleted_before_the_cut_can_still_be_brought_back(
    world: CutWorld, is_undeleted: bool
) -> None:
    """Check it for one, too, that was brought back after the cut: it is deleted as of that."""
    world.ledger.append([TopicDeleted(TOPIC_ID)])
    shutil.rmtree(world.log_dirs[0] / "t-0")
    world.cut()
    if is_undeleted:
        world.ledger.append([TopicRestored(TOPIC_ID)])
    _, owner = taken(world)
    assert bases(read(world.objects)) == [0, 10]
    successor(world, owner)


def test_the_owner_before_can_write_nothing_more(world: CutWorld) -> None:
    taken(world)
    seq = read(world.objects).seq
    with pytest.raises(Fenced, match="has taken the ledger over"):
        world.ledger.append([segment(20)])
    with pytest.raises(Fenced):
        world.ledger.check_fence()
    again = ledger_of(world.objects, world.log_dirs[0])
    with pytest.raises(Fenced, match="belongs to another broker") as refused:
        again.start(STARTED)
    assert "--take-over" not in str(refused.value)
    assert read(world.objects).seq == seq


def test_a_restored_broker_that_has_not_taken_over_writes_nothing(world: CutWorld) -> None:
    (world.root / "copy").mkdir()
    with pytest.raises(Fenced, match="mpbroker restore --take-over"):
        ledger_of(world.objects, world.root / "copy").start(STARTED)
    world.ledger.append([segment(20)])


def test_a_cut_that_was_made_meanwhile_is_the_one_that_is_restored(world: CutWorld) -> None:
    calls: list[Plan] = []

    def plans() -> Plan:
        calls.append(make_plan(world.objects))
        if len(calls) == 1:
            world.cut()
        return calls[-1]

    plan, _ = take_over(plans, is_forced=True)
    assert len(calls) == 2
    assert [one.base for one in plan.segments[DIRECTORY]] == [0, 10]
    assert bases(read(world.objects)) == [0, 10]


def test_three_owners_in_a_row_have_one_lineage(world: CutWorld) -> None:
    owners = [taken(world)[1] for _ in range(3)]
    assert [one.writer.generation for one in owners] == [2, 3, 4]
    for late in owners[:2]:
        with pytest.raises(Fenced):
            successor(world, late)
    successor(world, owners[2]).append([segment(15)])
    assert bases(read(world.objects)) == [0, 15]


def test_a_ledger_that_was_exported_is_not_taken_over(world: CutWorld) -> None:
    world.ledger.append([Exported("cluster", 1, "host")])
    with pytest.raises(RestoreRefused, match="Apache Kafka may write to the object store since"):
        taken(world)
    assert read(world.objects).state.exported is not None


def test_an_owner_that_wrote_a_moment_ago_is_not_replaced(world: CutWorld) -> None:
    last = read(world.objects).last
    assert last is not None
    check_silent(last, last.time_ms + SILENT_MS)
    with pytest.raises(RestoreRefused, match=r"1 s ago .* --force"):
        check_silent(last, last.time_ms + 1_000)


@pytest.mark.parametrize("is_applied", [False, True])
def test_a_kill_at_any_step_leaves_a_ledger_that_can_be_taken_over(tmp_path: Path, is_applied: bool) -> None:
    at = 0
    while True:
        root = tmp_path / str(at)
        root.mkdir()
        world = made_world(root)
        killing = KillingStore(world.objects, at, is_applied=is_applied)
        with suppress(Killed):
            taken(world, killing)
            break
        before = read(world.objects).generation
        _, owner = taken(world)
        assert owner.writer.generation == before + 1
        successor(world, owner).append([segment(15)])
        assert bases(read(world.objects)) == [0, 15]
        with pytest.raises(Fenced):
            world.ledger.append([segment(20)])
        at += 1
    assert at > 5


def test_an_owners_file_of_another_directory_is_replaced(world: CutWorld, tmp_path: Path) -> None:
    _, owner = taken(world)
    (tmp_path / "first").mkdir()
    write_owner(tmp_path / "first", owner)
    found = OwnerFile(tmp_path / "first").owner
    assert (found.nonce, found.generation, found.last_seq) == (owner.writer.owner, 2, owner.seq)
