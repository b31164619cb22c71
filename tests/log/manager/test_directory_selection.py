"""A partition is in one log directory: which one, where a new one goes, and what if there are two."""

from __future__ import annotations

import shutil

import pytest

from mpbroker.ipc.process import FatalError
from mpbroker.log.recovery import workers
from tests.support.log_node import MakeNode
from tests.support.log_rig import ensure
from tests.support.log_writer import make_batch


@pytest.mark.parametrize("workers_of", ["none", "both", "the first", "the second"])
def test_one_that_is_in_two_is_fatal_and_both_are_named(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch, workers_of: str
) -> None:
    """Check it for either order of opening, since nobody can tell which of the two counts."""
    n = node(2)
    n.boot()
    for target in n.open(ensure(6)):
        assert n.produce(target, make_batch()) == [0]
    n.crash()
    first, second = n.dirs
    (name, *_) = [path.name for path in first.glob("t-*")]
    shutil.copytree(first / name, second / name)
    least = max(len(list(path.iterdir())) for path in n.dirs) + 1
    wanted = {"none": (), "both": (first, second), "the first": (first,), "the second": (second,)}[workers_of]
    for path in wanted:
        for number in range(least):
            (path / f"file{number}").touch()
    monkeypatch.setattr(workers, "UNCLEAN_LEAST", least)
    process = n.boot()
    recovery = process.recovery_scheduler._recovery
    assert [recovery.takes(number) for number in (0, 1)] == [p in wanted for p in n.dirs]
    process.manager.prefetch(ensure(6))
    with pytest.raises(FatalError, match=f"{name} is in {first} and in {second}. Move one of them away"):
        n.open(ensure(6))
    process.recovery_scheduler.end()


def test_new_ones_go_where_there_are_the_fewest(node: MakeNode) -> None:
    n = node(3)
    n.boot()
    n.open(ensure(5))
    counts = sorted(len(list(path.glob("*-[0-9]"))) for path in n.dirs)
    assert counts == [2, 2, 2], "five, and that of the metadata"
