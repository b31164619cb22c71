"""`flush.messages` and `flush.ms`: the segment itself is synced, whatever else makes records durable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from mpbroker.log.manager.open_partitions import CHECK_EVERY_S
from tests.log.append.test_turn import ensure
from tests.support.log_node import MakeJournaled, Node
from tests.support.log_rig import MakeRig
from tests.support.log_writer import make_batch
from tests.support.stalled_flusher import Stalled
from tests.support.stepped_log import Broker, settle

pytestmark = pytest.mark.usefixtures("tidy")
Batch = Callable[..., bytes]


def high_watermark(broker: Broker) -> int:
    return broker.rig.partition(broker.targets[0][0]).high_watermark


@pytest.fixture(name="lazy")
def _lazy(rig: MakeRig) -> Iterator[Stalled]:
    """Policy os: nothing is synced but what flush.messages asks for, and that is held up."""
    made = Stalled(partial(rig, log_flush_policy="os", log_flush_interval_messages=3))
    yield made
    made.close()


@pytest.mark.parametrize("by_reference", [False, True])
def test_what_makes_a_flush_due_waits_for_it(lazy: Stalled, by_reference: bool) -> None:
    lazy.process.turn.for_tests(by_reference=by_reference)
    lazy.stall()
    for count, answered, seen in ((2, True, 2), (2, False, 2), (1, False, 2)):
        lazy.rig.job([(lazy.targets[0], make_batch(count))])
        lazy.process.work(0)
        assert bool(lazy.rig.replies()) is answered
        assert high_watermark(lazy) == seen
    lazy.release()
    assert [reply.results[0].base_offset for reply in lazy.rig.replies()] == [2, 4]
    assert high_watermark(lazy) == 5
    assert lazy.log().state.synced == 5
    lazy.stall()
    lazy.rig.job([(lazy.targets[0], make_batch(2))])
    lazy.process.work(0)
    assert high_watermark(lazy) == 7, "counted anew"


def test_acks_1_does_not_wait(lazy: Stalled) -> None:
    lazy.stall()
    lazy.rig.job([(lazy.targets[0], make_batch(4))], acks=1)
    lazy.process.work(0)
    assert lazy.rig.replies()[0].results[0].error == 0
    assert high_watermark(lazy) == 0
    lazy.release()
    assert high_watermark(lazy) == 4


def test_a_worker_dies_before_the_flush_is_over(rig: MakeRig, tmp_path: Path) -> None:
    """Check that the successor shows what was appended and recognizes the retry; nobody was answered."""
    node = Node(rig, tmp_path)
    node.boot(log_flush_policy="os", log_flush_interval_messages=3)
    (target,) = node.open(ensure(1))
    last = make_batch(2, producer=(7, 0, 0))
    assert node.produce(target, make_batch(2)) == [0]
    node.rig.job([((target.slot, target.slot_generation, 5), last)])
    node.process.work(0)
    assert not node.rig.replies()
    assert node.end_of(target) == 2
    node.succeed()
    (target,) = node.open(ensure(1))
    assert node.end_of(target) == 4
    node.rig.job([((target.slot, target.slot_generation, 5), last)])
    settle(node.process)
    (reply,) = node.rig.replies()
    assert (reply.results[0].error, reply.results[0].base_offset) == (0, 2)
    assert node.end_of(target) == 4


@pytest.mark.parametrize(("flush_messages", "synced"), [("3", 3), ("4", 0)])
def test_the_segment_is_synced_although_the_journal_has_the_records(
    journaled: MakeJournaled, flush_messages: str, synced: int
) -> None:
    n = journaled()
    n.boot()
    (target,) = n.open(ensure(1, **{"flush.messages": flush_messages}))
    n.produce(target, make_batch(3))
    assert n.end_of(target) == 3
    assert n.process.manager.logs[target.slot].state.synced == synced


@pytest.mark.parametrize("policy", ["os", "group"])
def test_flush_ms(rig: MakeRig, policy: str) -> None:
    b = Broker(rig(log_flush_policy=policy), **{"flush.ms": "1000"})
    log = b.log()
    b.produce(make_batch(2))
    b.process.manager.open_partitions.flush_due(100.0)
    for at, is_due in ((100.4, False), (100.9, False), (101.5, policy == "os")):
        b.process.manager.open_partitions.flush_due(at)
        assert log.state.unsynced is is_due, at
    b.settle()
    assert log.state.synced == 2
    assert log.state.can_rest
    b.process.manager.open_partitions.flush_due(103.0)
    assert not log.state.unsynced, "there is nothing to be synced"


def test_what_is_to_be_flushed_keeps_its_files(rig: MakeRig) -> None:
    b = Broker(rig(log_flush_policy="os"), **{"flush.ms": "60000"})
    b.produce(make_batch())
    assert not b.log().state.can_rest
    b.process.turn.flush(b.log().state)
    b.settle()
    assert b.log().state.can_rest


def test_one_that_is_paused_is_not_flushed(rig: MakeRig) -> None:
    """Check that nothing is under way in the old directory while a move is about to end."""
    b = Broker(rig(log_flush_policy="os"), **{"flush.ms": "0"})
    b.produce(make_batch())
    b.log().is_paused = True
    b.process.manager.open_partitions.flush_due(100.0)
    b.process.manager.open_partitions.flush_due(200.0)
    assert not b.log().state.unsynced
    b.log().is_paused = False
    b.process.manager.open_partitions.flush_due(300.0)
    assert b.log().state.unsynced
    b.settle()


def test_it_is_not_looked_at_all_the_time(rig: MakeRig) -> None:
    b = Broker(rig(log_flush_policy="os"), **{"flush.ms": "0"})
    b.produce(make_batch())
    b.process.manager.open_partitions.flush_due(100.0)
    b.settle()
    b.produce(make_batch())
    b.process.manager.open_partitions.flush_due(100.0 + CHECK_EVERY_S / 2)
    assert not b.log().state.unsynced
    b.process.manager.open_partitions.flush_due(100.0 + CHECK_EVERY_S)
    assert b.log().state.unsynced
    b.settle()
