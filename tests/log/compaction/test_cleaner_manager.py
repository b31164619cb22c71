"""What is to be compacted next, asked for by a cleaner that dies over it."""

from __future__ import annotations

from collections.abc import Callable, Generator

from mpbroker.ipc import calls
from mpbroker.log.process import LogProcess
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from tests.support.log_node import wait_for_io
from tests.support.log_rig import Rig
from tests.support.stepped_log import Broker

Choosing = Generator[None, None, calls.Message]


def chosen(process: LogProcess, steps: Choosing) -> calls.Message:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer: calls.Message = end.value
            return answer
        wait_for_io(process)


def test_what_a_dead_cleaner_asked_for_does_not_take_its_successors_task(rig: Callable[..., Rig]) -> None:
    """Check it with a question that the log process still answers, step by step, after the death."""
    settings = {"segment_bytes": "1048576", "cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}
    broker = Broker(rig(), **settings)
    for _ in range(4):
        broker.produce(bytes(build_batch([NewRecord(b"k", bytes(600_000), 1_700_000_000_000)])))
    process = broker.process
    of_the_dead = process.compaction.choosing()
    next(of_the_dead)
    task = chosen(process, process.compaction.choosing())
    assert isinstance(task, calls.ToClean)
    assert chosen(process, of_the_dead) == calls.NothingToClean()
    grant = process.compaction._grant
    assert grant is not None
    assert grant.ticket == task.ticket
    broker.close()
