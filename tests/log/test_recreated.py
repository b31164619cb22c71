"""A topic that is deleted and made anew under its name while the disk is slow."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.log.rig import TOPIC_ID, Rig, ensure
from tests.log.test_log_dirs import Node, again


@pytest.mark.parametrize("then", ["nothing", "another checkpoint"])
def test_a_topic_is_not_recreated_while_the_old_checkpoint_is_on_its_way(
    rig: Callable[..., Rig], tmp_path: Path, batch: Callable[..., bytearray], then: str
) -> None:
    """A slow disk: the helper has not written yet what names the topic that is deleted meanwhile."""
    n = Node(rig, tmp_path)
    process = n.boot()
    n.produce(n.open(ensure(1))[0], batch(), 20)
    gate = threading.Event()
    process.helper.submit(lambda: gate.wait() and None, 0)
    process.manager.checkpoint_high_watermarks()
    process.manager.remove("t", TOPIC_ID)
    if then == "another checkpoint":
        process.manager.checkpoint_high_watermarks()
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
