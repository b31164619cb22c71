"""Topics that are removed, and directories that belong to no topic: nobody else's files go along."""

from __future__ import annotations

import shutil

import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.table import PartitionFlag
from mpbroker.protocol.uuids import uuid_text
from mpbroker.records.validation import at_once
from tests.support.log_node import HIGH_WATERMARKS, OTHER_ID, STORAGE_ERROR, MakeNode, Node, again
from tests.support.log_rig import TOPIC_ID, MakeRig, ensure
from tests.support.log_writer import make_batch
from tests.support.stepped_log import settle


def test_a_slot_that_only_the_predecessor_knew_is_marked_when_its_topic_goes(n: Node) -> None:
    (target,) = n.open(ensure(1))
    process = n.succeed()
    assert n.rig.partition(target.slot).flags == PartitionFlag.PARTITION_LIVE
    at_once(process.manager.removing("t", TOPIC_ID))
    assert n.rig.partition(target.slot).flags == PartitionFlag.PARTITION_DELETED
    (new,) = n.open(again())
    assert n.produce(new, make_batch()) == [0]


def test_a_topic_with_unreadable_metadata_can_be_deleted(n: Node) -> None:
    n.open(ensure(2))
    for number in (0, 1):
        (n.dirs[0] / f"t-{number}" / "partition.metadata").write_text("junk")
    process = n.boot()
    assert [p.error for p in n.open(ensure(2))] == [STORAGE_ERROR] * 2
    at_once(process.manager.removing("t", TOPIC_ID))
    assert [name.partition(".")[0] for name in n.names()] == ["__cluster_metadata-0", "t-0", "t-1"]
    assert [name.endswith("-delete") for name in n.names()] == [False, True, True]


def test_a_late_removal_does_not_take_the_new_topics_directory(n: Node) -> None:
    """Check it if the old partition was offline and its directory gone."""
    n.produce(n.open(ensure(1))[0], make_batch())
    n.checkpoint()
    n.crash()
    shutil.rmtree(n.dirs[0] / "t-0")
    process = n.boot()
    assert n.open(ensure(1))[0].error == STORAGE_ERROR
    (target,) = n.open(again())
    n.produce(target, make_batch(), 2)
    at_once(process.manager.removing("t", TOPIC_ID))
    assert n.names() == ["__cluster_metadata-0", "t-0"]
    n.checkpoint()
    assert "t 0 2" in n.offsets()
    assert uuid_text(OTHER_ID) in (n.dirs[0] / "t-0" / "partition.metadata").read_text()


def test_a_directory_of_the_operator_harms_nobody(node: MakeNode, caplog: pytest.LogCaptureFixture) -> None:
    n = node()
    process = n.boot()
    n.open(ensure(1))
    (n.dirs[0] / "backup").mkdir()
    at_once(process.manager.removing("t", TOPIC_ID))
    at_once(process.manager.removal.setting_strays_aside({}))
    assert "backup" in n.names()
    assert caplog.text.count("backup is not the directory of a partition") == 1
    n.succeed()
    assert n.open(again())[0].error == 0


def test_offsets_of_topics_that_are_no_more_are_dropped(n: Node) -> None:
    n.open(ensure(1))
    n.checkpoint()
    n.crash()
    path = n.dirs[0] / HIGH_WATERMARKS
    path.write_text("0\n3\n__cluster_metadata 0 0\ngone 0 7\nt 0 0\n")
    (n.dirs[0] / "recovery-point-offset-checkpoint").write_text("0\n1\ngone 0 7\n")
    process = n.boot()
    n.open(ensure(1))
    at_once(process.manager.removal.setting_strays_aside({"t": TOPIC_ID}))
    n.checkpoint()
    assert n.offsets() == ["__cluster_metadata 0 0", "t 0 0"]


def test_settings_that_we_do_not_know_leave_the_files_alone(n: Node) -> None:
    n.produce(n.open(ensure(1))[0], make_batch())
    n.checkpoint()
    process = n.boot()
    (answer,) = n.open(calls.EnsureTopic("t", TOPIC_ID, [0], {"some.newer.setting": "1"}, 5))
    assert (answer.error, answer.slot_generation) == (40, 1)
    assert n.rig.partition(answer.slot).flags == PartitionFlag.PARTITION_OFFLINE
    at_once(process.manager.removal.setting_strays_aside({}))
    n.checkpoint()
    n.stop()
    n.boot()
    (target,) = n.open(ensure(1))
    assert (target.error, n.end_of(target)) == (0, 1)


def test_a_topic_that_got_no_slot_is_no_stray(n: Node) -> None:
    n.produce(n.open(ensure(1))[0], make_batch())
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
    at_once(process.manager.removal.setting_strays_aside({"filler": OTHER_ID, "t": TOPIC_ID}))
    assert "t-0" in n.names()
    at_once(process.manager.removing("filler", OTHER_ID))
    (target,) = n.open(ensure(1))
    assert (target.error, n.end_of(target)) == (0, 1)


def test_a_deleted_topics_files_may_be_gone_already(rig: MakeRig) -> None:
    r = rig()
    process = r.in_process()
    r.call(ensure(1))
    settle(process)
    at_once(process.manager.removing("t", TOPIC_ID))
    (gone,) = r.directory.glob("t-0.*")
    shutil.rmtree(gone)
    process.manager.removal.deletions.begin_due(float("inf"))
    process.io_thread.close()
    assert process.io_thread.failures() == []
