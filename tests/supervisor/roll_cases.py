"""Replacing handlers one after the other, with toy roles as in `tree_cases.py`."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from mpbroker.ipc import topology
from mpbroker.ipc.process import ProcessContext
from mpbroker.supervisor.changing import Replacement
from mpbroker.supervisor.child import Child, fork_child
from mpbroker.supervisor.tree import Tree
from tests.supervisor.tree_cases import (
    HANDLER,
    PROCESSOR,
    dies_at_once,
    obedient,
    start,
    step_until_gone,
    step_until_mended,
    tree,
)

__all__ = ["tree"]


def rolled(tree: Tree, roll: Replacement, main: Callable[[ProcessContext], int] = obedient) -> list[set[str]]:
    """Rolls to the end; which handlers served, each time that this changed."""
    seen: list[set[str]] = []
    steps = roll.steps(tree, lambda role: Child(role, main))
    for _ in range(2000):
        serving = {c.name for c in tree.children.values() if c.serves and topology.is_handler(c.role)}
        if not seen or seen[-1] != serving:
            seen.append(serving)
        if next(steps, "done"):
            return seen
        tree.step(20)
    raise AssertionError(f"the roll does not end: {seen}")


def handlers_started(tree: Tree, count: int) -> list[int]:
    roles = [topology.handler(number) for number in range(count)]
    start(tree, topology.LOG, topology.COORDINATOR, *roles, PROCESSOR)
    return roles


def test_handlers_are_replaced_one_after_the_other_and_never_fewer_serve(tree: Tree) -> None:
    roles = handlers_started(tree, 2)
    before = {role: tree.children[role].pid for role in roles}
    roll = Replacement(roles, topology.handler(2))
    seen = rolled(tree, roll)
    assert min(map(len, seen)) == 2
    assert max(map(len, seen)) == 3
    assert roll.replaced == ["handler 0", "handler 1"]
    assert not roll.error
    for role in roles:
        child = tree.children[role]
        assert child.pid != before[role]
        assert (child.incarnation, child.leaves_by) == (2, None)
    assert topology.handler(2) not in tree.children
    # One that is replaced is mended like any other afterwards.
    os.kill(tree.children[HANDLER].pid, signal.SIGKILL)
    step_until_mended(tree, HANDLER, 3)


def test_without_a_place_beside_them_they_are_replaced_as_well(tree: Tree) -> None:
    roles = handlers_started(tree, 1)
    roll = Replacement(roles, None)
    assert rolled(tree, roll) == [{"handler 0"}, set(), {"handler 0"}]


def test_new_handlers_that_die_at_their_start_replace_nobody(tree: Tree) -> None:
    roles = handlers_started(tree, 2)
    before = {role: tree.children[role].pid for role in roles}
    roll = Replacement(roles, topology.handler(2))
    assert rolled(tree, roll, dies_at_once) == [{"handler 0", "handler 1"}]
    assert "does not start" in roll.error
    assert {role: tree.children[role].pid for role in roles} == before
    assert topology.handler(2) not in tree.children


def test_a_roll_waits_for_a_process_when_the_system_has_none(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    roles = handlers_started(tree, 2)
    refused: list[str] = []

    def fork(child: Child, *others: Any) -> None:
        if child.role == HANDLER and len(refused) < 2:
            refused.append(child.name)
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        fork_child(child, *others)

    monkeypatch.setattr("mpbroker.supervisor.tree.fork_child", fork)
    monkeypatch.setattr("mpbroker.supervisor.tree.RELAUNCH_S", 0.01)
    roll = Replacement(roles, topology.handler(2))
    rolled(tree, roll)
    assert refused == ["handler 0"] * 2
    assert tree.children[HANDLER].serves
    assert not roll.error


def test_a_roll_without_any_process_leaves_all_as_it_was(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    roles = handlers_started(tree, 2)
    before = {role: tree.children[role].pid for role in roles}

    def fork(*_: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr("mpbroker.supervisor.tree.fork_child", fork)
    roll = Replacement(roles, topology.handler(2))
    assert rolled(tree, roll) == [{"handler 0", "handler 1"}]
    assert "Resource temporarily unavailable" in roll.error
    assert {role: tree.children[role].pid for role in roles} == before
    assert topology.handler(2) not in tree.children


def test_one_that_is_killed_while_it_is_replaced_is_replaced(tree: Tree) -> None:
    roles = handlers_started(tree, 1)
    tree.retire([HANDLER])  # as the roll does
    child = tree.children[HANDLER]
    os.kill(child.pid, signal.SIGKILL)
    step_until_gone(tree, HANDLER)
    tree.start(child)
    assert rolled(tree, Replacement(roles, None))[-1] == {"handler 0"}
