"""A topic that is deleted and made anew under its name: offsets and files of the old one are not its own."""

from __future__ import annotations

import errno
import threading

import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.process import MAX_SLEEP_MS
from mpbroker.ipc.table import PartitionFlag
from mpbroker.records.validation import at_once
from tests.support.full_disk import failing_with
from tests.support.log_node import SEGMENT, STORAGE_ERROR, MakeNode, Node, again, wait_for_io
from tests.support.log_rig import TOPIC_ID, ensure
from tests.support.log_writer import make_batch
from tests.support.polling import PATIENCE_S, is_readable


@pytest.mark.parametrize("whole_broker", [False, True])
def test_a_recreated_topic_survives_a_crash(n: Node, whole_broker: bool) -> None:
    """Check that the old topic's checkpoints, with larger offsets, are not used for the new one."""
    n.produce(n.open(ensure(1))[0], make_batch(), 20)
    n.checkpoint()
    assert n.offsets() == ["__cluster_metadata 0 0", "t 0 20"]
    at_once(n.process.manager.removing("t", TOPIC_ID))
    (target,) = n.open(again())
    assert n.produce(target, make_batch(), 3) == [0, 0, 0]
    assert n.offsets() == ["__cluster_metadata 0 0"]
    assert n.offsets("recovery-point-offset-checkpoint") == ["__cluster_metadata 0 0"]
    n.boot() if whole_broker else n.succeed()
    (target,) = n.open(again(new_from=None))
    assert (target.error, n.end_of(target)) == (0, 3)


def test_a_topic_is_not_recreated_before_the_old_checkpoint_is_gone(
    n: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = n.process
    n.produce(n.open(ensure(1))[0], make_batch(), 20)
    n.checkpoint()
    at_once(process.manager.removing("t", TOPIC_ID))

    with monkeypatch.context() as full:
        full.setattr("mpbroker.storage.checkpoints.write_whole", failing_with(errno.ENOSPC))
        (answer,) = n.open(again())
    assert (answer.error, answer.slot_generation) == (STORAGE_ERROR, 0)
    assert not (n.dirs[0] / "t-0").exists()
    assert n.open(again())[0].error == 0
    assert "t 0 20" not in n.offsets()


def test_a_deletion_whose_checkpoint_was_not_written_does_not_hold_up_a_new_topic(n: Node) -> None:
    process = n.process
    n.produce(n.open(ensure(1))[0], make_batch(), 20)
    n.checkpoint()
    at_once(process.manager.removing("t", TOPIC_ID))
    assert "t 0 20" in n.offsets()
    n.boot()
    (target,) = n.open(again(new_from=None))
    assert (target.error, n.end_of(target)) == (0, 0)


def test_recreated_while_the_old_one_is_still_open(node: MakeNode) -> None:
    """Check that nothing of the old log gets into the new directory before the removal comes."""
    n = node()
    process = n.boot(log_segment_delete_delay_ms=0)
    (old,) = n.open(ensure(1, segment_bytes="1048576"))
    (new,) = n.open(again())
    assert n.rig.partition(old.slot).flags == PartitionFlag.PARTITION_DELETED
    assert n.produce(old, make_batch(size=900_000), 3) == [6, 6, 6]
    assert n.produce(new, make_batch()) == [0]
    at_once(process.manager.removing("t", TOPIC_ID))
    assert [e.name for e in (n.dirs[0] / "t-0").glob("*.log")] == [SEGMENT]
    process.manager.removal.deletions.begin_due(1e18)
    wait_for_io(process)
    assert n.names() == ["__cluster_metadata-0", "t-0"]
    assert n.produce(new, make_batch()) == [0]


@pytest.mark.parametrize("then", ["nothing", "another checkpoint"])
def test_a_topic_is_not_recreated_while_the_old_checkpoint_is_on_its_way(n: Node, then: str) -> None:
    """Check it with a slow disk: the I/O thread has not yet written the lines of the deleted topic."""
    process = n.process
    n.produce(n.open(ensure(1))[0], make_batch(), 20)
    gate = threading.Event()
    process.io_thread.submit(lambda: gate.wait() and None, 0)
    process.manager.checkpoints.write_high_watermarks()
    at_once(process.manager.removing("t", TOPIC_ID))
    if then == "another checkpoint":
        process.manager.checkpoints.write_high_watermarks()
    steps = process.manager.ensuring(again())
    for _ in range(5):
        next(steps, None)
    is_made = (n.dirs[0] / "t-0").exists()
    gate.set()
    assert not is_made
    for _ in steps:
        pass
    (target,) = n.open(again())
    assert n.produce(target, make_batch(), 3) == [0, 0, 0]
    n.boot()
    (target,) = n.open(again(new_from=None))
    assert (target.error, n.end_of(target)) == (0, 3)


def test_the_loop_sleeps_while_the_io_thread_is_waited_for(n: Node) -> None:
    """Beside a loop that looks again and again the I/O thread, which needs the GIL for each system call,
    takes seconds for milliseconds of work, and with it whoever creates the topic.
    """
    process = n.process
    n.produce(n.open(ensure(1))[0], make_batch(), 20)
    process.manager.checkpoints.write_high_watermarks()
    for _ in process.io_thread.catching_up():
        pass
    gate = threading.Event()
    process.io_thread.submit(lambda: gate.wait() and None, 0)
    at_once(process.manager.removing("t", TOPIC_ID))
    n.rig.call(again())
    process.work(0)
    assert process.topics.advance()
    assert process.sleep_ms == MAX_SLEEP_MS
    process.work(0)
    assert process.topics.advance(), "it still waits"
    assert process.sleep_ms == MAX_SLEEP_MS
    gate.set()
    answer = None
    while answer is None:
        # Woken by the I/O thread, by nothing else.
        assert process.sleep_ms == 0 or is_readable(process.context.bell.fd, PATIENCE_S)
        process.work(process.sleep_ms)
        process.topics.advance()
        answer = n.rig.take_answer()
    assert isinstance(answer, calls.EnsuredTopic)
    assert [one.error for one in answer.partitions] == [0]
    assert (n.dirs[0] / "t-0").exists()
