"""Moves, rests, rolls, deletions and kills in any order: what was acknowledged is there, once."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

from mpbroker.inspection.segment import inspect
from mpbroker.ipc import calls
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.log.process import LogProcess
from mpbroker.records.validation import at_once
from mpbroker.storage.names import segment_name
from mpbroker.storage.segments import segments_of
from tests.support.forms import each
from tests.support.log_moves import order, turn_until
from tests.support.log_node import Node, wait_for_io
from tests.support.log_rig import TOPIC_ID, MakeRig
from tests.support.log_writer import make_batch
from tests.support.stepped_log import settle

PARTITIONS = 4
SIZES = (60, 2_500, 6_000, 11_000)
STEPS = 120


class Meeting(Node):
    """Four partitions of which two may be open, in two log directories."""

    def __init__(self, rig: MakeRig, tmp_path: Path, seed: int = 0) -> None:
        super().__init__(rig, tmp_path, dirs=2)
        self.random = random.Random(seed)
        self.lives, self.topic_id = 0, TOPIC_ID
        # Of each partition the offset behind what was acknowledged, and the one it begins with.
        self.ends = [0] * PARTITIONS
        self.starts = [0] * PARTITIONS

    def begin(self) -> None:
        self.boot(log_journal_direct_bytes=16_000, log_journal_bytes=1 << 17)
        self.reopen()

    def reopen(self) -> None:
        self.targets = self.open(calls.EnsureTopic("t", self.topic_id, list(range(PARTITIONS)), {}, 5))
        assert [one.error for one in self.targets] == [0] * PARTITIONS
        self.now.manager.open_partitions.most = 2
        wait_for_io(self.now)
        self.now.manager.journals.use()
        self.now.replica_mover.resume(["t"])

    @property
    def now(self) -> LogProcess:
        return self.process

    def log(self, number: int) -> PartitionLog:
        return self.now.manager.logs[self.targets[number].slot]

    def one(self) -> int:
        return self.random.randrange(PARTITIONS)

    # ---- what may happen ----

    def append(self) -> None:
        """Answered at once or, while its partition is being put in place, soon."""
        number, size = self.one(), self.random.choice(SIZES)
        for _ in range(self.random.choice([1, 1, 6])):
            target = self.targets[number]
            self.rig.job([((target.slot, target.slot_generation, 5), make_batch(1, size=size))])
            turn_until(self.now, lambda: self.rig.from_log.waiting() > 0)
            (reply,) = self.rig.replies()
            assert (reply.results[0].error, reply.results[0].base_offset) == (0, self.ends[number])
            self.ends[number] += 1

    def step(self) -> None:
        for _ in range(self.random.randrange(1, 6)):
            self.now.work(1)
            self.now.advance_tasks()
            self.now._do_housekeeping()

    def move(self) -> None:
        number = self.one()
        assert order(self.now, self.random.randrange(2), partition=number, topic_id=self.topic_id) == 0

    def arrive(self) -> None:
        turn_until(self.now, lambda: self.now.replica_mover.is_at_rest)

    def roll_soon(self) -> None:
        log = self.log(self.one())
        count = self.random.choice([20_000, 1 << 30])
        log.apply_config(msgspec.structs.replace(log.config, segment_bytes=count))

    def release(self) -> None:
        self.now.manager.checkpoints.write_high_watermarks()
        self.now.manager.checkpoints.write_recovery_points()
        self.now.manager.checkpoints.write_all_log_starts()

    def delete_records(self) -> None:
        number = self.one()
        target = self.targets[number]
        offset = self.random.randint(self.starts[number], self.ends[number])
        wanted = calls.DeleteBefore(target.slot, target.slot_generation, offset)
        self.now._tasks.append((None, self.now.deletion.deleting(calls.DeleteRecords([wanted]))))
        turn_until(self.now, lambda: not self.now._tasks)
        self.starts[number] = max(offset, self.starts[number])
        assert self.log(number).log_start == self.starts[number]

    def let_rest(self) -> None:
        log = self.log(self.one())
        if log.state.can_rest and not log.is_paused:
            log.close_files()

    def make_anew(self) -> None:
        """Delete the topic and create it again under the same name."""
        at_once(self.now.manager.removing("t", self.topic_id, self.now.replica_mover.topic_goes()))
        self.lives += 1
        self.topic_id = bytes([self.lives] * 16)
        self.ends, self.starts = [0] * PARTITIONS, [0] * PARTITIONS
        self.reopen()

    def kill_process(self) -> None:
        self.succeed()
        self.reopen()

    def kill_all(self) -> None:
        self.begin()

    def stop_cleanly(self) -> None:
        self.stop()
        self.begin()

    # ---- what is to be true ----

    def check(self) -> None:
        for number in range(PARTITIONS):
            assert self.end_of(self.targets[number]) == self.ends[number]
            state = self.log(number).state
            path = self.log(number).directory / segment_name(state.segment_base)
            assert path.stat().st_size == state.size
            assert self.log(number).directory.parent == self.dirs[state.log_dir]

    def check_all_rest(self) -> None:
        """Check that nothing keeps a partition open for ever, and that every record is where it was."""
        self.arrive()
        settle(self.now)
        self.now.manager.journals.release()
        for number in range(PARTITIONS):
            log = self.log(number)
            turn_until(self.now, lambda log=log: log.state.can_rest)  # type: ignore[misc]
            log.close_files()
            self.check_records(log, number)

    def check_records(self, log: PartitionLog, number: int) -> None:
        bases = segments_of(log.directory)
        expected = bases[0]
        for base in bases:
            found = inspect(log.directory / segment_name(base), is_last=base == bases[-1])
            assert found.findings == []
            assert (found.base, found.next_offset >= expected) == (expected, True)
            expected = found.next_offset
        assert bases[0] <= self.starts[number] <= self.ends[number] == max(expected, bases[-1])


OFTEN = ["append"] * 12 + ["step"] * 8 + ["move"] * 4 + ["arrive"]
NOW_AND_THEN = ["roll_soon", "roll_soon", "release", "release", "delete_records", "let_rest"]
SELDOM = ["kill_process", "kill_all", "stop_cleanly", "make_anew"]


@each("seed", short=range(4), long=range(100))
def test_in_any_order(rig: MakeRig, tmp_path: Path, seed: int) -> None:
    meeting = Meeting(rig, tmp_path, seed)
    try:
        meeting.begin()
        for _ in range(STEPS):
            what = meeting.random.choice(OFTEN + NOW_AND_THEN * 2 + SELDOM)
            getattr(meeting, what)()
            meeting.check()
        meeting.check_all_rest()
    finally:
        meeting.crash()
