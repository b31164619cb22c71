"""A real log process beside a coordinator's tree."""

from __future__ import annotations

import os
import signal

from mpbroker.ipc.process import Order, ProcessContext, State, pack_order
from mpbroker.ipc.topology import COORDINATOR, LOG
from mpbroker.log import process as log_process
from tests.support.coordinator_tree import CoordinatorTree


class RealLog:
    """A forked log process of a tree."""

    def __init__(self, tree: CoordinatorTree, incarnation: int) -> None:
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

    def fence(self, incarnation: int) -> None:
        """Orders it to fence (0) or to welcome a coordinator."""
        orders, acks = self.tree.memory.words("fence_orders"), self.tree.memory.words("fence_acks")
        order = pack_order(incarnation + 1, 0 if incarnation else 1, COORDINATOR)
        orders.store(LOG, order)
        self.tree.memory.doorbell(LOG).ring()
        self.tree.until(lambda: acks.load(LOG) == order)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
