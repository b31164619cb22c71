"""A mirror of log directories: after each cut it is what a fresh restore would be, whatever was there."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from mpbroker.remote.cuts import bundles
from mpbroker.remote.restore import mirror
from mpbroker.remote.restore.files import finish
from mpbroker.remote.restore.mirror import Mirror
from mpbroker.remote.store.object_store import ObjectMissing, StoreError
from mpbroker.storage import checkpoints
from mpbroker.storage.names import META_PROPERTIES, REMOTE_OWNER
from tests.support.cut_world import CutWorld, change_a_file, contents
from tests.support.killing_store import Killed, KillingStore

SEGMENT = f"t-0/{0:020d}.log"


@pytest.fixture
def world(tmp_path: Path) -> CutWorld:
    made = CutWorld(tmp_path, directories=2)
    write(made, SEGMENT, os.urandom(10_000))
    return made


def write(world: CutWorld, name: str, data: bytes) -> None:
    path = world.log_dirs[0] / name
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        file.write(data)


def targets(world: CutWorld) -> list[Path]:
    made = [world.root / f"mirror{number}" for number in range(len(world.log_dirs))]
    for one in made:
        one.mkdir(exist_ok=True)
    return made


def original(world: CutWorld) -> dict[str, bytes]:
    """Return what a mirror has to be: the files of the broker, with the name of an unfinished restore."""
    found = contents(world.log_dirs)
    return {
        path.replace(META_PROPERTIES, f"{META_PROPERTIES}.restored"): data
        for path, data in found.items()
        if REMOTE_OWNER not in path
    }


def test_only_what_is_new_is_downloaded(world: CutWorld) -> None:
    sizes: list[int] = []
    follower = Mirror(world.objects, targets(world), sizes.append)
    world.cut()
    follower.apply(world.plan().manifest)
    assert sum(sizes) > 10_000
    sizes.clear()
    write(world, SEGMENT, b"the end")
    world.cut()
    follower.apply(world.plan().manifest)
    assert 7 <= sum(sizes) < 1_000
    # A successor compares what it finds.
    sizes.clear()
    Mirror(world.objects, targets(world), sizes.append).apply(world.plan().manifest)
    assert sum(sizes) == 0
    assert contents(targets(world)) == original(world)


def test_what_was_written_beyond_a_cut_is_used_by_the_next_one(world: CutWorld) -> None:
    sizes: list[int] = []
    follower = Mirror(world.objects, targets(world), sizes.append)
    world.cut()
    follower.apply(world.plan().manifest)
    more = os.urandom(5_000)
    with (targets(world)[0] / SEGMENT).open("ab") as file:
        file.write(more + b"never in a cut")
    follower.touched(f"0/{SEGMENT}", 10_000)
    sizes.clear()
    write(world, SEGMENT, more)
    world.cut()
    follower.apply(world.plan().manifest)
    assert sum(sizes) < 1_000
    assert contents(targets(world)) == original(world)
    # Also if the next cut has no more of that file.
    with (targets(world)[0] / SEGMENT).open("ab") as file:
        file.write(b"never in a cut")
    follower.touched(f"0/{SEGMENT}", 15_000)
    world.cut()
    follower.apply(world.plan().manifest)
    assert contents(targets(world)) == original(world)


def test_what_lies_before_bytes_that_were_added_is_not_read_again(world: CutWorld) -> None:
    """Check it as with many commit rounds between two cuts: a segment may be large."""
    follower = Mirror(world.objects, targets(world))
    world.cut()
    follower.apply(world.plan().manifest)
    for position in (10_000, 10_001):
        write(world, SEGMENT, b"x")
        (targets(world)[0] / SEGMENT).write_bytes((world.log_dirs[0] / SEGMENT).read_bytes())
        follower.touched(f"0/{SEGMENT}", position)
    world.cut()
    with patch.object(mirror, "crc_of", wraps=mirror.crc_of) as compared:
        follower.apply(world.plan().manifest)
    # `crc_of(fd, at, length)`
    assert (10_000, 2) in [call.args[1:] for call in compared.call_args_list]
    assert (0, 10_000) not in [call.args[1:] for call in compared.call_args_list]
    assert contents(targets(world)) == original(world)


def test_bytes_that_were_changed_within_the_cut_are_compared_again(world: CutWorld) -> None:
    follower = Mirror(world.objects, targets(world))
    world.cut()
    follower.apply(world.plan().manifest)
    with (targets(world)[0] / SEGMENT).open("r+b") as file:
        file.write(b"other")
    follower.touched(f"0/{SEGMENT}", 0)
    follower.apply(world.plan().manifest)
    assert contents(targets(world)) == original(world)


def test_what_is_not_of_the_mirror_stays(world: CutWorld) -> None:
    first, _ = targets(world)
    for name in (".lock", "mpbroker.standby/x", "mpbroker.fenced/1/t-0/x", "claim", "t-9/x", "other"):
        (first / name).parent.mkdir(parents=True, exist_ok=True)
        (first / name).write_bytes(b"")
    world.cut()
    Mirror(world.objects, targets(world), kept=["claim"]).apply(world.plan().manifest)
    added = contents(targets(world)).keys() - original(world).keys()
    assert added == {"0/.lock", "0/mpbroker.standby/x", "0/mpbroker.fenced/1/t-0/x", "0/claim"}


def test_a_bundle_that_is_gone_or_damaged_ends_it_and_the_next_cut_is_whole(world: CutWorld) -> None:
    world.cut()
    manifest = world.plan().manifest
    kept = dict(world.objects.objects)
    name = next(one for one in kept if one.startswith("mpbroker/bundles/"))
    follower = Mirror(world.objects, targets(world))
    del world.objects.objects[name]
    with pytest.raises(ObjectMissing):
        follower.apply(manifest)
    world.objects.objects[name] = kept[name][:-1] + bytes([kept[name][-1] ^ 1])
    with pytest.raises(StoreError, match="damaged"):
        follower.apply(manifest)
    world.objects.objects[name] = kept[name]
    write(world, SEGMENT, b"more")
    world.cut()
    follower.apply(world.plan().manifest)
    assert contents(targets(world)) == original(world)


@contextmanager
def killed_at(at: int) -> Iterator[list[int]]:
    """Kill whoever changes a file for the time `at`; a write is done by half. Yields the count of changes."""
    count = [0]

    def counted(do: Callable[..., Any], half: Callable[..., Any] | None = None) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            if count[0] > at:
                if half is not None and count[0] == at + 1:
                    half(*args)
                raise Killed
            return do(*args, **kwargs)

        return call

    write = checkpoints.write_all_at
    with (
        patch.object(mirror, "READERS", 1),
        patch.object(
            mirror, "write_all_at", counted(write, lambda fd, data, to: write(fd, data[: len(data) // 2], to))
        ),
        patch.object(os, "ftruncate", counted(os.ftruncate)),
        patch.object(shutil, "rmtree", counted(shutil.rmtree)),
        patch.object(Path, "unlink", counted(Path.unlink)),
        patch.object(Path, "mkdir", counted(Path.mkdir)),
        suppress(Killed),
    ):
        yield count


def test_a_kill_between_any_two_changes_is_repaired(world: CutWorld) -> None:
    world.cut()
    start = world.plan().manifest
    (world.log_dirs[0] / SEGMENT).rename(world.log_dirs[0] / f"t-0/{7:020d}.log")
    shutil.copytree(world.log_dirs[0] / "t-0", world.log_dirs[1] / "u-0")
    write(world, f"v-0/{0:020d}.log", b"x" * 3000)
    world.cut()
    write(world, f"t-0/{7:020d}.log", b"more")
    world.cut()
    end, at = world.plan().manifest, 0
    while True:
        for target in targets(world):
            shutil.rmtree(target)
        follower = Mirror(world.objects, targets(world))
        follower.apply(start)
        for one in ("t-1", "t-0/x"):
            (targets(world)[0] / one).mkdir()
        with killed_at(at) as count:
            follower.apply(end)
        # Once in the same process, which had an error, and once in a successor.
        successor = follower if at % 2 else Mirror(world.objects, targets(world))
        successor.apply(end)
        assert contents(targets(world)) == original(world)
        if count[0] <= at:
            break
        at += 1
    assert at > 8


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_to_files_the_mirror_is_the_instant_of_each_cut(
    tmp_path: Path, seed: int, is_read: bool
) -> None:
    chance = random.Random(seed)
    world = CutWorld(tmp_path, directories=2)
    follower = Mirror(world.objects, targets(world), is_read=is_read)
    with patch.object(bundles, "PIECES_MAX", 3), patch.object(bundles, "BUNDLE_BYTES", 700):
        for _ in range(60):
            change_a_file(world.log_dirs, chance, lambda path: shutil.rmtree(path.parent))
            if chance.random() < 0.5:
                world.cut()
                if chance.random() < 0.3:
                    # Some cuts are missed, some are begun, by processes that die or see errors.
                    with suppress(Killed):
                        Mirror(KillingStore(world.objects, chance.randrange(3)), targets(world)).apply(
                            world.plan().manifest
                        )
                    follower = Mirror(world.objects, targets(world), is_read=is_read)
                elif chance.random() < 0.7:
                    links = linked(targets(world), tmp_path / "links") if is_read else {}
                    with killed_at(chance.randrange(20)):
                        follower.apply(world.plan().manifest)
                    follower.apply(world.plan().manifest)
                    assert all(link.read_bytes().startswith(data) for link, data in links.items())
                    assert contents(targets(world)) == original(world)
                    assert empty_directories(targets(world)) == empty_directories(world.log_dirs)
    world.cut()
    follower.apply(world.plan().manifest)
    finish(targets(world))
    assert contents(targets(world)) == world.restore()


def empty_directories(log_dirs: list[Path]) -> set[str]:
    return {
        f"{number}/{path.name}"
        for number, log_dir in enumerate(log_dirs)
        for path in log_dir.iterdir()
        if path.is_dir()
    }


def linked(log_dirs: list[Path], directory: Path) -> dict[Path, bytes]:
    """Link all files; return what they have, by link."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    found = {}
    for number, path in enumerate(path for one in log_dirs for path in one.rglob("*") if path.is_file()):
        os.link(path, directory / str(number))
        found[directory / str(number)] = path.read_bytes()
    return found
