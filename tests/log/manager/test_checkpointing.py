"""Checkpoints of all partitions of a log worker, while partitions come and go."""

from __future__ import annotations

from mpbroker.records.validation import at_once
from tests.support.log_node import HIGH_WATERMARKS, Node, wait_for_io
from tests.support.log_rig import TOPIC_ID, ensure
from tests.support.log_writer import make_batch


def test_a_removal_is_in_the_checkpoints_soon(n: Node) -> None:
    process = n.process
    n.produce(n.open(ensure(1))[0], make_batch())
    n.checkpoint()
    at_once(process.manager.removing("t", TOPIC_ID))
    process._do_housekeeping()
    wait_for_io(process)
    assert n.offsets() == ["__cluster_metadata 0 0"]


def test_a_checkpoint_in_a_long_start_keeps_what_is_not_open_yet(n: Node) -> None:
    for target in n.open(ensure(2)):
        n.produce(target, make_batch(), 2)
    n.checkpoint()
    process = n.boot()
    steps = process.manager.ensuring(ensure(2))
    next(steps)
    n.checkpoint()
    for name in (HIGH_WATERMARKS, "recovery-point-offset-checkpoint"):
        assert n.offsets(name) == ["__cluster_metadata 0 0", "t 0 2", "t 1 2"]
