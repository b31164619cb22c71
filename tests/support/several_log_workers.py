"""Several log workers on the same directories, and everybody who talks to them played by the test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mpbroker.ipc import calls, topology
from mpbroker.ipc.process import ProcessContext
from mpbroker.ipc.table import Partition
from mpbroker.log.process import LogProcess
from mpbroker.storage.names import log_worker_of
from tests.support.log_node import wait_for_io
from tests.support.log_rig import Reply, Rig, end
from tests.support.stepped_log import settle


@dataclass
class SeveralRig(Rig):
    """`worker`: to whom jobs go and from whom replies come, until another one is chosen."""

    rings: list[tuple[Any, Any, Any]] = field(default_factory=list)

    def bind(self) -> None:
        super().bind()
        self.rings = []
        for number in range(self.workers):
            role, memory = topology.log_worker(number), self.memory
            self.rings.append(
                (
                    memory.ring(self.handler, role),
                    memory.ring(role, self.processor),
                    memory.ring(role, self.handler),
                )
            )

    def use(self, number: int) -> None:
        self.to_log, self.from_log, self.produced = self.rings[number]

    def start_worker(self, number: int, incarnation: int = 1) -> LogProcess:
        context = ProcessContext(topology.log_worker(number), self.memory, self.config, incarnation)
        process = LogProcess(context)
        self.processes.append(process)
        process.start()
        return process

    def job(self, batches: Any, **options: Any) -> int:
        """Send a job whose batches are all for partitions of one worker."""
        target = batches[0][0]
        slot = target[0] if not isinstance(target, Partition) else 0
        self.use(slot % self.workers)
        return super().job(batches, **options)

    def replies(self) -> list[Reply]:
        out = []
        for number in range(self.workers):
            self.use(number)
            out += super().replies()
        return out


class Several:
    """All workers of a rig."""

    def __init__(self, made: SeveralRig) -> None:
        self.rig = made
        self.processes = [made.start_worker(number) for number in range(made.workers)]

    def open(self, topic: calls.EnsureTopic) -> list[calls.EnsuredPartition]:
        found = [one for process in self.processes for one in process.manager.ensure(topic).partitions]
        return sorted(found, key=lambda one: one.partition)

    def owner(self, topic: str, partition: int) -> LogProcess:
        return self.processes[log_worker_of(topic, partition, self.rig.workers)]

    def succeed(self, number: int) -> None:
        """Kill a worker, and start its successor."""
        end(self.processes[number])
        self.rig.memory.reset_rings_of(topology.log_worker(number))
        self.rig.bind()
        self.processes[number] = self.rig.start_worker(number, incarnation=2)

    def checkpoint(self) -> None:
        for process in self.processes:
            process.manager.checkpoints.write_high_watermarks()
            wait_for_io(process)

    def settle(self) -> None:
        for process in self.processes:
            settle(process)

    def crash(self) -> None:
        for process in self.processes:
            end(process)
        self.rig.processes.clear()
        self.processes = []

    def stop(self) -> None:
        """Stop them in the order of the supervisor: the first one last."""
        for process in reversed(self.processes):
            assert process._stop() == 0
        self.rig.processes.clear()
        self.processes = []
