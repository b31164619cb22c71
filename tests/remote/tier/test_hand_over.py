"""The end of a clean stop: the store has all that is on disk, and then a standby need not wait."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mpbroker.remote.cuts.cutter import Cutter
from mpbroker.remote.cuts.instant import Broker, Rows, instant_at_rest
from mpbroker.remote.restore.files import finish, write_files
from mpbroker.remote.restore.offline import bring_forward
from mpbroker.remote.restore.plan import check_objects, make_plan
from mpbroker.remote.tier import hand_over
from mpbroker.remote.tier.cutting import Cutting
from mpbroker.remote.tier.hand_over import HandOver
from mpbroker.storage.names import CLEAN_SHUTDOWN
from tests.support.fault_store import Fault
from tests.support.ledger_parts import read
from tests.support.log_rig import TOPIC_ID
from tests.support.standing_by import STANDBY, faults, stand_by, take_over
from tests.support.tier_world import BATCH, TierWorld


@pytest.fixture
def last(world: TierWorld, monkeypatch: pytest.MonkeyPatch) -> HandOver:
    """The hand-over of a broker that has made a cut, and then has taken one more batch."""
    (world.rig.directory / "meta.properties").write_text("version=1\n")
    memory = world.rig.memory
    rows = Rows(memory.table(), memory.sizes.log_workers, lambda: {TOPIC_ID: "t"})
    broker = Broker([world.rig.directory], rows)
    cutting = Cutting(
        *(world.rig.config, world.tier, world.context.counters),
        lambda store, paced: Cutter(
            *(store, broker, ("cluster", 1)),
            lambda state, known, _former: instant_at_rest(broker, state, known, is_closed=cutting.is_at_rest),
            paced,
            bring_forward,
        ),
    )
    world.turn()
    cutting.turn()
    world.broker.produce(BATCH)
    world.tier.stop()
    monkeypatch.setattr(hand_over.time, "sleep", lambda _s: None)
    cuts = threading.Thread(target=cutting.run)
    cuts.start()
    return HandOver(world.tier, cutting, world.renewing, cuts)


def local(world: TierWorld, directory: Path) -> dict[str, bytes]:
    """Return the bytes of the local segments of partition 0."""
    remote = {one.base for one in world.file()}
    return {
        path.name: path.read_bytes()
        for path in sorted((directory / "t-0").glob("*.log"))
        if int(path.stem) not in remote
    }


def test_a_restore_after_a_clean_stop_brings_all_back(
    world: TierWorld, last: HandOver, tmp_path: Path
) -> None:
    mark = world.rig.directory / CLEAN_SHUTDOWN
    mark.touch()
    last.run()
    plan = make_plan(world.memory_store)
    check_objects(world.memory_store, plan)
    restored = tmp_path / "restored"
    restored.mkdir()
    write_files(world.memory_store, plan, [restored], lambda _count: None)
    finish([restored])
    assert local(world, restored) == local(world, world.rig.directory)
    assert (restored / CLEAN_SHUTDOWN).exists()
    assert not read(world.memory_store).state.is_released


def test_with_a_standby_the_ledger_says_that_nothing_follows(world: TierWorld, last: HandOver) -> None:
    stand_by(world)
    last.run()
    state = read(world.memory_store).state
    assert (state.is_released, len(state.cuts)) == (True, 2)
    # The lease is renewed no more.
    before = read(world.memory_store).seq
    world.now_ns += 1 << 40
    world.renewing.renew()
    assert read(world.memory_store).seq == before


@pytest.mark.parametrize("has_standby", [False, True])
def test_a_store_that_fails_is_tried_again_for_a_standby_only(
    world: TierWorld, last: HandOver, has_standby: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if has_standby:
        stand_by(world)
    faults(world).plan("put", *[Fault.ERROR] * 3)
    last.run()
    assert len(read(world.memory_store).state.cuts) == 1 + has_standby
    assert ("the last cut of this stop was given up" in caplog.text) == (not has_standby)


def test_a_lost_answer_leaves_one_last_cut(world: TierWorld, last: HandOver) -> None:
    stand_by(world)
    faults(world).plan("create", None, Fault.LOST)
    last.run()
    state = read(world.memory_store).state
    assert (state.is_released, len(state.cuts)) == (True, 2)


def test_a_store_that_is_down_does_not_hold_up_a_stop_for_ever(
    world: TierWorld, last: HandOver, caplog: pytest.LogCaptureFixture
) -> None:
    stand_by(world)
    faults(world).is_down = True
    last.limit_s = 0.05
    last.run()
    assert "the last cut of this stop was given up" in caplog.text


def test_who_was_replaced_meanwhile_hands_nothing_over(
    world: TierWorld, last: HandOver, caplog: pytest.LogCaptureFixture
) -> None:
    stand_by(world)
    take_over(world, STANDBY)
    last.run()
    assert "was given up: another broker has taken the ledger over" in caplog.text
