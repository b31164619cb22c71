"""Checkpoints of all partitions of a log worker, while partitions come and go."""

from __future__ import annotations

from collections.abc import Callable

from mpbroker.records.validation import at_once
from tests.support.log_node import HIGH_WATERMARKS, Node, wait_for_io
from tests.support.log_rig import TOPIC_ID, ensure


def test_a_removal_is_in_the_checkpoints_soon(
    node: Callable[..., Node], batch: Callable[..., bytearray]
) -> None:
    n = node()
    process = n.boot()
    n.produce(n.open(ensure(1))[0], batch())
    n.checkpoint()
    at_once(process.manager.removing("t", TOPIC_ID))
    process._do_housekeeping()
    wait_for_io(process)
    assert n.offsets() == ["__cluster_metadata 0 0"]


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
