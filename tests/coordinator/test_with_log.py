"""The coordinator with the real log process: topics become directories, and either may die."""

from __future__ import annotations

import os
import signal
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
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.process import Order, ProcessContext, State, pack_fence
from mpbroker.ipc.topology import COORDINATOR, LOG
from mpbroker.log import process as log_process
from tests.coordinator.tree import Tree


class RealLog:
    """A forked log process of a tree."""

    def __init__(self, tree: Tree, incarnation: int) -> None:
        self.tree = tree
        tree.log = None
        tree.memory.words("orders").store(LOG, Order.RUN)
        tree.memory.words("states").store(LOG, State.STARTING)
        tree.memory.doorbell(LOG).disarm()
        tree.roles.store(LOG, incarnation)
        self.pid = os.fork()
        if not self.pid:
            try:
                os._exit(log_process.run(ProcessContext(LOG, tree.memory, tree.config, incarnation)))
            finally:
                os._exit(99)

    def is_ready(self) -> bool:
        return bool(self.tree.memory.words("states").load(LOG) == State.READY)

    def has_its_answers_back(self) -> bool:
        return self.tree.memory.counters(LOG).get(Counter.COUNT_ARENA_BYTES) == 0

    def fence(self, incarnation: int) -> None:
        """Orders it to fence (0) or to welcome a coordinator."""
        orders, acks = self.tree.memory.words("fence_orders"), self.tree.memory.words("fence_acks")
        order = pack_fence(incarnation + 1, 0 if incarnation else 1, COORDINATOR)
        orders.store(LOG, order)
        self.tree.memory.doorbell(LOG).ring()
        self.tree.until(lambda: acks.load(LOG) == order)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def created(tree: Tree, name: str) -> int:
    answer = tree.ask(CreateTopics([CreateTopic(name, 2)]))
    assert isinstance(answer, CreatedTopics)
    return answer.topics[0].error


def test_topics_with_the_real_log_process(make_tree: Callable[..., Tree], tmp_path: Path) -> None:
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
