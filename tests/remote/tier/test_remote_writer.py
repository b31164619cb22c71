"""The tier's work beside a log process: uploads, outages, removal, fences, and a kill at each step."""

from __future__ import annotations

import errno
import logging
from unittest.mock import patch

import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.counters import Counter
from mpbroker.remote.layout.object_names import SegmentObjects
from mpbroker.remote.ledger.events import Started
from mpbroker.remote.ledger.ledger import Fenced, Ledger
from mpbroker.remote.ledger.owner import OwnerFile
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.store.object_store import StoreError
from mpbroker.remote.tier import remote_files, removal, store_clock, tier_store
from mpbroker.remote.tier.book import Book
from mpbroker.remote.tier.collector import ORPHAN_MS
from mpbroker.remote.tier.places import Place
from mpbroker.remote.tier.remote_files import RemoteFiles
from mpbroker.storage.names import (
    INDEX_SUFFIX,
    LEADER_EPOCHS,
    REMOTE_OWNER,
    REMOTE_SEGMENTS,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
)
from mpbroker.storage.remote_segments import RemoteSegment, write_remote_segments
from shm.clock import wall_ms
from tests.support.fault_store import Fault, FaultStore
from tests.support.flipped_bits import flip
from tests.support.full_disk import failing_with
from tests.support.killing_store import Killed, KillingStore
from tests.support.log_rig import TOPIC_ID
from tests.support.log_writer import make_batch
from tests.support.polling import until
from tests.support.tier_world import MakeWorld, TierWorld


def faults(world: TierWorld) -> FaultStore:
    assert isinstance(world.store, FaultStore)
    return world.store


def test_sealed_segments_come_into_the_store_and_the_ledger(world: TierWorld) -> None:
    world.turn()
    world.check()
    (topic,) = world.state().topics.values()
    assert (topic.name, topic.partitions, topic.settings) == ("t", 1, {"remote.storage.enable": "true"})
    assert [(one.base, one.end) for one in world.added()] == [(0, 3), (3, 6), (6, 9)]
    assert world.data_objects() == world.names(world.added())
    assert world.version == 2
    assert world.count(Counter.COUNT_REMOTE_COPIED_SEGMENTS) == 3
    assert world.count(Counter.COUNT_REMOTE_COPIED_BYTES) == sum(one.size for one in world.added())
    assert world.count(Counter.COUNT_REMOTE_PENDING_SEGMENTS) == 0
    assert world.count(Counter.COUNT_REMOTE_PENDING_SINCE_MS) == 0
    assert world.count(Counter.COUNT_REMOTE_ERRORS) == 0


def test_a_turn_without_news_asks_the_store_for_nothing_but_what_is_due(world: TierWorld) -> None:
    world.turn()
    before = len(faults(world).calls)
    world.turn()
    assert len(faults(world).calls) == before


def test_more_segments_are_added_behind_the_others(world: TierWorld) -> None:
    world.turn()
    world.fill(2)
    world.turn()
    world.check()
    assert [one.base for one in world.added()] == [0, 3, 6, 9, 12]
    assert world.version == 3


def test_what_is_ready_goes_into_one_entry(worlds: MakeWorld) -> None:
    world = worlds(3, mpbroker_remote_commit_interval_ms=3_600_000)
    for partition in range(3):
        world.fill(3, partition)
    world.turn()
    world.check()
    assert [len(world.added(partition)) for partition in range(3)] == [2, 2, 2]
    # That of the start, and one for all.
    assert len([name for name in world.memory_store.objects if name.startswith("mpbroker/log/")]) == 2


def test_nothing_goes_before_topics_are_announced(world: TierWorld) -> None:
    world.topics.now = None
    world.writer.begin()
    assert world.writer.turn() > 0
    assert world.data_objects() == set()


def test_a_successor_makes_files_right_and_raises_the_words(world: TierWorld) -> None:
    world.turn()
    (world.directory() / REMOTE_SEGMENTS).unlink()
    world.again()
    world.turn()
    world.check()
    assert world.version == 3
    write_remote_segments(world.directory(), [*world.file(), world.file()[-1]._replace(base=9, end=99)])
    world.again()
    world.turn()
    world.check()
    assert world.version == 4


def test_missing_indexes_are_rebuilt_for_the_store(world: TierWorld, worlds: MakeWorld) -> None:
    twin = worlds()
    twin.fill(4)
    twin.turn()
    first, second = world.segments()[:2]
    first.with_suffix(INDEX_SUFFIX).unlink()
    first.with_suffix(TIME_INDEX_SUFFIX).unlink()
    second.with_suffix(SNAPSHOT_SUFFIX).unlink()
    world.turn()
    world.check()
    assert [one.indexes_crc for one in world.added()] == [one.indexes_crc for one in twin.added()]
    assert [one.largest_ms for one in world.added()] == [one.largest_ms for one in twin.added()]


def test_a_damaged_offset_index_is_rebuilt_for_the_store(
    worlds: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world, twin = worlds(), worlds()
    for one in world, twin:
        while len(one.segments()) < 3:
            one.fill(10, batch=bytes(make_batch(1, size=20_000)))
    path = world.segments()[0].with_suffix(INDEX_SUFFIX)
    flip(path, 15, 4)
    world.turn()
    twin.turn()
    world.check()
    assert [one.indexes_crc for one in world.added()] == [one.indexes_crc for one in twin.added()]
    assert [one.largest_ms for one in world.added()] == [one.largest_ms for one in twin.added()]
    assert f"{path.name} is damaged" in caplog.text


def test_a_damaged_segment_is_reported_and_nothing_behind_it_goes(
    worlds: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = worlds(2)
    for partition in range(2):
        world.fill(4, partition)
    flip(world.segments()[1], 1000)
    world.turn()
    assert [one.base for one in world.added(0)] == [0]
    assert [one.base for one in world.added(1)] == [0, 3, 6]
    world.turn()
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert f"{world.directory()}: the segment of offset 3 is not uploaded: at byte 0 a batch is bad: " in said
    assert world.count(Counter.COUNT_REMOTE_PENDING_SEGMENTS) == 2
    assert world.count(Counter.COUNT_REMOTE_ERRORS) == 1
    # Nothing of it became an object.
    assert world.data_objects() == world.names(world.added(0) + world.added(1))
    flip(world.segments()[1], 1000)
    world.again()
    world.turn()
    world.check()
    assert [one.base for one in world.added(0)] == [0, 3, 6]


def test_a_damaged_checkpoint_is_named(world: TierWorld, caplog: pytest.LogCaptureFixture) -> None:
    path = world.directory() / LEADER_EPOCHS
    path.write_bytes(b"nonsense")
    world.turn()
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert f"is not uploaded: {path} begins with version" in said


def test_an_outage_is_told_when_it_begins_and_when_it_ends(
    world: TierWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mpbroker.remote")
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            faults(world).is_down = False
        if len(waits) == 5:
            raise tier_store.Stopped

    faults(world).is_down = True
    with patch.object(world.tier, "wait", wait):
        world.writer.run()
    assert waits[:3] == [1, 2, 4]
    told = [record.getMessage() for record in caplog.records if "the object store" in record.getMessage()]
    assert told[0].startswith("the object store fails: ")
    assert told[1].startswith("the object store answers again")
    assert len(told) == 2
    assert world.count(Counter.COUNT_REMOTE_ERRORS) == 3
    assert world.count(Counter.COUNT_REMOTE_DOWN_SINCE_MS) == 0
    world.check()
    assert len(world.added()) == 3


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.LOST])
@pytest.mark.parametrize("operation", ["put", "create"])
def test_what_fails_once_is_there_once(world: TierWorld, operation: str, fault: Fault) -> None:
    world.writer.begin()
    faults(world).plan(operation, fault)
    with pytest.raises(StoreError):
        world.writer.turn()
    assert world.file() == ()
    world.turn()
    world.check()
    assert [one.base for one in world.added()] == [0, 3, 6]
    assert world.count(Counter.COUNT_REMOTE_COPIED_SEGMENTS) == 3


def test_what_waits_is_counted_also_in_an_outage(world: TierWorld) -> None:
    world.writer.begin()
    faults(world).is_down = True
    for waiting in (3, 5):
        with pytest.raises(StoreError):
            world.writer.turn()
        assert world.count(Counter.COUNT_REMOTE_PENDING_SEGMENTS) == waiting
        sealed = [path.stat() for path in world.segments()[:-1]]
        assert world.count(Counter.COUNT_REMOTE_PENDING_BYTES) == sum(one.st_size for one in sealed)
        oldest_ms = min(one.st_mtime_ns for one in sealed) // 1_000_000
        assert world.count(Counter.COUNT_REMOTE_PENDING_SINCE_MS) == oldest_ms
        world.fill(2)


def test_whoever_finds_another_owner_stops_and_says_so(
    world: TierWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.turn()
    other = Ledger(LedgerReader(world.memory_store), OwnerFile(world.rig.directory))
    other.start(Started("cluster", 1, "elsewhere"))
    world.fill(1)
    before = world.data_objects()
    world.writer.run()
    assert world.count(Counter.COUNT_REMOTE_FENCED) == 1
    assert world.version == 0
    assert world.data_objects() >= before
    assert world.count(Counter.COUNT_REMOTE_SEGMENTS) == len(world.added()) == 3
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert said.startswith("nothing is uploaded or deleted any more: ")
    # What the store has can be found, and the file says no more than what is certain.
    assert world.tier.state is not None
    assert len(world.tier.state.segments_of(TOPIC_ID, 0)) == 3
    assert len(world.file()) == 3


def test_a_ledger_of_another_broker_or_cluster_is_left_alone(world: TierWorld) -> None:
    world.turn()
    objects = dict(world.memory_store.objects)
    (world.rig.directory / REMOTE_OWNER).unlink()
    world.again()
    with pytest.raises(Fenced, match="belongs to another broker"):
        world.writer.begin()
    data = {name for name in objects if not name.startswith("mpbroker/self-test/")}
    assert set(world.memory_store.objects) == data


class FakePace:
    """Allows what was taken after the waits that it is given."""

    def __init__(self, *left_s: float) -> None:
        self.left = list(left_s)
        self.taken = 0

    def take(self, count: int) -> float:
        self.taken += count
        return self.taken

    def left_s(self, _mark: float) -> float:
        return self.left.pop(0) if self.left else -1.0


def test_uploads_keep_to_their_rate(world: TierWorld) -> None:
    waited: list[float] = []
    fake = FakePace(2.5, 0.5)
    with patch.object(world.tier, "_pace", fake), patch.object(world.tier, "wait", waited.append):
        world.turn()
    # Not longer than until the next look at the settings.
    assert waited == [tier_store.LOOK_S, 0.5]
    assert fake.taken == sum(one.size for one in world.added())


def test_an_upload_is_given_up_when_the_process_is_to_stop(world: TierWorld) -> None:
    world.writer.begin()
    world.tier.stop()
    with pytest.raises(tier_store.Stopped):
        world.writer._paced(1)
    world.writer.run()
    assert world.data_objects() == set()


def test_a_partition_whose_copies_are_disabled_keeps_what_the_store_has(worlds: MakeWorld) -> None:
    world = worlds()
    world.fill(3)
    world.turn()
    world.configure(remote_log_copy_disable="true")
    world.fill(3)
    world.turn()
    assert [one.base for one in world.added()] == [0, 3]
    world.check()


def test_a_partition_that_is_tiered_no_more_loses_what_the_store_has(world: TierWorld) -> None:
    world.turn()
    before = world.added()
    world.configure(remote_storage_enable="false", remote_log_delete_on_disable="true")
    world.needed = {(TOPIC_ID, 0)}
    world.turn()
    # A restore of the newest cut would miss it.
    assert world.added() == before
    world.needed.clear()
    world.turn()
    assert world.added() == []
    assert world.file() == ()
    world.again(delay_ms=0)
    world.turn()
    assert world.data_objects() == set()


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.LOST])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_removal_that_comes_late_takes_no_segment_that_is_tiered_again(
    world: TierWorld, fault: Fault, is_killed: bool
) -> None:
    world.turn()
    world.configure(remote_storage_enable="false", remote_log_delete_on_disable="true")
    faults(world).plan("create", fault)
    with pytest.raises(StoreError):
        world.turn()
    world.configure(remote_storage_enable="true", local_retention_bytes="1")
    # The removal may be in the ledger or not.
    world.retain()
    assert [int(path.stem) for path in world.segments()] == [0, 3, 6, 9]
    if is_killed:
        world.again()
    world.turn()
    world.check()
    assert [one.base for one in world.added()] == [0, 3, 6]
    # The first look may still go by the file as it was before, and has it read again.
    world.retain()
    world.retain()
    assert [int(path.stem) for path in world.segments()] == [9]


def test_nothing_is_removed_while_the_file_cannot_be_written(world: TierWorld) -> None:
    world.turn()
    world.configure(remote_storage_enable="false", remote_log_delete_on_disable="true")
    with patch.object(remote_files, "write_or_spare", failing_with(errno.EIO)):
        world.turn()
    assert [one.base for one in world.added()] == [0, 3, 6]
    world.turn()
    assert world.added() == []
    assert world.file() == ()


def test_nothing_is_removed_that_is_tiered_again_by_the_time_the_file_is_written(world: TierWorld) -> None:
    world.turn()
    world.configure(remote_storage_enable="false", remote_log_delete_on_disable="true")
    hide = Book.hide

    def meanwhile(book: Book, place: Place) -> bool:
        is_hidden = hide(book, place)
        world.configure(remote_storage_enable="true")
        return is_hidden

    with patch.object(Book, "hide", meanwhile):
        world.turn()
    world.turn()
    world.check()
    assert [one.base for one in world.added()] == [0, 3, 6]


# ---- removal

DAY_MS = 24 * 3600 * 1000


def delete_records(world: TierWorld, offset: int) -> None:
    slot, generation, _ = world.broker.targets[0]
    world.rig.call(calls.DeleteRecords([calls.DeleteBefore(slot, generation, offset)]))
    process = world.broker.process
    process.work(0)

    def step() -> None:
        process.advance_tasks()
        process.work(5)

    until(lambda: world.rig.answer_ring.waiting() > 0, "records are deleted", step)
    assert isinstance(world.rig.take_answer(), calls.DeletedRecords)


@pytest.mark.parametrize("jump_ms", [-DAY_MS, DAY_MS])
def test_objects_are_deleted_by_the_stores_clock_whatever_the_owners_says(
    world: TierWorld, monkeypatch: pytest.MonkeyPatch, jump_ms: int
) -> None:
    """The owner's clock jumps before the removal, and back after it."""
    hour_ms, host, booted = 3_600_000, [wall_ms()], [0]
    monkeypatch.setattr(tier_store, "wall_ms", lambda: host[0])
    monkeypatch.setattr(store_clock, "boot_ns", lambda: booted[0] * 1_000_000)
    world.memory_store.now_ms = host[0]
    world.turn()
    before = world.data_objects()
    host[0] += jump_ms
    delete_records(world, 4)
    world.turn()
    host[0] -= jump_ms
    for passed_ms, is_deleted in ((0, False), (hour_ms - 1, False), (hour_ms, True)):
        booted[0] = passed_ms
        world.turn()
        assert (world.data_objects() < before) == is_deleted


def test_what_lies_below_the_log_start_is_removed_and_deleted_later(world: TierWorld) -> None:
    world.turn()
    before = world.added()
    delete_records(world, 4)
    world.turn()
    assert [one.base for one in world.added()] == [3, 6]
    assert [one.base for one in world.file()] == [3, 6]
    assert world.state().log_starts == {(TOPIC_ID, 0): 4}
    assert world.data_objects() == world.names(before)
    # Also a successor knows.
    world.again(delay_ms=0)
    world.turn()
    assert world.data_objects() == world.names(world.added())
    assert world.state().removed == {}
    assert world.count(Counter.COUNT_REMOTE_DELETED_SEGMENTS) == 1


def test_objects_are_not_deleted_by_who_is_fenced(world: TierWorld) -> None:
    world.turn()
    delete_records(world, 4)
    world.turn()
    other = Ledger(LedgerReader(world.memory_store), OwnerFile(world.rig.directory))
    other.start(Started("cluster", 1, "elsewhere"))
    objects = world.data_objects()
    with patch.object(world.tier, "now_ms", lambda: 1 << 50), pytest.raises(Fenced):
        world.turn()
    assert world.data_objects() == objects


def test_a_deleted_topic_stays_for_a_day_and_then_goes(world: TierWorld) -> None:
    world.turn()
    objects = world.data_objects()
    world.announce(is_there=False)
    world.turn()
    (topic,) = world.state().topics.values()
    assert topic.deleted_ms is not None
    assert (len(world.added()), world.data_objects()) == (3, objects)
    with patch.object(removal, "TOPIC_DELAY_MS", 0):
        world.turn()
    assert world.added() == []
    world.again(delay_ms=0)
    world.turn()
    assert (world.data_objects(), world.state().topics) == (set(), {})


# ---- kills


def killed_world(worlds: MakeWorld) -> TierWorld:
    """Make a world where uploads, removals and an orphan wait, and each segment has an entry of its own."""
    world = worlds(2, mpbroker_remote_commit_interval_ms=0)
    prepare(world)
    return world


def prepare(world: TierWorld) -> None:
    """Upload and remove some segments; leave others, and an orphan."""
    world.fill(4)
    world.turn()
    delete_records(world, 4)
    world.turn()
    for name in SegmentObjects("t", TOPIC_ID, 0, 3, bytes(16)).all:
        world.memory_store.create(name, b"orphan")
    world.memory_store.now_ms += 2 * ORPHAN_MS
    world.fill(2)
    world.fill(3, partition=1)


def check_files(world: TierWorld) -> None:
    """Check that no file says that the store has what the ledger does not have, or no longer."""
    state = world.state()
    for partition in range(world.partitions):
        known = set(state.remote_segments(TOPIC_ID, partition))
        known |= {
            RemoteSegment(
                one.segment.base,
                one.segment.end,
                one.segment.size,
                one.segment.largest_ms,
                one.segment.segment_id,
            )
            for one in state.removed.values()
        }
        assert set(world.file(partition)) <= known


def finish(world: TierWorld) -> None:
    """Let a successor do the rest; all that should be must be, and nothing else."""
    world.again(KillingStore(world.memory_store), delay_ms=0)
    world.turn()
    # What killed uploads have left is old by now.
    world.memory_store.now_ms += 2 * ORPHAN_MS
    world.again()
    world.turn()
    world.check()
    assert [one.base for one in world.added()] == [3, 6, 9, 12]
    assert [one.base for one in world.added(1)] == [0, 3]
    assert world.data_objects() == world.names(world.added() + world.added(1))


@pytest.mark.parametrize("is_applied", [False, True])
def test_a_kill_at_any_request_loses_nothing_and_leaves_orphans_only(
    worlds: MakeWorld, is_applied: bool
) -> None:
    with patch.object(tier_store, "check_store"):
        counting = KillingStore((whole := killed_world(worlds)).memory_store)
        whole.again(counting, delay_ms=0)
        whole.turn()
        for at in range(counting.requests):
            world = killed_world(worlds)
            world.again(KillingStore(world.memory_store, at, is_applied=is_applied), delay_ms=0)
            with pytest.raises(Killed):
                world.turn()
            check_files(world)
            finish(world)
    assert counting.requests > 20


@pytest.mark.parametrize("step", ["_raise_word", "write"])
def test_a_kill_between_ledger_file_and_word_leaves_them_behind_only(worlds: MakeWorld, step: str) -> None:
    world = killed_world(worlds)
    version = world.version
    with patch.object(RemoteFiles, step, side_effect=Killed), pytest.raises(Killed):
        world.turn()
    check_files(world)
    finish(world)
    assert world.version > version
