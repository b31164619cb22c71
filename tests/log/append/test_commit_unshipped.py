"""Commit rounds that wait for the object store: nothing of them is acknowledged or seen before."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Generator, Iterator
from typing import Any

import msgspec
import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.process import ProcessContext
from mpbroker.ipc.slots import SlotKind
from mpbroker.ipc.table import PartitionFlag
from mpbroker.ipc.topology import LOG, SECOND_LOG_WORKER, processor
from mpbroker.ipc.unshipped import Place, Unsent, read_round, round_number
from mpbroker.log.append.turn_partitions import ship_log_start
from mpbroker.log.process import LogProcess
from mpbroker.storage import names
from tests.support.log_rig import TOPIC_ID, MakeRig, Result, Rig, end, ensure
from tests.support.log_writer import make_batch
from tests.support.polling import until
from tests.support.stepped_log import Broker, settle

pytestmark = pytest.mark.usefixtures("tidy")
SETTINGS = {"remote_log_storage_system_enable": True, "mpbroker_remote_acks": "ledger"}
TIMED_OUT, NOT_ENOUGH_REPLICAS, STORAGE_ERROR = 7, 19, 56


class Gated:
    """A log process whose tier is played by the test."""

    def __init__(self, rig: Rig, partitions: int = 2, **configs: str) -> None:
        self.rig = rig
        self.broker = Broker(rig, partitions, **configs)
        self.process = self.broker.process

    def produce(self, *batches: bytes, partition: int = 0, **options: Any) -> None:
        self.rig.job([(self.broker.targets[partition], batch) for batch in batches], **options)
        self.work()

    def work(self) -> None:
        """Work until a round waits for the tier, or nothing is left to do."""
        turn = self.process.turn
        until(
            lambda: turn.is_settled or turn.awaits_tier,
            "a round waits for the tier",
            lambda: self.process.work(5),
        )

    @property
    def shown(self) -> list[Unsent]:
        found = read_round(self.rig.memory.unshipped_block(0))
        assert found is not None
        return found[1]

    def ship(self) -> None:
        """Ship all there is."""
        memory = self.rig.memory
        while not self.process.turn.is_settled:
            memory.words("shipped").store(0, round_number(memory.unshipped_block(0)))
            self.process.work(0)
            self.work()

    def high_watermark(self, partition: int = 0) -> int:
        return self.rig.partition(self.broker.targets[partition][0]).high_watermark


@pytest.fixture(name="gated")
def _gated(rig: MakeRig) -> Iterator[Gated]:
    made = Gated(rig(**SETTINGS))
    yield made
    made.broker.close()


@pytest.mark.parametrize("acks", [-1, 1])
def test_nothing_is_acknowledged_or_seen_before_it_is_shipped(gated: Gated, acks: int) -> None:
    data = make_batch(3)
    gated.produce(data, acks=acks)
    for _ in range(3):
        gated.process.work(0)
    assert gated.rig.replies() == []
    assert gated.high_watermark() == 0
    (unsent,) = gated.shown
    slot, generation, _ = gated.broker.targets[0]
    assert unsent == Unsent(slot, generation, 0, Place(0, 0, 0), Place(3, 0, len(data)))
    assert (gated.rig.directory / "t-0" / names.segment_name(0)).stat().st_size == len(data)
    gated.ship()
    assert [reply.results for reply in gated.rig.replies()] == [[Result(0, 0, -1, 0)]]
    assert gated.high_watermark() == 3


def test_who_wants_no_answer_waits_for_nothing(gated: Gated) -> None:
    gated.produce(make_batch(1))
    gated.rig.job([(gated.broker.targets[0], make_batch(1))], acks=0)
    gated.process.work(0)
    assert [reply.kind for reply in gated.rig.replies()] == [SlotKind.NOOP]
    gated.ship()


def test_who_is_not_held_back_by_answers_is_refused_in_the_end(
    gated: Gated, caplog: pytest.LogCaptureFixture
) -> None:
    """Check that a long outage does not make the next round grow without bound."""
    caplog.set_level(logging.INFO)
    data = make_batch(10)
    gated.process.turn.for_tests(unshipped_bytes=3 * len(data))
    gated.produce(data)
    directory = gated.rig.directory / "t-0"

    def kinds(count: int) -> list[SlotKind]:
        for _ in range(count):
            gated.produce(data, acks=0)
            gated.process.work(0)
        gated.process._do_housekeeping()
        return [reply.kind for reply in gated.rig.replies()]

    assert kinds(5) == [SlotKind.NOOP] * 3 + [SlotKind.CLOSE] * 2
    assert (directory / names.segment_name(0)).stat().st_size == 4 * len(data)
    gated.produce(data)
    gated.process.work(0)
    assert [reply.results[0].error for reply in gated.rig.replies()] == [NOT_ENOUGH_REPLICAS]
    assert gated.process.context.counters.get(Counter.COUNT_UNSHIPPED_REFUSED) == 3
    gated.ship()
    gated.rig.replies()
    assert kinds(1) == [SlotKind.NOOP]
    gated.ship()
    assert gated.high_watermark() == 50
    told = [record.getMessage() for record in caplog.records if "produce requests" in record.getMessage()]
    assert [" refused" in one for one in told] == [True, False]


def test_rounds_are_shipped_one_after_the_other(gated: Gated) -> None:
    """What is appended while a round waits is in the next one, with the first one's end as its begin."""
    first, second = make_batch(2), make_batch(4)
    gated.produce(first)
    gated.produce(second)
    gated.produce(first, partition=1)
    before = gated.shown
    gated.rig.memory.words("shipped").store(0, round_number(gated.rig.memory.unshipped_block(0)))
    gated.process.work(0)
    gated.work()
    assert gated.high_watermark() == 2
    assert len(gated.rig.replies()) == 1
    one, other = sorted(gated.shown)
    assert one.begin == before[0].end
    assert one.end == Place(6, 0, len(first) + len(second))
    assert (other.begin, other.end) == (Place(0, 0, 0), Place(2, 0, len(first)))
    gated.ship()
    assert len(gated.rig.replies()) == 2


def test_a_round_goes_over_segments(rig: MakeRig) -> None:
    gated = Gated(rig(**SETTINGS), segment_bytes=str(1 << 20))
    data = make_batch(3, size=200_000)
    gated.produce(data)
    gated.ship()
    gated.produce(data, data)
    (unsent,) = gated.shown
    assert (unsent.begin, unsent.end) == (Place(3, 0, len(data)), Place(9, 6, len(data)))
    gated.ship()
    assert gated.high_watermark() == 9
    gated.broker.close()


def test_a_produce_waits_as_long_as_it_says(gated: Gated) -> None:
    gated.produce(make_batch(2), acks=1, timeout_ms=1)
    until(lambda: bool(gated.rig.from_log.waiting()), "it has timed out", lambda: gated.process.work(5))
    assert [reply.results[0].error for reply in gated.rig.replies()] == [TIMED_OUT]
    gated.ship()
    assert gated.high_watermark() == 2


def test_a_duplicate_waits_as_the_original_does(gated: Gated) -> None:
    data = make_batch(2, producer=(9, 0, 0))
    gated.produce(data)
    gated.produce(data, acks=1)
    assert gated.rig.replies() == []
    gated.ship()
    assert [reply.results[0].base_offset for reply in gated.rig.replies()] == [0, 0]


def test_a_log_directory_that_fails_is_not_shipped(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    # It is the only one: the broker would stop.
    monkeypatch.setattr(gated.process.manager, "dir_failed", lambda *_: None)
    gated.produce(make_batch(2))
    gated.produce(make_batch(2))
    gated.process.turn.storage_failed(0, 5)
    gated.ship()
    assert [reply.results[0].error for reply in gated.rig.replies()] == [STORAGE_ERROR] * 2
    assert gated.high_watermark() == 0
    assert gated.rig.partition(gated.broker.targets[0][0]).flags & PartitionFlag.PARTITION_OFFLINE


def test_a_successor_shows_what_its_predecessor_has_not_shipped(rig: MakeRig) -> None:
    made = rig(**SETTINGS)
    gated = Gated(made)
    gated.produce(make_batch(3))
    gated.ship()
    made.replies()
    gated.produce(make_batch(2))
    number = round_number(made.memory.unshipped_block(0))
    end(gated.process)
    made.processes.remove(gated.process)
    made.memory.reset_rings_of(LOG)
    made.bind()
    process = LogProcess(ProcessContext(LOG, made.memory, made.config, incarnation=2))
    made.processes.append(process)
    process.start()
    assert round_number(made.memory.unshipped_block(0)) == 0
    # The tier had it in its hands.
    made.memory.words("shipped").store(0, number)
    made.call(ensure(2))
    until(lambda: process.turn.awaits_tier, "the rest waits for the tier", lambda: _step(process))
    assert gated.high_watermark() == 3
    assert made.partition(gated.broker.targets[0][0]).log_end_offset == 5
    (unsent,) = gated.shown
    assert (unsent.begin.offset, unsent.end.offset) == (3, 5)
    made.memory.words("shipped").store(0, round_number(made.memory.unshipped_block(0)))
    settle(process)
    assert gated.high_watermark() == 5
    process.io_thread.close()


def _step(process: LogProcess) -> None:
    process.work(5)
    process.topics.advance()


def test_marks_of_the_last_run_stay_until_the_first_cut(gated: Gated) -> None:
    """Check that files at rest do not show more after a start that has brought nothing into the store."""
    gated.process.manager.checkpoints.write_high_watermarks()
    gated.process.manager.close_cleanly()
    assert not (gated.rig.directory / names.HIGH_WATERMARKS).exists()


def test_what_is_not_shipped_at_a_stop_is_not_seen_at_rest(gated: Gated) -> None:
    gated.rig.memory.words("first_cut").store(0, 1)
    gated.produce(make_batch(3))
    gated.ship()
    gated.produce(make_batch(2))
    gated.process.manager.close_cleanly()
    assert "t 0 3\n" in (gated.rig.directory / names.HIGH_WATERMARKS).read_text()
    assert "t 0 5\n" in (gated.rig.directory / names.RECOVERY_POINTS).read_text()


def test_tiering_that_is_switched_off_moves_no_log_start_before_it_is_shipped(rig: MakeRig) -> None:
    gated = Gated(rig(**SETTINGS), 1, segment_bytes=str(1 << 20), remote_storage_enable="true")
    for _ in range(3):
        gated.produce(make_batch(3, size=200_000))
    gated.ship()
    log, process = gated.broker.log(), gated.process
    # The store has the first segment, and local retention has removed it.
    log.sealed = log.sealed[1:]
    assert log.local_start == 3
    process.due["retention"] = math.inf
    process._do_housekeeping()
    topic = ensure(1, segment_bytes=str(1 << 20), remote_log_delete_on_disable="true")
    process.manager.ensure(msgspec.structs.replace(topic, config_version=log.state.config_version + 1))
    assert log.log_start == 0
    # Retention that is under way may have missed it: the next one comes soon.
    process._do_housekeeping()
    process.due["retention"] = time.monotonic() + 1000
    process._do_housekeeping()
    until(lambda: process.turn.awaits_tier, "it is to be shipped", lambda: _go_on(process))
    assert ([one.log_start for one in gated.shown], log.log_start) == ([3], 0)
    gated.rig.memory.words("shipped").store(0, round_number(gated.rig.memory.unshipped_block(0)))
    until(lambda: log.log_start == 3, "the store has it", lambda: _go_on(process))
    gated.broker.close()


def _go_on(process: LogProcess) -> None:
    process.work(5)
    process.advance_tasks()


def test_no_log_start_moves_before_it_is_shipped(gated: Gated) -> None:
    for _ in range(2):
        gated.produce(make_batch(3))
    gated.ship()
    slot, generation, _ = gated.broker.targets[0]
    steps = gated.process.deletion._shipped([(gated.broker.log(), 3)])
    next(steps)
    gated.work()
    assert [(one.slot, one.generation, one.log_start, one.end.offset) for one in gated.shown] == [
        (slot, generation, 3, 6)
    ]
    next(steps)
    gated.ship()
    with pytest.raises(StopIteration) as ended:
        next(steps)
    assert ended.value.value == {gated.broker.log(): 3}
    assert gated.broker.log().log_start == 0


def test_who_asks_for_a_log_start_that_is_on_its_way_waits_too(gated: Gated) -> None:
    """An answer to the second one, or retention, must not be ahead of the store because of the first one."""
    gated.produce(make_batch(3))
    gated.ship()
    slot, generation, _ = gated.broker.targets[0]
    wanted = calls.DeleteRecords([calls.DeleteBefore(slot, generation, 3)])
    both = [gated.process.deletion.deleting(wanted) for _ in range(2)]
    for _ in range(3):
        gated.work()
        assert [next(one) for one in both] == [None, None]
    assert gated.broker.log().log_start == 0
    gated.ship()
    for steps in both:
        answer = until(lambda steps=steps: _end_of(steps), "it is answered")  # type: ignore[misc]
        assert answer == calls.DeletedRecords([calls.DeletedBefore(0, 3)])
    assert gated.broker.log().log_start == 3


def test_no_log_start_is_shipped_of_a_partition_that_changes_its_directory(gated: Gated) -> None:
    gated.produce(make_batch(3))
    gated.ship()
    log = gated.broker.log()
    log.is_paused = True
    steps = gated.process.deletion._shipped([(log, 3)])
    next(steps)
    assert not log.state.unsynced
    log.is_paused = False
    next(steps)
    assert log.state.unsynced
    gated.ship()


def test_no_log_start_is_shipped_of_a_partition_that_is_removed_meanwhile(gated: Gated) -> None:
    """A commit round would keep a pointer to what is freed."""
    gated.produce(make_batch(3))
    gated.ship()
    log = gated.broker.log()
    log.is_paused = True
    steps = gated.process.deletion._shipped([(log, 3)])
    next(steps)
    gated.rig.call(calls.RemoveTopic("t", TOPIC_ID))
    gated.broker.settle()
    log.is_paused = False
    with pytest.raises(StopIteration) as ended:
        next(steps)
    assert ended.value.value == {}
    assert not log.state.unsynced


def _end_of(steps: Generator[None, None, calls.DeletedRecords]) -> calls.DeletedRecords | None:
    try:
        next(steps)
    except StopIteration as ended:
        answer: calls.DeletedRecords = ended.value
        return answer
    return None


def test_a_log_start_that_is_shipped_after_a_roll_names_the_new_segment(gated: Gated) -> None:
    """What a restore applies it to may have no other segment: the one before can be deleted."""
    gated.produce(make_batch(3))
    gated.ship()
    ship_log_start(gated.process.turn, gated.broker.log().state, 3)
    # The disk has the round.
    gated.process.work(0)
    assert gated.process.deletion._roll(gated.broker.log())
    gated.work()
    assert [(one.begin, one.end) for one in gated.shown] == [(Place(3, 3, 0), Place(3, 3, 0))]
    gated.ship()


@pytest.mark.parametrize("is_dead", [True, False])
def test_a_fence_waits_for_no_tier_that_may_be_dead_too(gated: Gated, is_dead: bool) -> None:
    turn, handler = gated.process.turn, gated.rig.handler
    gated.produce(make_batch(3), back=not is_dead)
    tails = turn.tails()
    assert turn.owes(handler)
    assert not turn.has_answered(tails)
    turn.give_up_waiting(processor(7), is_dead=True)
    assert turn.owes(handler)
    turn.give_up_waiting(handler if is_dead else SECOND_LOG_WORKER, is_dead)
    gated.process.work(0)
    assert not turn.owes(handler)
    assert turn.has_answered(tails)
    assert [reply.results[0].error for reply in gated.rig.replies()] == [TIMED_OUT]
    gated.ship()
    assert gated.high_watermark() == 3
