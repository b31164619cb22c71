"""A topic that is deleted and made anew under its name while the disk is slow."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.process import MAX_SLEEP_MS
from tests.support.log_node import Node, again
from tests.support.log_rig import TOPIC_ID, Rig, ensure
from tests.support.polling import PATIENCE_S, is_readable


@pytest.mark.parametrize("then", ["nothing", "another checkpoint"])
def test_a_topic_is_not_recreated_while_the_old_checkpoint_is_on_its_way(
    rig: Callable[..., Rig], tmp_path: Path, batch: Callable[..., bytearray], then: str
) -> None:
    """A slow disk: the I/O thread has not written yet what names the topic that is deleted meanwhile."""
    n = Node(rig, tmp_path)
    process = n.boot()
    n.produce(n.open(ensure(1))[0], batch(), 20)
    gate = threading.Event()
    process.io_thread.submit(lambda: gate.wait() and None, 0)
    process.manager.checkpoints.write_high_watermarks()
    process.manager.remove("t", TOPIC_ID)
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
    assert n.produce(target, batch(), 3) == [0, 0, 0]
    n.boot()
    (target,) = n.open(again(new_from=None))
    assert (target.error, n.end_of(target)) == (0, 3)
    n.crash()


def test_the_loop_sleeps_while_the_io_thread_is_waited_for(
    rig: Callable[..., Rig], tmp_path: Path, batch: Callable[..., bytearray]
) -> None:
    """Beside a loop that looks again and again the I/O thread, which needs the GIL for each system call,
    takes seconds for milliseconds of work, and with it whoever creates the topic.
    """
    n = Node(rig, tmp_path)
    process = n.boot()
    n.produce(n.open(ensure(1))[0], batch(), 20)
    process.manager.checkpoints.write_high_watermarks()
    for _ in process.io_thread.catching_up():
        pass
    gate = threading.Event()
    process.io_thread.submit(lambda: gate.wait() and None, 0)
    process.manager.remove("t", TOPIC_ID)
    n.rig.call(again())
    process.work(0)
    assert process.ensure_on()
    assert process.sleep_ms == MAX_SLEEP_MS
    process.work(0)
    assert process.ensure_on(), "it still waits"
    assert process.sleep_ms == MAX_SLEEP_MS
    gate.set()
    answer = None
    while answer is None:
        # Woken by the I/O thread, by nothing else.
        assert process.sleep_ms == 0 or is_readable(process.context.bell.fd, PATIENCE_S)
        process.work(process.sleep_ms)
        process.ensure_on()
        answer = n.rig.take_answer()
    assert isinstance(answer, calls.EnsuredTopic)
    assert [one.error for one in answer.partitions] == [0]
    assert (n.dirs[0] / "t-0").exists()
    n.crash()
