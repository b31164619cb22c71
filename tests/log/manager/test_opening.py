"""Partitions opened after a crash, a failed disk, a deletion: nothing acked is cut off or replaced."""

from __future__ import annotations

import errno
import shutil

import pytest

from mpbroker.ipc import calls
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.records.validation import at_once
from tests.support.full_disk import failing_with
from tests.support.log_node import OTHER_ID, SEGMENT, STORAGE_ERROR, MakeNode, Node, again, flip_bit
from tests.support.log_rig import TOPIC_ID, ensure
from tests.support.log_writer import make_batch


@pytest.mark.parametrize("ends", ["crash", "stop", "successor"])
def test_damage_is_never_cut_however_often_the_broker_starts(n: Node, ends: str) -> None:
    n.produce(n.open(ensure(1))[0], make_batch(), 5)
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


def test_what_only_the_table_knew_of_a_damaged_partition_outlives_the_broker(n: Node) -> None:
    """Check records that were acknowledged after the last checkpoint, in a partition found damaged later."""
    n.produce(n.open(ensure(1))[0], make_batch(), 5)
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


def test_a_partition_in_a_failed_directory_is_not_made_anew_in_another(node: MakeNode) -> None:
    n = node(2)
    n.boot()
    n.produce(n.open(ensure(2))[0], make_batch())
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


def test_a_directory_that_vanished_is_missed(n: Node) -> None:
    n.produce(n.open(ensure(1))[0], make_batch())
    n.stop()
    shutil.move(n.dirs[0] / "t-0", n.dirs[0].parent / "kept")
    for _ in range(2):
        process = n.boot()
        (answer,) = n.open(ensure(1))
        assert answer.error == STORAGE_ERROR
        assert "t-0 is missing" in (answer.message or "")
        n.checkpoint()
    assert n.names() == ["__cluster_metadata-0"]
    shutil.move(n.dirs[0].parent / "kept", n.dirs[0] / "t-0")
    n.boot()
    assert n.open(ensure(1))[0].error == 0
    # Deleting the topic is the other way out.
    shutil.rmtree(n.dirs[0] / "t-0")
    process = n.boot()
    assert n.open(ensure(1))[0].error == STORAGE_ERROR
    at_once(process.manager.removing("t", TOPIC_ID))
    assert n.open(again())[0].error == 0
    n.boot()
    assert n.open(again(new_from=None))[0].error == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.ENOMEM])
def test_no_room_at_a_creation_passes(n: Node, monkeypatch: pytest.MonkeyPatch, number: int) -> None:

    with monkeypatch.context() as full:
        full.setattr(PartitionLog, "open_fresh_segment", failing_with(number))
        (answer,) = n.open(ensure(1))
        assert (answer.error, answer.slot_generation) == (STORAGE_ERROR, 0)
        assert n.names() == ["__cluster_metadata-0"]
    (target,) = n.open(ensure(1))
    assert target.error == 0
    assert n.produce(target, make_batch()) == [0]


def test_no_descriptors_at_an_opening_pass(n: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    n.produce(n.open(ensure(1))[0], make_batch())
    n.boot()

    with monkeypatch.context() as scarce:
        scarce.setattr("mpbroker.log.recovery.log_loader.open_files", failing_with(errno.EMFILE))
        assert n.open(ensure(1))[0].slot_generation == 0
    (target,) = n.open(ensure(1))
    assert (target.error, n.end_of(target)) == (0, 1)
