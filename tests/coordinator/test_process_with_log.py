"""The coordinator with the real log process: topics become directories, and either may die."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mpbroker.ipc.calls import (
    AllocateProducerIds,
    CreatedTopics,
    CreateTopic,
    CreateTopics,
    DeleteTopics,
    ProducerIds,
)
from mpbroker.ipc.topology import LOG
from tests.support.coordinator_tree import CoordinatorTree
from tests.support.real_log import RealLog


def created(tree: CoordinatorTree, name: str) -> int:
    answer = tree.ask(CreateTopics([CreateTopic(name, 2)]))
    assert isinstance(answer, CreatedTopics)
    return answer.topics[0].error


def test_topics_with_the_real_log_process(make_tree: Callable[..., CoordinatorTree], tmp_path: Path) -> None:
    tree = make_tree(real_log=True)
    log = RealLog(tree, 1)
    try:
        tree.until(log.is_ready)
        tree.start()
        tree.until(tree.is_ready)
        assert created(tree, "a") == 0
        tree.until(log.has_its_answers_back)
        assert (tmp_path / "a-1" / "00000000000000000000.log").exists()
        assert tree.ask(AllocateProducerIds()) == ProducerIds(0, 1000)
        tree.kill(log.fence)
        tree.start()
        tree.until(tree.is_ready)
        assert created(tree, "a") == 36
        assert created(tree, "b") == 0

        log.kill()
        tree.fence(LOG, 0)
        tree.memory.reset_rings_of(LOG)
        request = tree.handlers[0].call(CreateTopics([CreateTopic("c", 2)]))
        log = RealLog(tree, 2)
        tree.until(log.is_ready)
        tree.fence(LOG, 2)
        tree.until(lambda: request in tree.handlers[0].answers)
        tree.pump()
        assert set(tree.handlers[1].topics) == {"a", "b", "c"}
        tree.ask(DeleteTopics(["a"]))
        assert not (tmp_path / "a-1").exists()
        assert tree.ask(AllocateProducerIds()) == ProducerIds(1000, 1000)
        assert tree.stop() == 0
    finally:
        log.kill()
