"""What is to be compacted next, asked for by a cleaner that dies over it."""

from __future__ import annotations

from collections.abc import Generator

from mpbroker.ipc import calls
from mpbroker.log.process import LogProcess
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from tests.support.log_node import wait_for_io
from tests.support.log_rig import MakeRig
from tests.support.stepped_log import Broker

SETTINGS = {"segment_bytes": "1048576", "cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}
Choosing = Generator[None, None, calls.Message]


def chosen(process: LogProcess, steps: Choosing) -> calls.Message:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer: calls.Message = end.value
            return answer
        wait_for_io(process)


def produce(broker: Broker, count: int) -> None:
    """Produce records of one key, of which no two fit into a segment."""
    for _ in range(count):
        broker.produce(bytes(build_batch([NewRecord(b"k", bytes(600_000), 1_700_000_000_000)])))


def test_what_a_dead_cleaner_asked_for_does_not_take_its_successors_task(rig: MakeRig) -> None:
    """Check it with a question that the log process still answers, step by step, after the death."""
    broker = Broker(rig(), **SETTINGS)
    produce(broker, 4)
    process = broker.process
    of_the_dead = process.compaction.choosing()
    next(of_the_dead)
    task = chosen(process, process.compaction.choosing())
    assert isinstance(task, calls.ToClean)
    assert chosen(process, of_the_dead) == calls.NothingToClean()
    grant = process.compaction._grant
    assert grant is not None
    assert grant.ticket == task.ticket


def test_a_log_start_in_the_active_segment_leaves_nothing_to_clean(rig: MakeRig) -> None:
    """Check DeleteRecords in the only segment, and that the partition is compacted when there are more."""
    broker = Broker(rig(), **SETTINGS | {"cleanup_policy": "compact,delete"})
    produce(broker, 1)
    process, (slot, generation, _) = broker.process, broker.targets[0]
    chosen(process, process.deletion.deleting(calls.DeleteRecords([calls.DeleteBefore(slot, generation, 1)])))
    broker.produce(bytes(build_batch([NewRecord(b"k", b"1", 1_700_000_000_000)])))
    assert process.manager.logs[slot].log_start == 1
    assert chosen(process, process.compaction.choosing()) == calls.NothingToClean()
    produce(broker, 1)
    task = chosen(process, process.compaction.choosing())
    assert isinstance(task, calls.ToClean)
    assert (task.bases, task.first_dirty, task.end) == ([0], 1, 2)
