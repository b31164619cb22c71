"""Consumers of a replica see what a cut has, up to its high watermark, also while the next one is applied."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from mpbroker.ipc.mirror import ReadPartition
from mpbroker.records.aborted import from_fetch
from mpbroker.records.builder import build_batch, build_transaction_marker
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.markers import ABORT, COMMIT
from mpbroker.records.record import NewRecord
from mpbroker.remote.cuts.manifest import CutEnd, CutManifest
from mpbroker.remote.restore import mirror
from mpbroker.remote.restore.mirror import Mirror
from mpbroker.standby.replica import Replica
from mpbroker.storage.checkpoints import write_epochs, write_topic_id
from mpbroker.storage.names import (
    REPLICA,
    TXN_INDEX_SUFFIX,
    links_name,
    segment_name,
)
from mpbroker.storage.reader import Bound, PartitionReader
from mpbroker.storage.transaction_index import AbortedTransaction, add_aborted
from tests.support.cut_world import CutWorld
from tests.support.killing_store import Killed
from tests.support.ledger_parts import TOPIC_ID

# What is seen with each isolation level.
Seen = tuple[list[int], list[int]]


class Original:
    """Partition 0 of topic t at its owner, and a model of what consumers may see of it."""

    def __init__(self, log_dir: Path, topic_id: bytes = TOPIC_ID) -> None:
        self.topic_id = topic_id
        self.directory = log_dir / "t-0"
        self.directory.mkdir()
        write_topic_id(self.directory, topic_id)
        write_epochs(self.directory, [(3, 0)])
        self.bases = [0]
        self.end = self.high_watermark = self.log_start = 0
        self.open: dict[int, int] = {}
        # Offsets of records: all, those of aborted transactions, and those of open ones by producer.
        self.records: list[int] = []
        self.aborted: set[int] = set()
        self.begun: dict[int, set[int]] = {}
        self._path.touch()

    @property
    def _path(self) -> Path:
        return self.directory / segment_name(self.bases[-1])

    def _write(self, batch: bytes | bytearray, count: int) -> None:
        with self._path.open("ab") as file:
            file.write(batch)
        self.end += count

    def append(self, producer_id: int = -1) -> None:
        count = 1 + self.end % 3
        batch = build_batch(
            [NewRecord(b"k", b"v" * (self.end % 50), 1) for _ in range(count)],
            base_offset=self.end,
            leader_epoch=3,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=0 if producer_id >= 0 else -1,
            transactional=producer_id >= 0,
        )
        offsets = range(self.end, self.end + count)
        self.records += offsets
        if producer_id >= 0:
            self.open.setdefault(producer_id, self.end)
            self.begun.setdefault(producer_id, set()).update(offsets)
        self._write(batch, count)

    def finish(self, producer_id: int, kind: int) -> None:
        if (first := self.open.pop(producer_id, None)) is None:
            return
        batch = build_transaction_marker(
            kind,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=1,
            base_offset=self.end,
            leader_epoch=3,
        )
        if kind == ABORT:
            stable = min([*self.open.values(), self.end + 1])
            entry = AbortedTransaction(producer_id, first, self.end, stable)
            add_aborted(self._path.with_suffix(TXN_INDEX_SUFFIX), entry)
            self.aborted |= self.begun[producer_id]
        self.begun[producer_id] = set()
        self._write(batch, 1)

    def roll(self) -> None:
        if self.end > self.bases[-1]:
            self.bases.append(self.end)
            self._path.touch()

    def drop(self) -> None:
        """Delete the first segment, as retention does."""
        if len(self.bases) > 1 and self.bases[1] <= min([self.high_watermark, *self.open.values()]):
            base = self.bases.pop(0)
            for path in self.directory.glob(f"{base:020d}.*"):
                path.unlink()
            self.log_start = self.bases[0]

    def replace(self) -> None:
        """Put another file in the place of a segment, as compaction does: a sealed one loses a batch."""
        path, data = self.directory / segment_name(self.bases[0]), b""
        is_sealed, is_lost = len(self.bases) > 1 and self.bases[1] <= self.high_watermark, False
        whole = path.read_bytes()
        for batch in iterate_batches(whole):
            offsets = range(batch.header.base_offset, batch.last_offset + 1)
            if is_sealed and not is_lost and batch.header.producer_id < 0:
                is_lost, self.records = True, [one for one in self.records if one not in offsets]
            else:
                data += whole[batch.header.position :][: batch.header.length]
        path.with_suffix(".swapped").write_bytes(data)
        path.with_suffix(".swapped").rename(path)

    def end_in(self, manifest: CutManifest) -> CutManifest:
        """Return the manifest as if the broker had published this."""
        stable = min([self.high_watermark, *self.open.values()])
        end = CutEnd("0/t-0", self.topic_id, 0, self.log_start, self.high_watermark, stable)
        return replace(manifest, ends=[end])

    def flush(self) -> None:
        self.high_watermark = self.end

    def seen(self) -> Seen:
        """Return the offsets of what consumers may see now. All markers are below the high watermark."""
        visible = [one for one in self.records if self.log_start <= one < self.high_watermark]
        stable = min([self.high_watermark, *self.open.values()])
        return visible, [one for one in visible if one < stable and one not in self.aborted]


def seen(log_dirs: list[Path], one: ReadPartition) -> Seen:
    """Read what a consumer of the replica gets, from the first to the last offset."""
    links = log_dirs[one.log_dir] / REPLICA / links_name(one.topic_id, one.partition, one.generation)
    found: list[list[int]] = []
    for bound in (Bound(*one.high_watermark), Bound(*one.last_stable)):
        reader, offset, offsets = PartitionReader(links), one.log_start, list[int]()
        while offset < bound.offset and (piece := reader.fetch_slice(offset, 200, bound)) is not None:
            data = Path(os.fsdecode(piece.path)).read_bytes()[piece.position :][: piece.length]
            aborted = reader.aborted(offset, piece, bound, one.aborted_end) if found else []
            ranges = from_fetch(data, [(each.producer_id, each.first_offset) for each in aborted])
            for batch in iterate_batches(data):
                if not (batch.is_control or (found and ranges.is_aborted(batch))):
                    offsets += [record.offset for record in batch.records()]
                offset = batch.last_offset + 1
        reader.close()
        found.append([each for each in offsets if each >= one.log_start])
    return found[0], found[1]


class World(CutWorld):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.original = Original(self.log_dirs[0])
        self.mirrored = [root / "mirror"]
        self.mirrored[0].mkdir()
        self.begin()

    def begin(self) -> None:
        """Let a follower begin, with nothing but the files of a former one."""
        self.mirror = Mirror(self.objects, self.mirrored, is_read=True)
        self.replica = Replica(self.mirrored)

    def manifest(self) -> CutManifest:
        """Return the newest cut."""
        return self.original.end_in(self.plan().manifest)

    def follow(self) -> None:
        manifest = self.manifest()
        self.mirror.apply(manifest)
        self.replica.update(manifest)

    def cut_and_follow(self) -> ReadPartition:
        self.cut()
        self.follow()
        (one,) = self.replica.partitions
        return one


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def change(original: Original, chance: random.Random) -> None:
    match chance.randrange(12):
        case 0:
            original.roll()
        case 1:
            original.drop()
        case 2:
            original.replace()
        case 3 | 4:
            # The high watermark stays behind what comes later, but no marker is above it alone.
            original.flush()
        case 5 | 6 | 7:
            original.append(chance.randrange(3))
        case 8 | 9:
            original.flush()
            original.finish(chance.randrange(3), chance.choice([ABORT, COMMIT]))
            original.flush()
        case _:
            original.append()


@pytest.mark.parametrize("seed", range(4))
def test_each_cut_is_seen_up_to_its_high_watermark_and_stays_while_the_next_is_applied(
    tmp_path: Path, seed: int
) -> None:
    chance, world = random.Random(seed), World(tmp_path)
    before: tuple[ReadPartition, Seen] | None = None
    for _ in range(40):
        for _ in range(chance.randrange(6)):
            change(world.original, chance)
        expected = world.original.seen()
        world.cut()
        manifest = world.manifest()
        world.mirror.apply(manifest)
        if before is not None:
            assert seen(world.mirrored, before[0]) == before[1]
        world.replica.update(manifest)
        (one,) = world.replica.partitions
        assert seen(world.mirrored, one) == expected
        assert one.leader_epoch == 3
        if before is not None:
            # Handlers that know the former slot find its files.
            assert seen(world.mirrored, before[0]) == before[1]
            assert (before[0].place == one.place) == (before[0] == one)
        before = one, expected
        if chance.random() < 0.1:
            world.begin()
            before = None


def test_one_that_was_not_open_is_readable_as_before_and_one_that_is_gone_is_not(world: World) -> None:
    world.original.append()
    world.original.flush()
    one, expected = world.cut_and_follow(), world.original.seen()
    world.original.append()
    world.original.roll()
    world.cut()
    manifest = world.plan().manifest
    for _ in range(2):
        world.mirror.apply(manifest)
        world.replica.update(manifest)
        assert world.replica.partitions == [one]
        assert seen(world.mirrored, one) == expected
    world.original.flush()
    assert seen(world.mirrored, world.cut_and_follow()) == world.original.seen()
    shutil.rmtree(world.original.directory)
    world.cut()
    world.replica.update(world.plan().manifest)
    assert world.replica.partitions == []


def test_who_follows_a_killed_follower_serves_the_cut(tmp_path: Path) -> None:
    at = 0
    while True:
        (tmp_path / str(at)).mkdir()
        world = World(tmp_path / str(at))
        world.original.append()
        world.original.flush()
        world.cut_and_follow()
        world.original.append()
        world.original.roll()
        world.original.replace()
        world.original.flush()
        world.cut()
        with killed_at(at) as count:
            world.follow()
        if at % 2:
            # Otherwise the store or the disk has failed, and the same process goes on.
            world.begin()
        world.follow()
        (one,) = world.replica.partitions
        assert seen(world.mirrored, one) == world.original.seen()
        if count[0] <= at:
            break
        at += 1
    assert at > 8


@contextmanager
def killed_at(at: int) -> Iterator[list[int]]:
    """Kill the process before its change number `at` of a file."""
    count = [0]

    def counted(do: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            if count[0] > at:
                raise Killed
            return do(*args, **kwargs)

        return call

    changes = ((os, "link"), (shutil, "copyfile"), (Path, "rename"), (Path, "mkdir"), (shutil, "rmtree"))
    with ExitStack() as stack, suppress(Killed):
        for module, name in (*changes, (mirror, "write_all_at")):
            stack.enter_context(patch.object(module, name, counted(getattr(module, name))))
        yield count


def test_another_topic_of_the_same_name_has_files_and_a_slot_of_its_own(world: World) -> None:
    world.original.append()
    world.original.flush()
    former, expected = world.cut_and_follow(), world.original.seen()
    shutil.rmtree(world.original.directory)
    world.original = Original(world.log_dirs[0], bytes(15) + b"2")
    one = world.cut_and_follow()
    assert (one.topic_id, seen(world.mirrored, one)) == (bytes(15) + b"2", ([], []))
    assert seen(world.mirrored, former) == expected
    # A later cut takes the links away, and the slot is another partition's then.
    world.original.append()
    assert world.cut_and_follow().place not in (one.place, former.place)
    assert len(list((world.mirrored[0] / REPLICA).iterdir())) == 2
    world.original.append()
    assert world.cut_and_follow().place == former.place


@pytest.mark.parametrize("spoil", ["index", "swap", "behind"])
def test_what_the_files_do_not_tell_is_not_served(
    world: World, spoil: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.original.append(1)
    world.original.finish(1, ABORT)
    world.original.flush()
    if spoil == "index":
        (world.original.directory / segment_name(0, TXN_INDEX_SUFFIX)).write_bytes(bytes(34))
    elif spoil == "swap":
        (world.original.directory / f"{segment_name(0)}.swap").touch()
    else:
        path = world.original.directory / segment_name(0)
        path.rename(path.with_name(segment_name(7)))
    world.cut()
    world.follow()
    assert world.replica.partitions == []
    assert "consumers cannot read 0/t-0 here until the next cut" in caplog.text


def test_updates_that_fail_use_up_no_slots(world: World) -> None:
    first = world.cut_and_follow()
    world.original.append()
    world.original.flush()
    world.cut()
    manifest = world.manifest()
    world.mirror.apply(manifest)
    for _ in range(3):
        with (
            patch.object(Replica, "_remove_but", side_effect=OSError("the disk is full")),
            pytest.raises(OSError, match="full"),
        ):
            world.replica.update(manifest)
    world.replica.update(manifest)
    (second,) = world.replica.partitions
    assert (first.place, second.place) == (0, 1)
    assert second.high_watermark[0] > first.high_watermark[0]
