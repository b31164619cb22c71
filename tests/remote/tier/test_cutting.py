"""The thread of cuts: what it counts, what it lets go, and when it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import pytest
from msgspec.structs import replace

from mpbroker.ipc.counters import Counter
from mpbroker.records.batch import checksum
from mpbroker.remote.cuts.cutter import Cut, Cutter
from mpbroker.remote.cuts.files import Look
from mpbroker.remote.cuts.instant import Broker, CutSkipped, Instant, Rows
from mpbroker.remote.cuts.manifest import BUNDLES, CUTS, CutFile, shipped_name
from mpbroker.remote.ledger.events import Shipped
from mpbroker.remote.ledger.ledger import Fenced
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.restore.offline import bring_forward
from mpbroker.remote.restore.plan import make_plan
from mpbroker.remote.restore.take_over import take_over
from mpbroker.remote.store.object_store import ObjectStore
from mpbroker.remote.tier import cutting, tier_store
from mpbroker.remote.tier.cutting import FIRST_CUT_RETRY_S, Cutting
from mpbroker.remote.tier.tier_store import LOOK_S, Stopped
from tests.support.cut_world import instants_of
from tests.support.fault_store import Fault, FaultStore
from tests.support.log_rig import TOPIC_ID
from tests.support.tier_world import BATCH, TierWorld


@pytest.fixture
def thread(world: TierWorld) -> Cutting:
    (world.rig.directory / "meta.properties").write_text("version=1\n")
    memory = world.rig.memory
    rows = Rows(memory.table(), memory.sizes.log_workers, lambda: {TOPIC_ID: "t"})
    broker = Broker([world.rig.directory], rows)

    def cutter(store: ObjectStore, paced: Callable[[int], None]) -> Cutter:
        return Cutter(store, broker, ("cluster", 1), instants_of(broker), paced, bring_forward)

    config = replace(world.rig.config, mpbroker_remote_checkpoint_retention_ms=0)
    return Cutting(config, world.tier, world.context.counters, cutter)


def test_nothing_is_cut_before_the_ledger_is_ours(world: TierWorld, thread: Cutting) -> None:
    thread.turn()
    assert world.memory_store.objects == {}
    world.turn()
    thread.turn()
    assert len(world.state().cuts) == 1
    assert world.count(Counter.COUNT_REMOTE_CUTS) == 1
    assert world.count(Counter.COUNT_REMOTE_CUT_MS) == world.state().cuts[0].event.taken_ms
    assert world.count(Counter.COUNT_REMOTE_CUT_PAUSE_US) > 0


def test_the_newest_cut_needs_what_the_store_has_until_one_has_the_local_files(
    world: TierWorld, thread: Cutting
) -> None:
    key = TOPIC_ID, 0
    world.turn()
    assert world.added()
    assert not thread.needs(key)
    thread.turn()
    assert thread.needs(key)
    world.configure(remote_storage_enable="false", remote_log_delete_on_disable="true")
    assert thread.needs(key)
    # A successor has not read it yet.
    thread._cutter = None
    assert thread.needs(key)
    thread.turn()
    assert not thread.needs(key)


def test_a_successor_knows_when_the_newest_cut_was_made(
    world: TierWorld, thread: Cutting, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.turn()
    thread.turn()
    world.context.counters.set(Counter.COUNT_REMOTE_CUT_MS, 0)
    thread._cutter = None
    monkeypatch.setattr(Cutter, "make", refusing)
    thread.turn()
    assert world.count(Counter.COUNT_REMOTE_CUT_MS) == world.state().cuts[0].event.taken_ms


def test_a_cut_that_cannot_be_made_is_counted_and_the_next_one_is(
    world: TierWorld, thread: Cutting, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.turn()
    with monkeypatch.context() as patched:
        patched.setattr(Cutter, "make", refusing)
        thread.turn()
    assert isinstance(world.store, FaultStore)
    world.store.plan("put", Fault.ERROR)
    thread.turn()
    assert world.count(Counter.COUNT_REMOTE_CUTS_SKIPPED) == 2
    assert world.state().cuts == []
    thread.turn()
    assert len(world.state().cuts) == 1


def test_what_a_start_waits_for_is_logged_once(
    world: TierWorld, thread: Cutting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Check that a log is not filled by what is tried twice a second."""
    caplog.set_level(logging.INFO)
    world.turn()
    thread._first_cut = world.rig.memory.words("first_cut")
    with monkeypatch.context() as patched:
        patched.setattr(Cutter, "make", refusing)
        for _ in range(3):
            thread.turn()
    assert [text for text in caplog.messages if "no cut is made" in text] == [
        "no cut is made: log 0 is starting or stopping. A start or an undeletion waits for it: this is tried "
        "until it succeeds"
    ]


def test_the_first_cut_of_a_start_is_followed_by_one_when_partitions_are_open(
    world: TierWorld, thread: Cutting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that readers of the bucket need not wait a whole interval for the ends of partitions."""
    world.turn()
    thread._first_cut = world.rig.memory.words("first_cut")
    opens = [False, False, True]
    thread._are_open = lambda: opens.pop(0) if len(opens) > 1 else opens[0]
    cuts: list[float] = []

    def wait(_seconds: float) -> None:
        cuts.append(world.count(Counter.COUNT_REMOTE_CUTS))
        if len(cuts) == 5:
            raise Stopped

    monkeypatch.setattr(world.tier, "wait", wait)
    monkeypatch.setattr(cutting, "FIRST_CUT_RETRY_S", 0.0)
    thread.run()
    # While it waits for the partitions, no cut is made; after the second one the interval counts.
    assert cuts == [1, 1, 2, 2, 2]


def refusing(*_: object) -> Cut:
    raise CutSkipped("log 0 is starting or stopping")


def test_old_cuts_go_with_their_objects(
    world: TierWorld, thread: Cutting, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.turn()
    thread.turn()
    (old,) = world.state().cuts
    monkeypatch.setattr(world.tier, "now_ms", lambda: old.time_ms + 1_000_000)
    world.broker.produce(BATCH)
    thread.turn()
    (new,) = world.state().cuts
    assert new.event.cut_id != old.event.cut_id
    names = {name for name in world.memory_store.objects if name.startswith((CUTS, BUNDLES))}
    plan = make_plan(world.memory_store)
    assert names == {f"{CUTS}{new.event.cut_id.hex()}", *(f"{BUNDLES}{one}" for one in plan.manifest.bundles)}


def test_who_is_fenced_makes_no_more_cuts(world: TierWorld, thread: Cutting) -> None:
    world.turn()
    thread.turn()
    take_over(lambda: make_plan(world.memory_store), is_forced=True)
    with pytest.raises(Fenced):
        thread.turn()
    # The thread ends by itself.
    thread.run()
    assert len(world.state().cuts) == 1


def test_each_turn_is_followed_by_a_wait_also_when_the_store_fails(
    world: TierWorld, thread: Cutting, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def wait(seconds: float) -> None:
        if world.tier.book is None:
            world.turn()
            assert isinstance(world.store, FaultStore)
            world.store.plan("put", *[Fault.ERROR] * 3)
            return
        waited.append(seconds)
        if len(waited) == 3:
            world.tier.stop()
            raise tier_store.Stopped

    monkeypatch.setattr(world.tier, "wait", wait)
    thread.run()
    # A whole minute has not passed after the first one.
    assert world.count(Counter.COUNT_REMOTE_CUTS_SKIPPED) == 1
    assert waited == [tier_store.LOOK_S] * 3


def test_who_asks_for_a_cut_gets_one_that_begins_then(
    world: TierWorld, thread: Cutting, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.turn()
    failures = [True]

    def asked(cutter: Cutter, state: RemoteState) -> Cut:
        """Make a cut, within which another one is asked for, at first in vain."""
        if failures:
            failures.pop()
            thread._asked += 1
            raise CutSkipped("not now")
        return make(cutter, state)

    make = Cutter.make
    monkeypatch.setattr(Cutter, "make", asked)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if world.state().cuts:
            raise Stopped

    monkeypatch.setattr(world.tier, "wait", wait)
    thread.run()
    # It is tried again soon, and then the next one is due much later.
    assert waits[0] <= FIRST_CUT_RETRY_S
    assert waits[-1] == LOOK_S
    (before,) = world.state().cuts
    with monkeypatch.context() as patched:
        patched.setattr(world.tier, "wait", lambda _seconds: thread.turn())
        thread.await_cut()
    assert world.state().cuts[-1] != before
    book = world.tier.book
    assert book is not None
    book.ledger.fenced = Fenced("another broker has it")
    with pytest.raises(Fenced):
        thread.await_cut()


def test_what_was_shipped_goes_a_cut_later_than_the_first_one_that_has_it(world: TierWorld) -> None:
    world.turn()
    memory = world.rig.memory
    broker = Broker([world.rig.directory], Rows(memory.table(), memory.sizes.log_workers, dict))

    def cutter(store: ObjectStore, paced: Callable[[int], None]) -> Cutter:
        taken = instants_of(broker)

        def instant(state: RemoteState, known: Mapping[str, CutFile], former: Look) -> Instant:
            return taken(state, known, former)._replace(shipped=1)

        return Cutter(store, broker, ("cluster", 1), instant, paced, bring_forward)

    word = memory.words("first_cut")
    thread = Cutting(
        world.rig.config, world.tier, world.context.counters, cutter, lambda: None, first_cut=word
    )
    earlier, later = (shipped_name(bytes([number]) * 16) for number in (1, 2))
    book = world.tier.book
    assert book is not None
    for number, name in ((1, earlier), (2, later)):
        world.memory_store.put(name, [b"x"], 1)
        book.add([Shipped(number, (), b"", bytes([number]) * 16, 1, checksum(b"x"))])
    book.commit()
    assert not word.load(0)
    thread.turn()
    assert word.load(0)
    assert world.state().shipped == [(2, bytes([2]) * 16)]
    assert {earlier, later} <= world.memory_store.objects.keys()
    thread.turn()
    assert {earlier, later} & world.memory_store.objects.keys() == {later}
