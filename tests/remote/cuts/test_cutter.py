"""Cuts of log directories: what comes back is what was there, and what is there already is not read again."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from mpbroker.ipc.table import PartitionFlag
from mpbroker.remote.cuts import bundles, cutter
from mpbroker.remote.cuts.bundles import FileChanged
from mpbroker.remote.cuts.cutter import Cutter, expired
from mpbroker.remote.cuts.instant import CutSkipped
from mpbroker.remote.cuts.manifest import BUNDLES, CUTS, bundle_name
from mpbroker.remote.ledger.events import Shipped, ShippedRange
from mpbroker.remote.restore.offline import bring_forward
from mpbroker.remote.restore.plan import make_plan
from mpbroker.remote.store.object_store import StoreError
from mpbroker.remote.tier.collector import ORPHAN_MS, collect
from mpbroker.storage.checkpoints import text_of_id
from mpbroker.storage.names import META_PROPERTIES, REMOTE_OWNER, REMOTE_SEGMENTS
from tests.support.cut_world import CutWorld, change_a_file, contents
from tests.support.fault_store import Fault, FaultStore
from tests.support.killing_store import Killed, KillingStore
from tests.support.ledger_parts import STARTED, TOPIC, TOPIC_ID, ledger_of, segment

SEGMENT = f"t-0/{0:020d}.log"


@pytest.fixture
def world(tmp_path: Path) -> CutWorld:
    made = CutWorld(tmp_path)
    write(made, SEGMENT, b"first")
    write(made, "t-0/partition.metadata", text_of_id(TOPIC_ID))
    return made


def write(world: CutWorld, name: str, data: bytes) -> None:
    """Append to a file."""
    path = world.log_dirs[0] / name
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        file.write(data)


def expected(world: CutWorld) -> dict[str, bytes]:
    return {path: data for path, data in contents(world.log_dirs).items() if REMOTE_OWNER not in path}


def names(world: CutWorld, prefix: str) -> list[str]:
    return [name for name in world.objects.objects if name.startswith(prefix)]


def test_a_restore_brings_back_all_files_of_the_instant(world: CutWorld) -> None:
    def later() -> None:
        write(world, SEGMENT, b" and more")
        (world.log_dirs[0] / "t-0/partition.metadata").unlink()

    before = expected(world)
    world.at_the_instant = later  # type: ignore[method-assign]
    world.cut()
    assert world.restore() == before
    assert f"0/{META_PROPERTIES}" in before


def test_what_is_of_the_running_broker_or_not_finished_is_in_no_cut(world: CutWorld) -> None:
    before = expected(world)
    for name in (
        *(".lock", "mpbroker.json", "mpbroker.journal", "mpbroker.journal.1", ".kafka_cleanshutdown"),
        *("mpbroker.nodes", "mpbroker.remote.claim", "cleaner-offset-checkpoint"),
        *("x.tmp", f"t-0/{0:020d}.log.deleted", f"t-0/{0:020d}.log.cleaned", f"t-0/{REMOTE_SEGMENTS}"),
        *(f"t-1.{'0' * 32}-delete/{0:020d}.log", "remote-cache/window", f"t-1.{'0' * 32}-stray/x"),
    ):
        write(world, name, b"x")
    world.cut()
    assert world.restore() == before


@pytest.fixture
def two(tmp_path: Path) -> CutWorld:
    """Two log directories, each with a partition, and a cut of both."""
    made = CutWorld(tmp_path, directories=2)
    for number, log_dir in enumerate(made.log_dirs):
        (log_dir / f"t-{number}").mkdir()
        (log_dir / f"t-{number}" / "partition.metadata").write_bytes(text_of_id(TOPIC_ID))
        (log_dir / f"t-{number}" / f"{0:020d}.log").write_bytes(b"before")
    made.ledger.append([TOPIC, segment(0, partition=1)])
    made.cut()
    return made


def brought_back(world: CutWorld) -> dict[str, bytes]:
    """Return the files of the newest cut, although the segment has no objects."""
    found = world.restore(make_plan(world.objects))
    return {path: data for path, data in found.items() if REMOTE_SEGMENTS not in path}


def grow(world: CutWorld) -> None:
    for path in world.root.glob("data*/t-*/*.log"):
        path.write_bytes(b"before, and since")


@pytest.mark.parametrize("is_there", [True, False])
def test_of_an_offline_directory_a_cut_has_what_the_one_before_has(
    two: CutWorld, caplog: pytest.LogCaptureFixture, *, is_there: bool
) -> None:
    """Check it for one that has failed, and for one that cannot be listed any more."""
    before = {path: data for path, data in expected(two).items() if path[0] == "1"}
    remote = make_plan(two.objects).manifest.remote
    assert remote
    grow(two)
    if is_there:
        two.failed = 0b10
    else:
        two.log_dirs[1].rename(two.root / "away")
    for _ in range(3):
        two.cut()
    of_first = {path: data for path, data in expected(two).items() if path[0] == "0"}
    assert b"since" in of_first[f"0/t-0/{0:020d}.log"]
    two.again()
    two.cut()
    assert brought_back(two) == {**of_first, **before}
    manifest = make_plan(two.objects).manifest
    assert (manifest.remote, sorted(manifest.directories)) == (remote, ["0/t-0", "1/t-1"])
    assert [one.getMessage()[-45:] for one in caplog.records if "is offline" in one.getMessage()] == [
        "data1 is offline: new cuts repeat what the last one has of it, and what was shipped since"[-45:]
    ] * 2
    two.failed = 0
    if not is_there:
        (two.root / "away").rename(two.log_dirs[1])
    two.cut()
    assert brought_back(two) == expected(two)


def test_of_an_offline_directory_a_cut_has_what_was_shipped_and_no_round_on_its_way(two: CutWorld) -> None:
    before = expected(two)
    grow(two)
    key = f"1/t-1/{0:020d}.log"
    two.ledger.append([Shipped(1, (ShippedRange("1/t-1", TOPIC_ID, 0, ((0, 6, 4),), (9, 0, 10)),), b"1234")])
    # The ledger has the second round only after the instant.
    two.failed, two.shipped = 0b10, 2
    two.cut()
    assert two.ledger.state.cuts[-1].event.shipped == 1
    assert two.ledger.state.shipped == []
    second = Shipped(2, (ShippedRange("1/t-1", TOPIC_ID, 0, ((0, 10, 2),), (10, 0, 12)),), b"56")
    two.ledger.append([second])
    assert two.ledger.state.shipped == [(2, b"")]
    assert brought_back(two)[key] == before[key] + b"1234"
    two.again()
    two.cut()
    assert two.ledger.state.shipped == []
    assert brought_back(two)[key] == before[key] + b"123456"


def test_of_an_offline_directory_a_cut_has_what_one_without_an_answer_has(two: CutWorld) -> None:
    """What was shipped before that one is nowhere else: no restore of the next cut would apply it."""
    grow(two)
    two.shipped = 1
    cut = two.cutter.make(two.ledger.state)
    two.ledger.append([cut.event(two.ledger.state, two.ledger.seq)])
    two.failed = 0b10
    two.cut()
    assert brought_back(two) == expected(two)


def test_what_is_offline_before_the_first_cut_is_in_none(tmp_path: Path) -> None:
    world = CutWorld(tmp_path, directories=2)
    world.failed = 0b10
    with pytest.raises(CutSkipped, match="no former cut has it"):
        world.cut()


def test_only_the_new_end_of_a_segment_is_read(world: CutWorld) -> None:
    write(world, SEGMENT, os.urandom(1 << 20))
    first = world.cut()
    write(world, SEGMENT, b"the end")
    second = world.cut()
    assert world.read < 1000
    assert world.restore() == expected(world)
    assert set(first.manifest.bundles) < set(second.manifest.bundles)


def test_a_successor_goes_on_where_the_newest_cut_ends(world: CutWorld) -> None:
    write(world, SEGMENT, os.urandom(1 << 20))
    world.cut()
    world.again()
    world.cut()
    assert world.read < 1000
    assert world.restore() == expected(world)


def test_a_segment_that_was_cut_off_and_has_grown_again_is_read_anew(world: CutWorld) -> None:
    write(world, SEGMENT, b"a" * 5000)
    world.cut()
    path = world.log_dirs[0] / SEGMENT
    os.truncate(path, 100)
    write(world, SEGMENT, b"b" * 6000)
    world.cut()
    assert world.restore() == expected(world)


def test_a_segment_that_is_cut_off_and_grows_while_it_is_read_is_read_anew(world: CutWorld) -> None:
    write(world, SEGMENT, b"a" * 5000)

    def meanwhile(count: int) -> None:
        if count > 5000:
            os.truncate(world.log_dirs[0] / SEGMENT, 100)
            write(world, SEGMENT, b"b" * 6000)

    world._paced = meanwhile  # type: ignore[method-assign]
    world.again()
    world.cut()
    world.cut()
    assert world.restore() == expected(world)


def test_of_a_segment_that_was_replaced_all_is_read(world: CutWorld) -> None:
    world.cut()
    path = world.log_dirs[0] / SEGMENT
    path.with_suffix(".log.swap").write_bytes(b"compacted")
    path.with_suffix(".log.swap").rename(path)
    world.cut()
    assert world.restore() == expected(world)


def test_segments_that_the_ledger_has_are_not_in_a_cut(world: CutWorld) -> None:
    for base in (0, 10, 20):
        write(world, f"t-0/{base:020d}.index", b"index")
        write(world, f"t-0/{base:020d}.snapshot", b"snapshot")
        write(world, f"t-0/{base:020d}.log", b"log")
    world.ledger.append([TOPIC, segment(0), segment(10)])
    world.cut()
    world.ledger.append([segment(20)])
    plan = make_plan(world.objects)
    assert [one.base for one in plan.segments["0/t-0"]] == [0, 10]
    restored = world.restore(plan)
    assert {name for name in restored if name.endswith(".log")} == {f"0/t-0/{20:020d}.log"}
    assert {name for name in restored if name.endswith(".index")} == {f"0/t-0/{20:020d}.index"}
    assert f"0/t-0/{REMOTE_SEGMENTS}" in restored


def test_segments_that_are_about_to_be_removed_from_the_store_are_in_a_cut(world: CutWorld) -> None:
    """Otherwise a restore would lack them, until the cut after the removal."""
    for base in (10, 20):
        write(world, f"t-0/{base:020d}.log", b"log")
    world.open("0/t-0", TOPIC_ID)
    world.ledger.append([TOPIC, segment(0), segment(10)])
    key = TOPIC_ID, 0
    world.cut()
    assert world.cutter.needs(world.ledger.state, key)
    world.open("0/t-0", TOPIC_ID, PartitionFlag.PARTITION_REMOTE_DELETED)
    cut = world.cutter.make(world.ledger.state)
    world.ledger.append([cut.event(world.ledger.state, world.ledger.seq)])
    # Nobody knows it yet: its entry had no answer.
    assert world.cutter.needs(world.ledger.state, key)
    world.cutter.published(cut)
    assert not world.cutter.needs(world.ledger.state, key)
    assert world.restore(make_plan(world.objects)) == expected(world)


def test_a_file_in_too_many_pieces_is_read_anew(world: CutWorld) -> None:
    for _ in range(bundles.PIECES_MAX + 1):
        write(world, SEGMENT, b"x" * 1000)
        cut = world.cut()
    pieces = {one.path: len(one.pieces) for one in cut.manifest.files}
    assert pieces[f"0/{SEGMENT}"] > bundles.PIECES_MAX
    write(world, SEGMENT, b"x")
    cut = world.cut()
    assert {one.path: len(one.pieces) for one in cut.manifest.files}[f"0/{SEGMENT}"] == 1
    assert world.restore() == expected(world)


def test_a_bundle_of_which_little_is_left_goes(world: CutWorld) -> None:
    write(world, f"t-0/{10:020d}.log", b"y" * 100_000)
    first = world.cut()
    (world.log_dirs[0] / f"t-0/{10:020d}.log").unlink()
    world.cut()
    second = world.cut()
    assert not set(first.manifest.bundles) & set(second.manifest.bundles)
    assert set(world.ledger.state.bundles.values()) > {None}
    assert world.restore() == expected(world)


def test_a_file_that_becomes_shorter_while_it_is_read_ends_the_cut_and_the_next_one_is_whole(
    world: CutWorld,
) -> None:
    world.cut()
    write(world, SEGMENT, b"x" * 100)
    world.at_the_instant = lambda: os.truncate(world.log_dirs[0] / SEGMENT, 10)  # type: ignore[method-assign]
    with pytest.raises(FileChanged):
        world.cut()
    assert len(world.ledger.state.cuts) == 1
    world.at_the_instant = lambda: None  # type: ignore[method-assign]
    world.cut()
    assert world.restore() == expected(world)


def test_many_files_are_brought_into_the_store_before_the_pause(world: CutWorld) -> None:
    with patch.object(cutter, "LAST_PASS_FILES", 2), patch.object(bundles, "UNSURE_NS", -1):
        for number in range(7):
            write(world, f"t-{number}/{0:020d}.log", b"x" * number)
        opened: list[int] = []
        instant = world._instant

        def counted(state, known, former):  # type: ignore[no-untyped-def]
            found = instant(state, known, former)
            opened.append(len(found.opened))
            return found

        world._instant = counted  # type: ignore[method-assign]
        world.again()
        world.cut()
    assert opened == [0]
    assert world.restore() == expected(world)


def test_large_files_lie_in_several_bundles(world: CutWorld) -> None:
    with patch.object(bundles, "BUNDLE_BYTES", 1000):
        write(world, SEGMENT, os.urandom(3500))
        cut = world.cut()
    assert len(cut.manifest.bundles) >= 4
    assert max(cut.manifest.bundles.values()) <= 1000
    assert world.restore() == expected(world)


def test_the_collector_spares_what_a_cut_brings_into_the_store_for_days(world: CutWorld) -> None:
    write(world, f"t-0/{1:020d}.log", b"second")

    def slow(count: int) -> None:  # noqa: ARG001 - the method's
        world.objects.now_ms += 2 * ORPHAN_MS
        collect(world.objects, world.ledger.state, world.cutter.bundles(), nothing, nothing)

    with patch.object(bundles, "BUNDLE_BYTES", 6):
        world._paced = slow  # type: ignore[method-assign]
        world.again()
        assert len(world.cut().manifest.bundles) > 2
    assert world.restore() == expected(world)


def nothing(*_: object) -> None:
    pass


def test_a_request_that_fails_ends_the_cut_and_the_next_one_is_whole(tmp_path: Path) -> None:
    world = CutWorld(tmp_path)
    write(world, SEGMENT, b"first")
    world.store = store = FaultStore(world.objects)
    world.again()
    for _ in range(2):
        store.plan("put", Fault.ERROR)
        with pytest.raises(StoreError):
            world.cut()
        write(world, SEGMENT, b"more")
    world.cut()
    assert world.restore() == expected(world)


def test_cuts_end_with_the_retention_and_bundles_with_the_last_cut_that_names_them(world: CutWorld) -> None:
    for number in range(4):
        (world.log_dirs[0] / SEGMENT).unlink()
        write(world, SEGMENT, b"x" * (number + 1))
        world.cut()
    state = world.ledger.state
    now_ms = state.cuts[0].time_ms
    assert next(iter(state.bundles.values())) is not None, "the first bundle is no longer named"
    assert expired(state, now_ms + 1_000, 1_000) is None
    event = expired(state, now_ms + 1, 0)
    assert event is not None
    assert event.cut_ids == tuple(one.event.cut_id for one in state.cuts[:-1])
    named = set(map(bytes.fromhex, world.plan().manifest.bundles))
    assert set(event.bundle_ids) == set(state.bundles) - named
    world.ledger.append([event])
    world.objects.delete([*map(bundle_name, event.bundle_ids)])
    assert len(world.ledger.state.cuts) == 1
    assert world.restore() == expected(world)
    assert expired(world.ledger.state, now_ms + 10, 0) is None


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_to_files_each_kept_cut_brings_back_its_instant(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    world = CutWorld(tmp_path, directories=2)
    instants: dict[bytes, dict[str, bytes]] = {}
    with patch.object(bundles, "PIECES_MAX", 3), patch.object(bundles, "BUNDLE_BYTES", 700):
        for _ in range(40):
            change_a_file(world.log_dirs, chance, lambda _path: world.again())
            if chance.random() < 0.5:
                before = expected(world)
                cut = world.cut()
                instants[cut.cut_id] = before
                assert world.restore() == before
    for one in world.ledger.state.cuts:
        assert world.restore(world.plan(one.event.taken_ms)) == instants[one.event.cut_id]
    assert len(names(world, CUTS)) == len(instants)
    assert {bundle_name(one) for one in world.ledger.state.bundles} <= set(names(world, BUNDLES))


@pytest.mark.parametrize("is_applied", [False, True])
def test_a_kill_at_any_request_loses_no_cut(tmp_path: Path, is_applied: bool) -> None:
    at = 0
    while True:
        root = tmp_path / str(at)
        root.mkdir()
        world = CutWorld(root)
        path = world.log_dirs[0] / "t-0" / f"{0:020d}.log"
        path.parent.mkdir()
        path.write_bytes(b"first")
        world.cut()
        first = world.restore()
        path.write_bytes(b"first and second")
        killing = KillingStore(world.objects, at, is_applied=is_applied)
        ledger = ledger_of(killing, world.log_dirs[0])
        with suppress(Killed):
            ledger.start(STARTED)
            cutter = Cutter(
                killing, world.broker, ("cluster", 1), world._instant, lambda _count: None, bring_forward
            )
            cutter.remember(ledger.state)
            cut = cutter.make(ledger.state)
            ledger.append([cut.event(ledger.state, ledger.seq)])
            break
        found = world.restore()
        assert found[f"0/t-0/{0:020d}.log"] in (b"first", b"first and second")
        assert found.keys() == first.keys()
        world.ledger = ledger_of(world.objects, world.log_dirs[0])
        world.ledger.start(STARTED)
        world.again()
        world.cut()
        assert world.restore()[f"0/t-0/{0:020d}.log"] == b"first and second"
        at += 1
    assert at > 5


@pytest.mark.parametrize("is_damaged", [False, True])
def test_after_a_start_of_the_machine_it_brings_only_what_is_new_into_the_store(
    world: CutWorld, is_damaged: bool
) -> None:
    write(world, SEGMENT, bytes(100_000))
    world.cut()
    path = world.log_dirs[0] / SEGMENT
    data = bytearray(path.read_bytes())
    if is_damaged:
        data[50_000] = 1
    path.unlink()
    path.write_bytes(data)
    write(world, SEGMENT, b"new")
    with patch.object(cutter, "_BOOT_ID", Path("/proc/sys/kernel/random/uuid")):
        world.again()
    world.cut()
    assert (world.read > 100_000) == is_damaged
    assert world.restore() == expected(world)
