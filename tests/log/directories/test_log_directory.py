"""Log directories after a crash or a failed disk: clean stops, failures, durable offsets."""

from __future__ import annotations

import errno
import os

import pytest

from mpbroker.ipc import calls
from tests.support.log_node import OTHER_ID, SEGMENT, STORAGE_ERROR, MakeNode, Node
from tests.support.log_rig import ensure
from tests.support.log_writer import make_batch


@pytest.mark.parametrize("never_opened", [1, 2])
def test_the_mark_of_a_clean_stop_is_for_all_partitions(n: Node, never_opened: int) -> None:
    """Stop before all topics are opened, and check that the next start still cuts a torn tail."""
    for target in n.open(ensure(2)):
        n.produce(target, make_batch(), 3)
    n.crash()
    path = n.dirs[0] / "t-1" / SEGMENT
    path.write_bytes(path.read_bytes() + bytes(make_batch())[:50])
    n.boot()
    if never_opened == 1:
        n.open(ensure(1))
    n.stop()
    assert not (n.dirs[0] / ".kafka_cleanshutdown").exists()
    n.boot()
    assert [(p.error, n.end_of(p)) for p in n.open(ensure(2))] == [(0, 3), (0, 3)]
    n.stop()
    assert (n.dirs[0] / ".kafka_cleanshutdown").exists()


def test_a_successor_knows_which_directories_failed(node: MakeNode) -> None:
    n = node(2)
    process = n.boot()
    first, second = n.open(ensure(2))
    n.produce(first, make_batch(), 3)
    process.turn.storage_failed(1, errno.EIO)
    (n.dirs[1] / "meta.properties").unlink()
    for _ in range(2):
        process = n.succeed()
        assert [log_dir.failed for log_dir in process.manager.dirs] == [False, True]
        assert [p.error for p in n.open(ensure(2))] == [STORAGE_ERROR, 0]
        assert n.produce(first, make_batch()) == [STORAGE_ERROR]
        assert n.produce(second, make_batch()) == [0]
    (new,) = n.open(calls.EnsureTopic("new", OTHER_ID, [0], {}, 5, 0))
    assert n.produce(new, make_batch()) == [0]
    assert "new-0" in n.names(0)


@pytest.mark.parametrize("first", ["os", "group"])
def test_high_watermarks_written_without_group_commit_are_no_promise(node: MakeNode, first: str) -> None:
    """Check it with a power cut that removes what was never synced."""
    n = node()
    n.boot(log_flush_policy=first)
    n.produce(n.open(ensure(1))[0], make_batch(), 5)
    n.checkpoint()
    n.crash()
    path = n.dirs[0] / "t-0" / SEGMENT
    os.truncate(path, path.stat().st_size * 3 // 5)
    n.boot(log_flush_policy="group")
    (target,) = n.open(ensure(1))
    assert target.error == (0 if first == "os" else STORAGE_ERROR)
    if first == "os":
        assert n.end_of(target) == 3


def test_the_policy_may_change_back_and_forth(node: MakeNode) -> None:
    n = node()
    for policy, marked in (("group", True), ("os", False), ("group", True)):
        n.boot(log_flush_policy=policy)
        n.produce(n.open(ensure(1))[0], make_batch())
        n.checkpoint()
        assert (n.dirs[0] / "mpbroker.durable").exists() == marked
    path = n.dirs[0] / "t-0" / SEGMENT
    n.crash()
    os.truncate(path, path.stat().st_size * 2 // 3)
    n.boot()
    assert n.open(ensure(1))[0].error == STORAGE_ERROR
