"""A log process that is stepped by hand until nothing is left to do."""

from __future__ import annotations

from functools import partial

from mpbroker.ipc import calls
from mpbroker.ipc.process import pack_order
from mpbroker.ipc.topology import COORDINATOR, LOG
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.log.process import LogProcess
from tests.support.log_rig import Result, Rig, ensure
from tests.support.polling import until

T0 = 4_000_000_000_000


class Broker:
    """A rig and a process that is stepped until nothing is left to do."""

    def __init__(self, rig: Rig, partitions: int = 1, **configs: str) -> None:
        self.rig = rig
        self.process = rig.in_process()
        self.rig.call(ensure(partitions, **configs))
        self.settle()
        answer = rig.take_answer()
        assert isinstance(answer, calls.EnsuredTopic)
        self.targets = [(p.slot, p.slot_generation, 5) for p in answer.partitions]
        assert all(p.error == 0 for p in answer.partitions)

    def settle(self) -> None:
        settle(self.process)

    def log(self, partition: int = 0) -> PartitionLog:
        return self.process.manager.logs[self.targets[partition][0]]

    def produce(self, *batches: bytes, partition: int = 0, acks: int = -1) -> list[Result]:
        self.rig.job([(self.targets[partition], b) for b in batches], acks=acks)
        self.settle()
        (reply,) = self.rig.replies()
        return reply.results

    def close(self) -> None:
        self.process.turn.close()
        self.process.io_thread.close()


def fence_coordinator(rig: Rig, process: LogProcess) -> None:
    """Let the coordinator be dead and have a successor, and the process acknowledge both."""
    acks, orders = rig.memory.words("fence_acks"), rig.memory.words("fence_orders")

    def obey() -> None:
        process.obey_order()
        process.work(0)

    for sequence, stage in ((1, 1), (2, 0)):
        order = pack_order(sequence, stage, COORDINATOR)
        orders.store(LOG, order)
        until(partial(lambda order: acks.load(LOG) == order, order), "the fence is acknowledged", obey)
        if stage:
            rig.memory.reset_rings_of(COORDINATOR)
            rig.bind()


def settle(process: LogProcess) -> None:
    process.work(0)
    until(
        lambda: not process.topics.advance() and process.turn.is_settled,
        "no job, commit round or answer is left",
        lambda: process.work(5),
    )
