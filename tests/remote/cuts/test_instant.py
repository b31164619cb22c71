"""What is looked at in the pause: partitions that were written to, and no others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mpbroker.ipc.control_client import ControlClient, ControlError
from mpbroker.ipc.pointer import read_pointer
from mpbroker.remote.cuts import instant
from mpbroker.remote.cuts.files import Look
from mpbroker.remote.cuts.instant import PAUSE, Broker, Rows, open_changed
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.testing import Broker as RunningBroker
from shm import procfs
from tests.support.http_broker import pids
from tests.support.log_rig import TOPIC_ID
from tests.support.polling import until
from tests.support.tier_world import BATCH, MakeWorld, TierWorld

NONE = Look([], {})
T0, T1 = "0/t-0", "0/t-1"


@pytest.fixture
def world(worlds: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> TierWorld:
    """Two partitions with records, whose directories count as old enough."""
    monkeypatch.setattr(instant, "UNSURE_NS", -(1 << 60))
    made = worlds(2)
    for partition in range(2):
        made.fill(1, partition)
    return made


def broker_of(world: TierWorld) -> Broker:
    memory = world.rig.memory
    rows = Rows(memory.table(), memory.sizes.log_workers, lambda: {TOPIC_ID: "t"})
    return Broker([world.rig.directory], rows)


def test_partitions_without_appends_are_not_listed_again(world: TierWorld) -> None:
    broker, state = broker_of(world), RemoteState()
    first = broker.look(state, NONE)
    assert first.partitions.keys() >= {T0, T1}
    world.broker.produce(BATCH, partition=1)
    second = broker.look(state, first)
    assert second.partitions[T0] is first.partitions[T0]
    assert second.partitions[T1] is not first.partitions[T1]
    world.broker.produce(BATCH, partition=0)
    third = broker.look_at_rest(state, second, {T0, T1})
    assert third.partitions[T0] is not second.partitions[T0]
    assert third.partitions[T1] is second.partitions[T1]
    sizes = {one.path: one.size for one in third.files()}
    for path in world.rig.directory.glob("t-*/*.log"):
        assert sizes[f"0/{path.relative_to(world.rig.directory)}"] == path.stat().st_size


def test_a_partition_that_the_store_does_not_have_whole_is_listed_and_opened(world: TierWorld) -> None:
    broker, state = broker_of(world), RemoteState()
    first = broker.look(state, NONE)
    second = broker.look_at_rest(state, first, {T1})
    opened: list[instant.Opened] = []
    open_changed(second, first, {}, opened)
    instant.Instant(0, 0.0, second, opened).close()
    assert opened == []
    open_changed(second, first, {}, opened)
    paths = {one.found.path for one in opened}
    instant.Instant(0, 0.0, second, opened).close()
    assert any(path.startswith(T0) for path in paths)
    assert not any(path.startswith(T1) for path in paths)


def test_a_listing_that_something_was_renamed_in_is_not_relied_on(
    world: TierWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, state = broker_of(world), RemoteState()
    times = iter(range(100))
    monkeypatch.setattr(instant, "_changed_ns", lambda _directory: next(times))
    first = broker.look(state, NONE)
    assert all(one.row is None for one in first.partitions.values())
    second = broker.look_at_rest(state, first, {T0, T1})
    assert second.partitions[T0] is not first.partitions[T0]


def test_what_the_ledger_has_by_now_is_left_out(world: TierWorld) -> None:
    world.fill(3)
    broker = broker_of(world)
    before = broker.look(world.state(), NONE)
    world.turn()
    after = broker.look(world.state(), before)
    (remote,) = [one.remote for one in after.partitions.values() if one.remote is not None]
    assert (remote.directory, remote.remote_end) == (T0, world.added()[-1].end)
    assert sum(one.path.endswith(".log") for one in after.partitions[T0].files) == 1
    assert sum(one.path.endswith(".log") for one in before.partitions[T0].files) == 4


def test_all_processes_but_the_tier_are_stopped(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    settings = {
        "remote.log.storage.system.enable": "true",
        "mpbroker.remote.url": f"file://{tmp_path / 'store'}",
        "mpbroker.remote.checkpoint.interval.ms": "3600000",
    }
    with RunningBroker(settings=settings) as broker:
        pointer = read_pointer(broker.log_dir)
        assert pointer is not None
        processes = pids(broker)
        with ControlClient(Path(pointer.runtime_dir)).connected() as ask:
            until(lambda: _is_paused(ask), "a pause begins within its limit")
            states = {name: procfs.process(pid).state for name, pid in processes.items()}
            ask("resume")
        assert states.pop("tier") != "T"
        assert set(states.values()) == {"T"}


def _is_paused(ask: Callable[..., dict[str, Any]]) -> bool:
    """Ask for a pause. A process that waits for its disk may use up the pause."""
    with suppress(ControlError):
        return bool(ask(PAUSE)["paused"])
    return False
