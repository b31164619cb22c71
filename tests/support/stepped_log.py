"""A log process that is stepped by hand until nothing is left to do."""

from __future__ import annotations

from mpbroker.ipc import calls
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

    def produce(self, *batches: bytes, partition: int = 0, acks: int = -1) -> list[Result]:
        self.rig.job([(self.targets[partition], b) for b in batches], acks=acks)
        self.settle()
        (reply,) = self.rig.replies()
        return reply.results

    def close(self) -> None:
        self.process.turn.close()
        self.process.io_thread.close()


def settle(process: LogProcess) -> None:
    process.work(0)
    until(
        lambda: not process.topics.advance() and process.turn.is_settled,
        "no job, commit round or answer is left",
        lambda: process.work(5),
    )
