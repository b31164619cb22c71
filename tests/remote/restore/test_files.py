"""Log directories from a cut: whole, or such that no broker starts on them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from mpbroker.remote.cuts.manifest import bundle_name
from mpbroker.remote.restore.files import (
    begin_cluster,
    begin_epochs,
    finish,
    write_files,
    write_remote_files,
)
from mpbroker.remote.restore.take_over import take_over
from mpbroker.remote.store.object_store import StoreError
from mpbroker.storage.checkpoints import read_epochs, write_epochs, write_topic_id
from mpbroker.storage.leader_epochs import trimmed
from mpbroker.storage.names import META_PROPERTIES, REMOTE_SEGMENTS
from tests.support.cut_world import CutWorld, contents
from tests.support.killing_store import Killed, KillingStore
from tests.support.ledger_parts import TOPIC_ID, segment

DIRECTORY = "t-0"


@pytest.fixture
def world(tmp_path: Path) -> CutWorld:
    """A cut whose bytes lie in three bundles."""
    made = CutWorld(tmp_path)
    (made.log_dirs[0] / DIRECTORY).mkdir()
    write_epochs(made.log_dirs[0] / DIRECTORY, [(0, 0), (3, 7)])
    for number in range(3):
        (made.log_dirs[0] / DIRECTORY / f"{number:020d}.log").write_bytes(bytes(10_000))
        made.cut()
    return made


def target(world: CutWorld, name: object) -> Path:
    path = world.root / f"to{name}"
    path.mkdir()
    return path


def nothing(_count: int) -> None:
    pass


@pytest.mark.parametrize("is_applied", [False, True])
def test_no_broker_starts_on_what_a_kill_leaves(world: CutWorld, is_applied: bool) -> None:
    plan, at = world.plan(), 0
    while True:
        path = target(world, at)
        with suppress(Killed):
            write_files(KillingStore(world.objects, at, is_applied=is_applied), plan, [path], nothing)
            break
        assert not (path / META_PROPERTIES).exists()
        at += 1
    assert at >= 3
    assert not (path / META_PROPERTIES).exists()
    finish([path])
    assert contents([path]).keys() == {one.path for one in plan.manifest.files}


def test_a_fork_has_another_cluster_id_in_all_its_directories(tmp_path: Path) -> None:
    made = CutWorld(tmp_path, directories=2)
    made.cut()
    paths = [target(made, number) for number in range(2)]
    write_files(made.objects, made.plan(), paths, nothing)
    begin_cluster(paths)
    finish(paths)
    one, other = ((path / META_PROPERTIES).read_text() for path in paths)
    assert one == other
    before = (made.log_dirs[0] / META_PROPERTIES).read_text()
    assert "cluster.id=cluster\n" in before
    changed = set(one.splitlines()) - set(before.splitlines())
    assert [line.partition("=")[0] for line in changed] == ["cluster.id"]


def test_a_damaged_bundle_ends_the_restore(world: CutWorld) -> None:
    plan = world.plan()
    piece = next(one.pieces[0] for one in plan.manifest.files if one.path.endswith(".log"))
    name, at = bundle_name(piece.bundle), piece.position
    data = world.objects.objects[name]
    world.objects.objects[name] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    path = target(world, "damaged")
    with pytest.raises(StoreError, match=f"{name} is damaged at byte {at}"):
        write_files(world.objects, plan, [path], nothing)
    assert not (path / META_PROPERTIES).exists()


def test_each_owner_after_a_cut_begins_another_epoch_where_the_log_ends(world: CutWorld) -> None:
    """Also if the first of them was lost before it made a cut of its own."""
    for epoch in (4, 5):
        path = target(world, epoch)
        plan, _ = take_over(world.plan, is_forced=True)
        write_files(world.objects, plan, [path], nothing)
        begin_epochs(plan, [path])
        # As whoever opens the log does it.
        assert trimmed(read_epochs(path / DIRECTORY), 0, 20) == [(0, 0), (3, 7), (epoch, 20)]


@pytest.mark.parametrize("topic_id", [TOPIC_ID, b"other".ljust(16), None])
def test_a_topic_under_an_old_name_has_no_segments_of_the_one_before(
    world: CutWorld, topic_id: bytes | None
) -> None:
    path = target(world, "again")
    if topic_id is not None:
        (path / DIRECTORY).mkdir()
        write_topic_id(path / DIRECTORY, topic_id)
    write_remote_files(world.plan()._replace(segments={f"0/{DIRECTORY}": [segment(0)]}), [path])
    assert (path / DIRECTORY / REMOTE_SEGMENTS).exists() == (topic_id == TOPIC_ID)
