"""What log directories say after a crash, a failed disk, a deletion: nothing acked is lost or replaced.

A process is stepped by hand; "killed" means that nothing more of it is written.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.table import PartitionFlag
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.protocol.uuids import uuid_text
from tests.support.log_node import (
    HIGH_WATERMARKS,
    OTHER_ID,
    SEGMENT,
    STORAGE_ERROR,
    Node,
    again,
    flip_bit,
    wait_for_io,
)
from tests.support.log_rig import TOPIC_ID, ensure

# ---- deleted and created anew ----


@pytest.mark.parametrize("whole_broker", [False, True])
def test_a_recreated_topic_survives_a_crash(
    node: Callable[..., Node], batch: Callable[..., bytearray], whole_broker: bool
) -> None:
    """The checkpoints of the old topic, with its larger offsets, are not those of the new one."""
    n = node()
    n.boot()
    n.produce(n.open(ensure(1))[0], batch(), 20)
    n.checkpoint()
    assert n.offsets() == ["__cluster_metadata 0 0", "t 0 20"]
    assert n.process is not None
    n.process.manager.remove("t", TOPIC_ID)
    (target,) = n.open(again())
    assert n.produce(target, batch(), 3) == [0, 0, 0]
    assert n.offsets() == ["__cluster_metadata 0 0"]
    assert n.offsets("recovery-point-offset-checkpoint") == ["__cluster_metadata 0 0"]
    n.boot() if whole_broker else n.succeed()
    (target,) = n.open(again(new_from=None))
    assert (target.error, n.end_of(target)) == (0, 3)


def test_a_topic_is_not_recreated_before_the_old_checkpoint_is_gone(
    node: Callable[..., Node], batch: Callable[..., bytearray], monkeypatch: pytest.MonkeyPatch
) -> None:
    n = node()
    process = n.boot()
    n.produce(n.open(ensure(1))[0], batch(), 20)
    n.checkpoint()
    process.manager.remove("t", TOPIC_ID)

    def refuse(path: Path, _: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space", str(path))

    with monkeypatch.context() as full:
        full.setattr("mpbroker.log.format.checkpoints.write_whole", refuse)
        (answer,) = n.open(again())
    assert (answer.error, answer.slot_generation) == (STORAGE_ERROR, 0)
    assert not (n.dirs[0] / "t-0").exists()
    assert n.open(again())[0].error == 0
    assert "t 0 20" not in n.offsets()


def test_a_deletion_whose_checkpoint_was_not_written_does_not_hold_up_a_new_topic(
    node: Callable[..., Node], batch: Callable[..., bytearray]
) -> None:
    n = node()
    process = n.boot()
    n.produce(n.open(ensure(1))[0], batch(), 20)
    n.checkpoint()
    process.manager.remove("t", TOPIC_ID)
    assert "t 0 20" in n.offsets()
    n.boot()
    (target,) = n.open(again(new_from=None))
    assert (target.error, n.end_of(target)) == (0, 0)


def test_a_removal_is_in_the_checkpoints_soon(
    node: Callable[..., Node], batch: Callable[..., bytearray]
) -> None:
    n = node()
    process = n.boot()
    n.produce(n.open(ensure(1))[0], batch())
    n.checkpoint()
    process.manager.remove("t", TOPIC_ID)
    process._keep_house()
    wait_for_io(process)
    assert n.offsets() == ["__cluster_metadata 0 0"]


def test_recreated_while_the_old_one_is_still_open(
    node: Callable[..., Node], batch: Callable[..., bytearray]
) -> None:
    """The removal comes later: until then nothing of the old log may get into the new one's directory."""
    n = node()
    process = n.boot(log_segment_delete_delay_ms=0)
    (old,) = n.open(ensure(1, segment_bytes="1048576"))
    (new,) = n.open(again())
    assert n.rig.partition(old.slot).flags == PartitionFlag.PARTITION_DELETED
    assert n.produce(old, batch(size=900_000), 3) == [6, 6, 6]
    assert n.produce(new, batch()) == [0]
    process.manager.remove("t", TOPIC_ID)
    assert [e.name for e in (n.dirs[0] / "t-0").glob("*.log")] == [SEGMENT]
    process.manager.removal.deletions.begin_due(1e18)
    wait_for_io(process)
    assert n.names() == ["__cluster_metadata-0", "t-0"]
    assert n.produce(new, batch()) == [0]


def test_a_slot_that_only_the_predecessor_knew_is_marked_when_its_topic_goes(
    node: Callable[..., Node], batch: Callable[..., bytearray]
) -> None:
    n = node()
    n.boot()
    (target,) = n.open(ensure(1))
    process = n.succeed()
    assert n.rig.partition(target.slot).flags == PartitionFlag.PARTITION_LIVE
    process.manager.remove("t", TOPIC_ID)
    assert n.rig.partition(target.slot).flags == PartitionFlag.PARTITION_DELETED
    (new,) = n.open(again())
    assert n.produce(new, batch()) == [0]


# ---- damage ----


@pytest.mark.parametrize("ends", ["crash", "stop", "successor"])
def test_damage_is_never_cut_however_often_the_broker_starts(
    node: Callable[..., Node], batch: Callable[..., bytearray], ends: str
) -> None:
    n = node()
    n.boot()
    n.produce(n.open(ensure(1))[0], batch(), 5)
    n.checkpoint()
    n.crash()
    path = n.dirs[0] / "t-0" / SEGMENT
    size = path.stat().st_size
    flip_bit(path, size * 2 // 5 - 3)
    n.boot()
    for _ in range(3):
        (answer,) = n.open(ensure(1))
        assert answer.error == STORAGE_ERROR
        assert "Offsets below 5 were durable" in (answer.message or "")
        n.checkpoint()
        assert "t 0 5" in n.offsets()
        if ends == "stop":
            n.stop()
            assert not (n.dirs[0] / ".kafka_cleanshutdown").exists()
        n.succeed() if ends == "successor" else n.boot()
    assert path.stat().st_size == size


def test_what_only_the_table_knew_of_a_damaged_partition_outlives_the_broker(
    node: Callable[..., Node], batch: Callable[..., bytearray]
) -> None:
    """Acknowledged after the last checkpoint, found damaged by the successor."""
    n = node()
    n.boot()
    n.produce(n.open(ensure(1))[0], batch(), 5)
    n.crash()
    path = n.dirs[0] / "t-0" / SEGMENT
    flip_bit(path, path.stat().st_size - 3)
    n.succeed()
    assert n.open(ensure(1))[0].error == STORAGE_ERROR
    n.succeed()
    assert n.open(ensure(1))[0].error == STORAGE_ERROR
    n.checkpoint()
    n.boot()
    assert n.open(ensure(1))[0].error == STORAGE_ERROR


def test_a_checkpoint_in_a_long_start_keeps_what_is_not_open_yet(
    node: Callable[..., Node], batch: Callable[..., bytearray]
) -> None:
    n = node()
    n.boot()
    for target in n.open(ensure(2)):
        n.produce(target, batch(), 2)
    n.checkpoint()
    process = n.boot()
    steps = process.manager.ensuring(ensure(2))
    next(steps)
    n.checkpoint()
    for name in (HIGH_WATERMARKS, "recovery-point-offset-checkpoint"):
        assert n.offsets(name) == ["__cluster_metadata 0 0", "t 0 2", "t 1 2"]


def test_offsets_of_topics_that_are_no_more_are_dropped(node: Callable[..., Node]) -> None:
    n = node()
    n.boot()
    n.open(ensure(1))
    n.checkpoint()
    n.crash()
    path = n.dirs[0] / HIGH_WATERMARKS
    path.write_text("0\n3\n__cluster_metadata 0 0\ngone 0 7\nt 0 0\n")
    (n.dirs[0] / "recovery-point-offset-checkpoint").write_text("0\n1\ngone 0 7\n")
    process = n.boot()
    n.open(ensure(1))
    process.manager.removal.set_strays_aside({"t": TOPIC_ID})
    n.checkpoint()
    assert n.offsets() == ["__cluster_metadata 0 0", "t 0 0"]


@pytest.mark.parametrize("never_opened", [1, 2])
def test_the_mark_of_a_clean_stop_is_for_all_partitions(
    node: Callable[..., Node], batch: Callable[..., bytearray], never_opened: int
) -> None:
    """Stopped while its topics were still to be opened: an ordinary torn tail is cut by the next start."""
    n = node()
    n.boot()
    for target in n.open(ensure(2)):
        n.produce(target, batch(), 3)
    n.crash()
    path = n.dirs[0] / "t-1" / SEGMENT
    path.write_bytes(path.read_bytes() + bytes(batch())[:50])
    n.boot()
    if never_opened == 1:
        n.open(ensure(1))
    n.stop()
    assert not (n.dirs[0] / ".kafka_cleanshutdown").exists()
    n.boot()
    assert [(p.error, n.end_of(p)) for p in n.open(ensure(2))] == [(0, 3), (0, 3)]
    n.stop()
    assert (n.dirs[0] / ".kafka_cleanshutdown").exists()


# ---- what is missing ----


def test_a_partition_in_a_failed_directory_is_not_made_anew_in_another(
    node: Callable[..., Node], batch: Callable[..., bytearray]
) -> None:
    n = node(2)
    n.boot()
    n.produce(n.open(ensure(2))[0], batch())
    assert n.names(1) == ["t-0"]
    process = n.boot()
    process.turn.storage_failed(1, errno.EIO)
    process._take_failures()
    answers = n.open(ensure(2))
    assert [p.error for p in answers] == [STORAGE_ERROR, 0]
    assert "failed" in (answers[0].message or "")
    assert n.names(0) == ["__cluster_metadata-0", "t-1"]
    assert n.open(calls.EnsureTopic("new", OTHER_ID, [0], {}, 5, 0))[0].error == 0
    n.boot()
    assert [p.error for p in n.open(ensure(2))] == [0, 0]


def test_a_successor_knows_which_directories_failed(
    node: Callable[..., Node], batch: Callable[..., bytearray]
) -> None:
    n = node(2)
    process = n.boot()
    first, second = n.open(ensure(2))
    n.produce(first, batch(), 3)
    process.turn.storage_failed(1, errno.EIO)
    (n.dirs[1] / "meta.properties").unlink()
    for _ in range(2):
        process = n.succeed()
        assert [log_dir.failed for log_dir in process.manager.dirs] == [False, True]
        assert [p.error for p in n.open(ensure(2))] == [STORAGE_ERROR, 0]
        assert n.produce(first, batch()) == [STORAGE_ERROR]
        assert n.produce(second, batch()) == [0]
    (new,) = n.open(calls.EnsureTopic("new", OTHER_ID, [0], {}, 5, 0))
    assert n.produce(new, batch()) == [0]
    assert "new-0" in n.names(0)


def test_a_directory_that_vanished_is_missed(
    node: Callable[..., Node], batch: Callable[..., bytearray]
) -> None:
    n = node()
    n.boot()
    n.produce(n.open(ensure(1))[0], batch())
    n.stop()
    shutil.move(n.dirs[0] / "t-0", n.dirs[0].parent / "kept")
    for _ in range(2):
        process = n.boot()
        (answer,) = n.open(ensure(1))
        assert answer.error == STORAGE_ERROR
        assert "t-0 is gone" in (answer.message or "")
        n.checkpoint()
    assert n.names() == ["__cluster_metadata-0"]
    shutil.move(n.dirs[0].parent / "kept", n.dirs[0] / "t-0")
    n.boot()
    assert n.open(ensure(1))[0].error == 0
    # Deleting the topic is the other way out.
    shutil.rmtree(n.dirs[0] / "t-0")
    process = n.boot()
    assert n.open(ensure(1))[0].error == STORAGE_ERROR
    process.manager.remove("t", TOPIC_ID)
    assert n.open(again())[0].error == 0
    n.boot()
    assert n.open(again(new_from=None))[0].error == 0


# ---- topics that cannot be opened ----


def test_settings_that_we_do_not_know_leave_the_files_alone(
    node: Callable[..., Node], batch: Callable[..., bytearray]
) -> None:
    n = node()
    n.boot()
    n.produce(n.open(ensure(1))[0], batch())
    n.checkpoint()
    process = n.boot()
    (answer,) = n.open(calls.EnsureTopic("t", TOPIC_ID, [0], {"some.newer.setting": "1"}, 5))
    assert (answer.error, answer.slot_generation) == (40, 1)
    assert n.rig.partition(answer.slot).flags == PartitionFlag.PARTITION_OFFLINE
    process.manager.removal.set_strays_aside({})
    n.checkpoint()
    n.stop()
    n.boot()
    (target,) = n.open(ensure(1))
    assert (target.error, n.end_of(target)) == (0, 1)


def test_a_topic_that_got_no_slot_is_no_stray(
    node: Callable[..., Node], batch: Callable[..., bytearray]
) -> None:
    n = node()
    n.boot()
    n.produce(n.open(ensure(1))[0], batch())
    n.checkpoint()
    process = n.boot()
    filler = calls.EnsureTopic(
        "filler", OTHER_ID, list(range(n.rig.memory.sizes.partition_slots)), {}, 5, True
    )
    answers = n.open(filler)
    assert [p.error for p in answers] == [0] * 63 + [STORAGE_ERROR]
    assert answers[-1].slot_generation == 0
    (answer,) = n.open(ensure(1))
    assert (answer.error, answer.slot_generation) == (STORAGE_ERROR, 0)
    assert "table is full" in (answer.message or "")
    process.manager.removal.set_strays_aside({"filler": OTHER_ID, "t": TOPIC_ID})
    assert "t-0" in n.names()
    process.manager.remove("filler", OTHER_ID)
    (target,) = n.open(ensure(1))
    assert (target.error, n.end_of(target)) == (0, 1)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.ENOMEM])
def test_no_room_at_a_creation_passes(
    node: Callable[..., Node], batch: Callable[..., bytearray], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    n = node()
    n.boot()

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as full:
        full.setattr(PartitionLog, "open_fresh_segment", refuse)
        (answer,) = n.open(ensure(1))
        assert (answer.error, answer.slot_generation) == (STORAGE_ERROR, 0)
        assert n.names() == ["__cluster_metadata-0"]
    (target,) = n.open(ensure(1))
    assert target.error == 0
    assert n.produce(target, batch()) == [0]


def test_no_descriptors_at_an_opening_pass(
    node: Callable[..., Node], batch: Callable[..., bytearray], monkeypatch: pytest.MonkeyPatch
) -> None:
    n = node()
    n.boot()
    n.produce(n.open(ensure(1))[0], batch())
    n.boot()

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as scarce:
        scarce.setattr("mpbroker.log.recovery.log_loader.open_files", refuse)
        assert n.open(ensure(1))[0].slot_generation == 0
    (target,) = n.open(ensure(1))
    assert (target.error, n.end_of(target)) == (0, 1)


# ---- what does not belong there ----


def test_a_topic_with_unreadable_metadata_can_be_deleted(node: Callable[..., Node]) -> None:
    n = node()
    n.boot()
    n.open(ensure(2))
    for number in (0, 1):
        (n.dirs[0] / f"t-{number}" / "partition.metadata").write_text("junk")
    process = n.boot()
    assert [p.error for p in n.open(ensure(2))] == [STORAGE_ERROR] * 2
    process.manager.remove("t", TOPIC_ID)
    assert [name.partition(".")[0] for name in n.names()] == ["__cluster_metadata-0", "t-0", "t-1"]
    assert [name.endswith("-delete") for name in n.names()] == [False, True, True]


def test_a_late_removal_does_not_take_the_new_topics_directory(
    node: Callable[..., Node], batch: Callable[..., bytearray]
) -> None:
    """The old partition was offline, its directory gone."""
    n = node()
    n.boot()
    n.produce(n.open(ensure(1))[0], batch())
    n.checkpoint()
    n.crash()
    shutil.rmtree(n.dirs[0] / "t-0")
    process = n.boot()
    assert n.open(ensure(1))[0].error == STORAGE_ERROR
    (target,) = n.open(again())
    n.produce(target, batch(), 2)
    process.manager.remove("t", TOPIC_ID)
    assert n.names() == ["__cluster_metadata-0", "t-0"]
    n.checkpoint()
    assert "t 0 2" in n.offsets()
    assert uuid_text(OTHER_ID) in (n.dirs[0] / "t-0" / "partition.metadata").read_text()


def test_a_directory_of_the_operator_harms_nobody(
    node: Callable[..., Node], caplog: pytest.LogCaptureFixture
) -> None:
    n = node()
    process = n.boot()
    n.open(ensure(1))
    (n.dirs[0] / "backup").mkdir()
    process.manager.remove("t", TOPIC_ID)
    process.manager.removal.set_strays_aside({})
    assert "backup" in n.names()
    assert caplog.text.count("backup is not the directory of a partition") == 1
    n.succeed()
    assert n.open(again())[0].error == 0


# ---- what a checkpoint is worth ----


@pytest.mark.parametrize("first", ["os", "group"])
def test_high_watermarks_written_without_group_commit_are_no_promise(
    node: Callable[..., Node], batch: Callable[..., bytearray], first: str
) -> None:
    """The power cut took what was never synced."""
    n = node()
    n.boot(log_flush_policy=first)
    n.produce(n.open(ensure(1))[0], batch(), 5)
    n.checkpoint()
    n.crash()
    path = n.dirs[0] / "t-0" / SEGMENT
    os.truncate(path, path.stat().st_size * 3 // 5)
    n.boot(log_flush_policy="group")
    (target,) = n.open(ensure(1))
    assert target.error == (0 if first == "os" else STORAGE_ERROR)
    if first == "os":
        assert n.end_of(target) == 3


def test_the_policy_may_change_back_and_forth(
    node: Callable[..., Node], batch: Callable[..., bytearray]
) -> None:
    n = node()
    for policy, marked in (("group", True), ("os", False), ("group", True)):
        n.boot(log_flush_policy=policy)
        n.produce(n.open(ensure(1))[0], batch())
        n.checkpoint()
        assert (n.dirs[0] / "mpbroker.durable").exists() == marked
    path = n.dirs[0] / "t-0" / SEGMENT
    n.crash()
    os.truncate(path, path.stat().st_size * 2 // 3)
    n.boot()
    assert n.open(ensure(1))[0].error == STORAGE_ERROR
