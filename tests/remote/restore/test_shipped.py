"""What was shipped after a cut, applied to the cut's directories."""

from __future__ import annotations

import errno
from pathlib import Path
from unittest.mock import Mock

import pytest

from mpbroker.records.batch import checksum
from mpbroker.remote.cuts.manifest import shipped_name
from mpbroker.remote.ledger.events import Shipped, ShippedRange
from mpbroker.remote.restore import shipped
from mpbroker.remote.restore.files import write_files
from mpbroker.remote.restore.plan import RestoreRefused, check_objects, make_plan
from mpbroker.remote.restore.shipped import ShippedFiles, apply_all_shipped, shipped_after
from mpbroker.remote.store.object_store import StoreError
from mpbroker.storage.checkpoints import (
    Offsets,
    read_epochs,
    read_offsets,
    read_topic_id,
    write_offsets,
    write_topic_id,
)
from mpbroker.storage.names import CLEAN_SHUTDOWN, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, segment_name
from tests.support.cut_world import CutWorld, contents

T, U = b"t" * 16, b"u" * 16
DIRECTORY = "0/t-0"


@pytest.fixture
def world(tmp_path: Path) -> CutWorld:
    """A partition of two segments, of which the second one begins at offset 10."""
    made = CutWorld(tmp_path)
    directory = made.log_dirs[0] / "t-0"
    directory.mkdir()
    write_topic_id(directory, T)
    for base, data in ((0, b"a" * 100), (10, b"b" * 60)):
        for suffix in (".log", ".index", ".timeindex"):
            (directory / segment_name(base, suffix)).write_bytes(data)
    return made


def files_of(world: CutWorld) -> ShippedFiles:
    return ShippedFiles(world.store, world.log_dirs)


def of(*pieces: tuple[int, int, int], end: tuple[int, int, int], log_start: int = 0) -> ShippedRange:
    return ShippedRange(DIRECTORY, T, log_start, pieces, end)


def test_bytes_go_where_they_were_and_what_lies_behind_goes(world: CutWorld) -> None:
    directory = world.log_dirs[0] / "t-0"
    for name in (segment_name(30), segment_name(30, ".index"), segment_name(25, ".snapshot")):
        (directory / name).write_bytes(b"never acknowledged")
    (directory / segment_name(20, ".snapshot")).write_bytes(b"kept")
    event = Shipped(1, (of((10, 40, 3), (22, 0, 4), end=(24, 22, 4)),), b"xyz1234")
    files = files_of(world)
    changed = files.apply(event)
    files.finish()
    assert (directory / segment_name(10)).read_bytes() == b"b" * 40 + b"xyz"
    assert (directory / segment_name(22)).read_bytes() == b"1234"
    assert (directory / segment_name(0)).read_bytes() == b"a" * 100
    assert sorted(one.name for one in directory.iterdir() if one.name[0].isdigit()) == [
        *(segment_name(0, suffix) for suffix in (".index", ".log", ".timeindex")),
        segment_name(10),
        segment_name(20, ".snapshot"),
        segment_name(22),
    ]
    assert (f"{DIRECTORY}/{segment_name(10)}", 40) in changed
    assert (f"{DIRECTORY}/{segment_name(30)}", 0) in changed
    before = contents(world.log_dirs)
    files_of(world).apply(event)
    assert contents(world.log_dirs) == before


def test_a_range_without_bytes_moves_the_log_start(world: CutWorld) -> None:
    write_offsets(world.log_dirs[0] / HIGH_WATERMARKS, Offsets({("t", 0): 16, ("other", 1): 99}))
    write_offsets(world.log_dirs[0] / RECOVERY_POINTS, Offsets({("t", 0): 3}))
    files = files_of(world)
    # The directories are no more as a clean stop has left them.
    (mark := world.log_dirs[0] / CLEAN_SHUTDOWN).touch()
    files.apply(Shipped(1, (of(end=(15, 10, 60), log_start=7),)))
    assert not mark.exists()
    assert files.finish() == [(f"0/{LOG_STARTS}", 0), (f"0/{HIGH_WATERMARKS}", 0)]
    assert dict(read_offsets(world.log_dirs[0] / LOG_STARTS)) == {("t", 0): 7}
    assert dict(read_offsets(world.log_dirs[0] / HIGH_WATERMARKS)) == {("t", 0): 15, ("other", 1): 99}
    assert dict(read_offsets(world.log_dirs[0] / RECOVERY_POINTS)) == {("t", 0): 3}
    files.apply(Shipped(2, (of(end=(15, 10, 60), log_start=4),)))
    files.finish()
    assert dict(read_offsets(world.log_dirs[0] / LOG_STARTS)) == {("t", 0): 7}


def test_a_topic_that_is_new_gets_its_directory_also_under_an_old_name(world: CutWorld) -> None:
    new = ShippedRange("0/n-3", U, 0, ((0, 0, 2),), (1, 0, 2))
    again = ShippedRange(DIRECTORY, U, 0, ((0, 0, 2),), (1, 0, 2))
    files = files_of(world)
    files.apply(Shipped(1, (new, again), b"abcd"))
    files.finish()
    assert files.made == ["0/n-3", DIRECTORY]
    for name, data in (("n-3", b"ab"), ("t-0", b"cd")):
        directory = world.log_dirs[0] / name
        assert read_topic_id(directory) == U
        assert read_epochs(directory) == [(0, 0)]
        assert [one.read_bytes() for one in directory.glob("*.log")] == [data]


def test_a_full_disk_leaves_no_directory_without_epochs(
    world: CutWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check it where a file is missing that the same process writes when there is room again."""
    event = Shipped(1, (ShippedRange("0/n-3", U, 0, ((0, 0, 2),), (1, 0, 2)),), b"ab")
    files = files_of(world)
    full = OSError(errno.ENOSPC, "full")
    for name in ("write_epochs", "write_topic_id"):
        with monkeypatch.context() as patched:
            patched.setattr(shipped, name, Mock(side_effect=full))
            with pytest.raises(OSError, match="full"):
                files.apply(event)
    files.apply(event)
    assert read_epochs(world.log_dirs[0] / "n-3") == [(0, 0)]
    assert files.made == ["0/n-3"]


def test_a_topic_under_an_old_name_has_its_own_log_start(world: CutWorld) -> None:
    """Check that nothing of it goes because of what was deleted of the topic before."""
    log_dir = world.log_dirs[0]
    for name in (LOG_STARTS, HIGH_WATERMARKS, RECOVERY_POINTS):
        write_offsets(log_dir / name, Offsets({("t", 0): 12, ("other", 1): 99}))
    again = ShippedRange(DIRECTORY, U, 0, ((0, 0, 2),), (20, 0, 2))
    files = files_of(world)
    for number in (1, 2):
        files.apply(Shipped(number, (again,), b"cd"))
    files.finish()
    assert dict(read_offsets(log_dir / LOG_STARTS)) == {("t", 0): 0, ("other", 1): 99}
    for name in (HIGH_WATERMARKS, RECOVERY_POINTS):
        assert dict(read_offsets(log_dir / name)) == {("other", 1): 99}


def test_a_partition_that_has_moved_since_is_where_the_cut_has_it(tmp_path: Path) -> None:
    world = CutWorld(tmp_path, 2)
    directory = world.log_dirs[0] / "t-0"
    directory.mkdir()
    write_topic_id(directory, T)
    files = files_of(world)
    files.apply(Shipped(1, (ShippedRange("1/t-0", T, 0, ((0, 0, 2),), (1, 0, 2)),), b"ab"))
    assert (directory / segment_name(0)).read_bytes() == b"ab"
    assert files.made == []


def test_a_gap_and_damage_are_refused(world: CutWorld) -> None:
    with pytest.raises(RestoreRefused, match="has 60 bytes in the cut, what was shipped"):
        files_of(world).apply(Shipped(1, (of((10, 61, 1), end=(17, 10, 62)),), b"x"))
    event = Shipped(1, (of((10, 60, 1), end=(17, 10, 61)),), b"", b"i" * 16, 1, checksum(b"x"))
    world.objects.put(shipped_name(b"i" * 16), [b"y"], 1)
    with pytest.raises(StoreError, match="damaged"):
        files_of(world).apply(event)


def test_a_plan_takes_what_the_newest_cut_does_not_have(world: CutWorld) -> None:
    """Check that a number decides, and not where the event stands: entries go on while a cut is made."""
    first = Shipped(1, (of((10, 60, 1), end=(17, 10, 61)),), b"1")
    second = Shipped(2, (of((10, 61, 1), end=(18, 10, 62)),), b"2")
    object_id = b"i" * 16
    third = Shipped(3, (of((10, 62, 1), end=(19, 10, 63)),), b"", object_id, 1, checksum(b"3"))
    world.ledger.append([first])
    segment = world.log_dirs[0] / "t-0" / segment_name(10)
    segment.write_bytes(segment.read_bytes() + b"1")
    since = world.ledger.seq - 1
    cut = world.cutter.make(world.ledger.state)._replace(shipped=1, since=since)
    world.ledger.append([second])
    world.ledger.append([cut.event(world.ledger.state, world.ledger.seq)])
    world.ledger.append([third])
    plan = make_plan(world.store)
    with pytest.raises(RestoreRefused, match="mpbroker/shipped/6969"):
        check_objects(world.store, plan)
    world.objects.put(shipped_name(object_id), [b"3"], 1)
    check_objects(world.store, plan)
    assert [event.number for event in shipped_after(world.store, plan)] == [2, 3]
    assert list(shipped_after(world.store, make_plan(world.store, plan.cut.taken_ms))) == []
    target = world.root / "target"
    target.mkdir()
    write_files(world.store, plan, [target], lambda _: None)
    assert apply_all_shipped(world.store, plan, [target]).manifest.directories == [DIRECTORY]
    assert (target / "t-0" / segment_name(10)).read_bytes() == b"b" * 60 + b"123"
