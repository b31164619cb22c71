"""Jobs that wait while a partition moves: what comes behind them on their connections waits with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mpbroker.log.append.relocation import resume_jobs
from mpbroker.log.partition.partition_log import PartitionLog
from tests.support.log_writer import make_batch
from tests.support.stalled_flusher import MakeRig
from tests.support.stepped_log import Broker

pytestmark = pytest.mark.usefixtures("tidy")
CONNECTION, OTHER = 5, 6


@pytest.fixture(name="two")
def _two(rig: MakeRig) -> Iterator[Broker]:
    """Two partitions; the test pauses them as a move does in its last step."""
    made = Broker(rig(log_flush_policy="os"), 2)
    yield made
    made.close()


def pause(made: Broker, number: int, is_paused: bool) -> None:
    log: PartitionLog = made.log(number)
    log.is_paused = is_paused
    if is_paused:
        log.state.pause()
    else:
        resume_jobs(made.process.turn)


def answered(made: Broker) -> list[int]:
    """Work until nothing more is answered; return the requests that were, in their order."""
    found: list[int] = []
    for _ in range(8):
        made.process.work(0)
        found += [reply.request for reply in made.rig.replies()]
    return found


def end(made: Broker, number: int) -> int:
    return made.rig.partition(made.targets[number][0]).log_end_offset


def test_a_later_job_of_the_connection_does_not_overtake(two: Broker) -> None:
    first, second = two.targets
    pause(two, 0, True)
    both = two.rig.job([(first, make_batch(1)), (second, make_batch(1))], connection=CONNECTION)
    behind = two.rig.job([(second, make_batch(1))], connection=CONNECTION)
    beside = two.rig.job([(second, make_batch(1))], connection=OTHER)
    assert answered(two) == [beside]
    assert end(two, 1) == 1, "nothing of the paused job's connection is appended"
    pause(two, 0, False)
    assert answered(two) == [both, behind]
    assert (end(two, 0), end(two, 1)) == (1, 3)


def test_the_order_holds_if_a_job_has_to_wait_again(two: Broker) -> None:
    first, second = two.targets
    pause(two, 0, True)
    pause(two, 1, True)
    jobs = [
        two.rig.job([(first, make_batch(1)), (second, make_batch(1))], connection=CONNECTION),
        two.rig.job([(first, make_batch(1))], connection=CONNECTION),
        two.rig.job([(second, make_batch(1))], connection=CONNECTION),
    ]
    assert answered(two) == []
    pause(two, 0, False)
    assert answered(two) == []
    assert (end(two, 0), end(two, 1)) == (1, 0), "only the first batch of the first job"
    pause(two, 1, False)
    assert answered(two) == jobs
    assert (end(two, 0), end(two, 1)) == (2, 2)


def test_the_order_holds_if_more_may_go_on_in_the_middle(two: Broker) -> None:
    """Let the second partition go on when the first job was retried and the second was not yet."""
    first, second = two.targets
    pause(two, 0, True)
    pause(two, 1, True)
    jobs = [
        two.rig.job([(first, make_batch(1)), (second, make_batch(1))], connection=CONNECTION),
        two.rig.job([(second, make_batch(1))], connection=CONNECTION),
    ]
    assert answered(two) == []
    pause(two, 0, False)
    for _ in range(20):
        if end(two, 0):
            break
        two.process.work(0)
    log: PartitionLog = two.process.manager.logs[second[0]]
    log.is_paused = False
    resume_jobs(two.process.turn)
    assert answered(two) == jobs
