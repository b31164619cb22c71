"""Brokers around a real coordinator process."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.coordinator_tree import CoordinatorTree


@pytest.fixture(scope="package", autouse=True)
def _timers_have_time() -> Iterator[None]:
    """A machine that stops a test for 10 ms does not put off its timers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mpbroker.coordinator.runtime.timers.RUN_S", float("inf"))
        yield


@pytest.fixture
def make_tree(tmp_path: Path) -> Iterator[Callable[..., CoordinatorTree]]:
    """Makes trees that are gone at the end of the test."""
    public = Path(tempfile.mkdtemp(prefix="mpbroker-test-", dir="/dev/shm"))
    trees: list[CoordinatorTree] = []

    def make(directory: Path = tmp_path, **options: object) -> CoordinatorTree:
        trees.append(CoordinatorTree(directory, public / f"public-{len(trees)}", **options))  # type: ignore[arg-type]
        return trees[-1]

    yield make
    for tree in trees:
        tree.close()
    shutil.rmtree(public)


@pytest.fixture
def tree(make_tree: Callable[..., CoordinatorTree]) -> CoordinatorTree:
    """A tree whose coordinator serves."""
    made = make_tree()
    made.serve()
    return made
