"""Directories of a deleted topic's partitions, made of what the object store has."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.config.topic_config import resolve
from mpbroker.ipc.calls import UndeleteTopic
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.log.recovery.log_loader import Known, load
from mpbroker.remote.layout.indexes import split_indexes
from mpbroker.remote.ledger.events import LogStartMoved, TopicDeleted
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.store.object_store import StoreError
from mpbroker.remote.tier import undeletion
from mpbroker.remote.tier.removal import TOPIC_DELAY_MS
from mpbroker.remote.tier.undeletion import CannotUndelete, undelete
from shm.clock import wall_ms
from tests.support.full_disk import failing_with
from tests.support.log_rig import TOPIC_ID
from tests.support.tier_world import TierWorld

WANTED = UndeleteTopic("t", TOPIC_ID, 1)


@pytest.fixture
def state(world: TierWorld) -> RemoteState:
    """Three segments of a topic that was just deleted."""
    world.turn()
    assert world.tier.state is not None
    world.tier.state.apply([TopicDeleted(TOPIC_ID)], wall_ms())
    return world.tier.state


def opened(world: TierWorld, log_dir: Path) -> PartitionLog:
    """Open the partition as a log worker does."""
    config = resolve(world.rig.config, {"remote.storage.enable": "true"})
    log = load(log_dir / "t-0", "t", 0, TOPIC_ID, config, Known(clean=False), lambda _: None)
    log.close_files()
    return log


def test_the_partition_opens_where_its_segments_end(
    world: TierWorld, state: RemoteState, tmp_path: Path
) -> None:
    undelete(world.store, state, WANTED, {}, [tmp_path], wall_ms())
    log = opened(world, tmp_path)
    assert (log.log_start, log.state.log_end) == (0, 9)
    assert log.remote == world.file()
    last = state.segments_of(TOPIC_ID, 0)[-1]
    parts = split_indexes(world.memory_store.objects[last.objects.indexes], last.index_sizes)
    assert log.state.producers.snapshot() == parts.producer_snapshot
    assert list(log.epochs) == [(0, 0), (1, 9)]


def test_what_was_deleted_from_a_segment_stays_deleted(
    world: TierWorld, state: RemoteState, tmp_path: Path
) -> None:
    """Check it from the first moment on, before anybody has checkpointed the log start."""
    state.apply([LogStartMoved(TOPIC_ID, 0, 4)], wall_ms())
    undelete(world.store, state, WANTED, {}, [tmp_path], wall_ms())
    log = opened(world, tmp_path)
    assert (log.log_start, log.state.log_end) == (4, 9)
    assert log.epochs[0] == (0, 4)
    # A later checkpoint counts, too.
    config = resolve(world.rig.config, {"remote.storage.enable": "true"})
    known = Known(clean=False, log_start=5)
    log = load(tmp_path / "t-0", "t", 0, TOPIC_ID, config, known, lambda _: None)
    log.close_files()
    assert log.log_start == 5


def test_a_second_try_finds_what_the_first_one_made(
    world: TierWorld, state: RemoteState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A try that was killed leaves a name that the next start removes."""
    with monkeypatch.context() as killed:
        killed.setattr(undeletion, "write_remote_segments", failing_with(5))
        with pytest.raises(OSError, match="Input"):
            undelete(world.store, state, WANTED, {}, [tmp_path], wall_ms())
    assert [path.suffix[-7:] for path in tmp_path.glob("t-0*")] == ["-delete"]
    undelete(world.store, state, WANTED, {}, [tmp_path], wall_ms())
    inode = (tmp_path / "t-0").stat().st_ino
    undelete(world.store, state, WANTED, {}, [tmp_path], wall_ms())
    assert (tmp_path / "t-0").stat().st_ino == inode


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (UndeleteTopic("t", bytes(16), 1), "has nothing of it"),
        (UndeleteTopic("u", TOPIC_ID, 1), "that topic was t"),
        (UndeleteTopic("t", TOPIC_ID, 2), "with 1 partitions"),
    ],
)
def test_another_topic_than_was_deleted_is_refused(
    world: TierWorld, state: RemoteState, tmp_path: Path, wanted: UndeleteTopic, says: str
) -> None:
    with pytest.raises(CannotUndelete, match=says):
        undelete(world.store, state, wanted, {}, [tmp_path], wall_ms())


def test_a_topic_that_is_there_or_nearly_gone_is_refused(
    world: TierWorld, state: RemoteState, tmp_path: Path
) -> None:
    with pytest.raises(CannotUndelete, match="not deleted"):
        undelete(world.store, state, WANTED, {TOPIC_ID}, [tmp_path], wall_ms())
    topic = state.topics[TOPIC_ID]
    state.topics[TOPIC_ID] = type(topic)(
        topic.name, TOPIC_ID, topic.partitions, topic.settings, wall_ms() - TOPIC_DELAY_MS
    )
    with pytest.raises(CannotUndelete, match="day is over"):
        undelete(world.store, state, WANTED, {}, [tmp_path], wall_ms())


def test_what_is_in_the_way_stays(world: TierWorld, state: RemoteState, tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    with pytest.raises(CannotUndelete, match="in the way"):
        undelete(world.store, state, WANTED, {}, [tmp_path], wall_ms())
    (tmp_path / "t-0").rmdir()
    world.memory_store.objects[state.segments_of(TOPIC_ID, 0)[-1].objects.indexes] += b"x"
    with pytest.raises(StoreError, match="is damaged"):
        undelete(world.store, state, WANTED, {}, [tmp_path], wall_ms())
    assert not (tmp_path / "t-0").exists()
