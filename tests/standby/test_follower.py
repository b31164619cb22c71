"""A follower of a ledger: its mirror is the newest cut, and it claims nothing that it has not applied."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from mpbroker.ipc.standby_lag import StandbyLag
from mpbroker.protocol.topic_names import METADATA_TOPIC_ID
from mpbroker.records.batch import checksum
from mpbroker.remote.cuts.manifest import BUNDLES, shipped_name
from mpbroker.remote.ledger.entries import Writer, digest, encode_entry, entry_name
from mpbroker.remote.ledger.events import (
    CutsRemoved,
    Event,
    Shipped,
    ShippedRange,
    SnapshotWritten,
    StandbySet,
    TakenOver,
)
from mpbroker.remote.ledger.lease import StandbyWatch
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.ledger.snapshots import Snapshot, encode_snapshot, snapshot_name
from mpbroker.remote.restore.mirror import Mirror, unfinished
from mpbroker.remote.restore.plan import make_plan
from mpbroker.remote.restore.shipped import apply_all_shipped, shipped_after
from mpbroker.remote.store.object_store import StoreError
from mpbroker.standby.follower import SLEPT_NS, CannotFollow, Follower
from mpbroker.standby.replica import Replica
from mpbroker.storage.checkpoints import write_topic_id
from mpbroker.storage.names import META_PROPERTIES, REMOTE_OWNER
from tests.support.cut_world import CutWorld, contents
from tests.support.fault_store import Fault, FaultStore
from tests.support.ledger_parts import TOPIC_ID, read

SEGMENT = f"t-0/{0:020d}.log"
METADATA = f"__cluster_metadata-0/{0:020d}.log"
LEASE_MS = 1_000
STANDBY = 2


class Followed:
    """An owner's directories, and a follower whose clock stands still."""

    def __init__(self, root: Path) -> None:
        self.world = CutWorld(root)
        self.now_ns = 0
        self.store = FaultStore(self.world.objects)
        self.log_dirs = [root / "mirror"]
        self.log_dirs[0].mkdir()
        (self.world.log_dirs[0] / "t-0").mkdir()
        write_topic_id(self.world.log_dirs[0] / "t-0", TOPIC_ID)
        self.write(SEGMENT, b"first")
        self.again()

    def again(self) -> Follower:
        """Let the follower be dead, and have a successor."""
        mirror = Mirror(self.store, self.log_dirs)
        watch = StandbyWatch(STANDBY, LEASE_MS)
        self.follower = Follower(
            LedgerReader(self.store), self.store, self.log_dirs, mirror, watch, lambda: self.now_ns
        )
        return self.follower

    def write(self, name: str, data: bytes) -> None:
        path = self.world.log_dirs[0] / name
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            file.write(data)

    def original(self) -> dict[str, bytes]:
        all_files = contents(self.world.log_dirs)
        found = {path: data for path, data in all_files.items() if REMOTE_OWNER not in path}
        return {
            path.replace(META_PROPERTIES, unfinished(META_PROPERTIES)): data for path, data in found.items()
        }

    def mirror(self) -> dict[str, bytes]:
        return contents(self.log_dirs)

    def wait(self, leases: float) -> None:
        """Poll as often as a standby does it."""
        for _ in range(round(leases * 10)):
            self.now_ns += LEASE_MS * 100_000
            self.follower.poll()


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    return Followed(tmp_path)


def test_the_mirror_is_the_newest_cut_also_after_cuts_that_nobody_saw(followed: Followed) -> None:
    followed.follower.poll()
    assert followed.follower.cut is None
    for count in (1, 1, 3):
        for _ in range(count):
            followed.write(SEGMENT, os.urandom(100))
            followed.world.cut()
        followed.follower.poll()
        assert followed.mirror() == followed.original()
    followed.again().poll()
    assert followed.mirror() == followed.original()


def test_it_tells_what_it_lacks_of_the_ledger(followed: Followed) -> None:
    follower = followed.follower
    assert follower.lag == StandbyLag(0, 0, 0, 0)
    followed.write(SEGMENT, os.urandom(100))
    followed.world.cut()
    followed.now_ns = 10**9
    with patch.object(Mirror, "_download", side_effect=StoreError("away")), pytest.raises(StoreError):
        follower.poll()
    entries = follower.reader.seq
    size = sum(map(len, followed.original().values()))
    assert follower.lag == StandbyLag(0, entries, size, 0)
    follower.poll()
    assert follower.lag == StandbyLag(10**9, 0, 0, followed.world.now_ms)
    followed.now_ns = 2 * 10**9
    followed.store.is_down = True
    with pytest.raises(StoreError):
        follower.poll()
    assert follower.lag.caught_up_ns == 10**9
    followed.store.is_down = False
    follower.poll()
    assert follower.lag.caught_up_ns == 2 * 10**9


def test_a_cut_that_is_kept_no_longer_is_passed_over(followed: Followed) -> None:
    followed.world.cut()
    reader = followed.follower.reader
    reader.read_to_end()
    (followed.world.log_dirs[0] / SEGMENT).unlink()
    followed.write("t-0/other", b"second")
    followed.world.again()
    followed.world.cut()
    followed.world.ledger.append([CutsRemoved((reader.state.cuts[0].event.cut_id,), ())])
    objects = followed.world.objects.objects
    named = {f"{BUNDLES}{one}" for one in make_plan(followed.world.objects).manifest.bundles}
    for name in [one for one in objects if one.startswith(BUNDLES) and one not in named]:
        del objects[name]
    followed.follower.poll()
    assert followed.mirror() == followed.original()


def test_a_bundle_that_is_gone_does_not_end_it(followed: Followed) -> None:
    followed.world.cut()
    objects = dict(followed.world.objects.objects)
    name = next(one for one in objects if one.startswith(BUNDLES))
    del followed.world.objects.objects[name]
    for _ in range(2):
        with pytest.raises(StoreError):
            followed.follower.poll()
    followed.world.objects.objects |= objects
    followed.follower.poll()
    assert followed.mirror() == followed.original()


def test_as_many_log_directories_as_the_owner_has_are_needed(followed: Followed, tmp_path: Path) -> None:
    followed.world.cut()
    followed.log_dirs.append(tmp_path / "second")
    with pytest.raises(CannotFollow, match="has 2 directories, and the owner has 1"):
        followed.again().poll()


def test_it_claims_when_the_lease_has_run_out_and_the_mirror_is_whole(followed: Followed) -> None:
    ledger = followed.world.ledger
    ledger.append([StandbySet(STANDBY, "host", "", {})])
    followed.wait(2)
    assert not followed.follower.may_claim(), "there is no cut"
    followed.world.cut()
    followed.wait(0.9)
    ledger.renew()
    followed.wait(0.9)
    assert not followed.follower.may_claim()
    followed.world.cut()
    followed.store.plan("get", None, Fault.ERROR)
    with pytest.raises(StoreError):
        followed.wait(0.1)
    followed.wait(0.9)
    assert not followed.follower.may_claim(), "it waits since it has applied the cut"
    followed.wait(0.3)
    assert followed.follower.may_claim()
    followed.store.plan("get", Fault.ERROR)
    with pytest.raises(StoreError):
        followed.wait(0.1)
    assert not followed.follower.may_claim(), "the store has no answer"


def test_who_has_slept_until_entries_were_trimmed_goes_on_with_the_newest_cut(followed: Followed) -> None:
    followed.world.cut()
    followed.follower.poll()
    ledger = followed.world.ledger
    ledger.renew()
    followed.write(SEGMENT, b" and more")
    cut, seq = followed.world.cut(), ledger.seq
    packed = encode_snapshot(Snapshot(seq, digest(followed.store.get(entry_name(seq))), ledger.state))
    followed.world.objects.put(snapshot_name(seq), [packed], len(packed))
    ledger.append([SnapshotWritten(seq, seq)])
    del followed.world.objects.objects[entry_name(seq - 1)]
    followed.follower.poll()
    assert followed.follower.reader.seq < ledger.seq
    followed.now_ns += SLEPT_NS + 1
    followed.follower.poll()
    assert followed.follower.reader.seq == ledger.seq
    assert followed.follower.cut is not None
    assert followed.follower.cut.cut_id == cut.cut_id
    assert followed.mirror() == followed.original()


def shipped(followed: Followed, number: int, name: str, data: bytes, *, as_object: bool = False) -> None:
    """Append to a segment, and ship that."""
    path = followed.world.log_dirs[0] / name
    at = path.stat().st_size if path.exists() else 0
    followed.write(name, data)
    object_id = number.to_bytes(16) if as_object else b""
    if as_object:
        followed.world.objects.put(shipped_name(object_id), [data], len(data))
    topic_id = METADATA_TOPIC_ID if name == METADATA else TOPIC_ID
    one = ShippedRange(f"0/{path.parent.name}", topic_id, 0, ((0, at, len(data)),), (1, 0, at + len(data)))
    inline = b"" if as_object else data
    event = Shipped(number, (one,), inline, object_id, len(data), checksum(data))
    followed.world.ledger.append([event])


def test_what_consumers_read_is_a_cut_of_the_generation_that_leads(followed: Followed) -> None:
    followed.write(METADATA, b"metadata")
    followed.world.open("0/t-0", TOPIC_ID)
    followed.world.cut()
    replica = Replica(followed.log_dirs)
    mirror = Mirror(followed.store, followed.log_dirs, is_read=True)
    watch = StandbyWatch(STANDBY, LEASE_MS)
    parts = LedgerReader(followed.store), followed.store, followed.log_dirs, mirror, watch
    follower = Follower(*parts, lambda: followed.now_ns, replica=replica)
    follower.poll()
    before = followed.mirror()
    # "first" is no batch: the partition is there, and empty.
    assert [one.high_watermark for one in follower.partitions or ()] == [(0, 0, 0)]
    assert follower.readable_of == (1, make_plan(followed.world.objects).manifest.taken_ms)
    # It is no more than the cut has.
    shipped(followed, 1, SEGMENT, b"second")
    follower.poll()
    assert followed.mirror() == before
    others_entry(followed, taken_over())
    follower.poll()
    assert follower.partitions == []


def test_what_consumers_read_after_a_take_over_is_a_cut_of_the_new_owner(followed: Followed) -> None:
    """Check it for one that follows only then: the former owner's cut is of another leader's epochs."""
    followed.world.open("0/t-0", TOPIC_ID)
    followed.world.cut()
    others_entry(followed, taken_over())
    mirror = Mirror(followed.store, followed.log_dirs, is_read=True)
    parts = followed.store, followed.log_dirs, mirror, StandbyWatch(STANDBY, LEASE_MS)
    follower = Follower(LedgerReader(followed.store), *parts, replica=Replica(followed.log_dirs))
    follower.poll()
    assert (follower.readable_of[0], follower.partitions) == (1, [])
    state = read(followed.world.objects)
    cut = followed.world.cutter.make(state.state)
    others_entry(followed, cut.event(state.state, state.seq))
    follower.poll()
    assert follower.readable_of == (2, cut.manifest.taken_ms)
    assert [one.topic_id for one in follower.partitions or ()] == [TOPIC_ID]


def others_entry(followed: Followed, event: Event) -> None:
    """Have another owner write an entry."""
    reader = read(followed.world.objects)
    body = encode_entry(Writer(2, "other", "start"), reader.seq + 1, reader.digest, 0, [event])
    assert followed.world.objects.create(entry_name(reader.seq + 1), body)


def test_what_a_restore_has_undone_is_not_in_the_mirror(followed: Followed) -> None:
    """Check that nobody who follows, or restores again, brings back what was shipped after the cut."""
    followed.world.cut()
    cut = read(followed.world.objects).state.cuts[-1].event
    shipped(followed, 1, SEGMENT, b" and undone")
    others_entry(followed, replace(taken_over(), cut_id=cut.cut_id, by_standby=False, shipped=cut.shipped))
    end = len(b"first")
    again = ShippedRange("0/t-0", TOPIC_ID, 0, ((0, end, 6),), (1, 0, end + 6))
    others_entry(followed, Shipped(2, (again,), b" again"))
    followed.follower.poll()
    assert followed.mirror()[f"0/{SEGMENT}"] == b"first again"
    assert [one.number for one in shipped_after(followed.store, make_plan(followed.store))] == [2]


def taken_over() -> TakenOver:
    return TakenOver("cluster", 7, "there", cut_id=bytes(16), by_standby=True)


def test_what_was_shipped_after_the_cut_is_in_the_mirror(followed: Followed) -> None:
    followed.write(METADATA, b"metadata")
    followed.world.cut()
    followed.follower.poll()
    version = followed.follower.version
    shipped(followed, 1, SEGMENT, b" and second")
    shipped(followed, 2, SEGMENT, b" and third", as_object=True)
    followed.follower.poll()
    assert followed.mirror()[f"0/{SEGMENT}"] == b"first and second and third"
    assert followed.follower.version == version
    shipped(followed, 3, METADATA, b" of more")
    followed.follower.poll()
    assert followed.mirror()[f"0/{METADATA}"] == b"metadata of more"
    assert followed.follower.version > version
    # A successor reads it all again, and so does a restore.
    fresh = [followed.log_dirs[0].with_name("fresh")]
    fresh[0].mkdir()
    plan = make_plan(followed.store)
    Mirror(followed.store, fresh).apply(plan.manifest)
    apply_all_shipped(followed.store, plan, fresh)
    first, successor = followed.follower, followed.again()
    successor.poll()
    successor.complete(plan)
    assert followed.mirror() == contents(fresh)
    # The next cut has it, and more than that.
    followed.write(SEGMENT, b" and last")
    followed.world.cut()
    first.poll()
    assert followed.mirror() == followed.original()
