"""Commit rounds that the flusher goes on with by itself: in order, whole, and none behind one that failed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.process import FatalError
from mpbroker.log.append.turn_journals import journal_ends, release_journals
from mpbroker.log.append.turn_partitions import detach
from mpbroker.storage import journal
from mpbroker.storage.journal import JournalFile
from tests.log.append.test_journal_ring import SMALL
from tests.support.forms import each
from tests.support.full_disk import files_take
from tests.support.log_node import extents, records, wait_for_io
from tests.support.log_rig import TOPIC_ID, MakeRig
from tests.support.log_writer import make_batch
from tests.support.polling import until
from tests.support.stalled_flusher import Stalled, until_asleep
from tests.support.stepped_log import T0, settle

pytestmark = pytest.mark.usefixtures("tidy")
Batch = Callable[..., bytes]
PARTITIONS = 3


class Held(Stalled):
    """A broker whose flusher is held up within a round; its journal is in use."""

    def __init__(self, rig: MakeRig, *, offered_bytes: int | None = 0) -> None:
        super().__init__(rig, PARTITIONS)
        self.process.turn.for_tests(offered_bytes=offered_bytes)
        wait_for_io(self.process)
        self.process.manager.journals.use()

    def append(self, data: bytes, partition: int = 0) -> None:
        """Append to a round that is asked for or offered, without waiting for it."""
        self.rig.job([(self.targets[partition], data)])
        self.process.work(0)

    def let_flusher_go(self) -> None:
        """Let the flusher do all that it was given; nobody takes the results in."""
        waits_at = Path(f"/proc/self/fdinfo/{self.thread_waits_at}")
        os.eventfd_write(self.thread_waits_at, 1)
        until(lambda: "eventfd-count:                0" in waits_at.read_text(), "the flusher is woken")
        until_asleep()
        os.close(self.thread_waits_at)
        self.thread_waits_at = -1

    def errors(self) -> list[int]:
        return [reply.results[0].error for reply in self.rig.replies()]

    @property
    def journal(self) -> Path:
        return self.rig.directory / journal.NAME

    def journaled(self) -> list[list[tuple[int, int]]]:
        """(partition, offset behind it) of each extent of the topic, by record."""
        found = [
            [(e.partition, e.end_offset) for e in r if e.topic_id == TOPIC_ID] for r in extents(self.journal)
        ]
        return [record for record in found if record]

    def head(self) -> tuple[int, int]:
        """(version, start) of the one that counts."""
        with closing(JournalFile(self.journal)) as found:
            return found.version, found.start

    def fd_of(self, path: Path, flags: int) -> int:
        """Ours that is open so."""
        for entry in Path("/proc/self/fd").iterdir():
            fd = int(entry.name)
            try:
                if os.path.samestat(os.fstat(fd), path.stat()) and os.get_blocking(fd):
                    opened = int(Path(f"/proc/self/fdinfo/{fd}").read_text().split("flags:")[1].split()[0], 8)
                    if opened & flags == flags:
                        return fd
            except OSError:
                continue
        raise AssertionError(f"{path} is not open")


@pytest.fixture(name="held")
def _held(rig: MakeRig) -> Iterator[Held]:
    made = Held(rig)
    yield made
    made.close()


def test_the_flusher_goes_on_without_being_asked(held: Held) -> None:
    before = held.process.turn.commit_rounds
    held.stall()
    held.append(make_batch(1))
    held.append(make_batch(2))
    assert held.process.turn.commit_rounds == before
    held.let_flusher_go()
    held.process.work(0)
    assert held.process.turn.commit_rounds == before + 2
    assert held.errors() == [0, 0]
    assert held.log().state.high_watermark == 3
    assert held.journaled() == [[(0, 1)], [(0, 3)]]
    assert [record.is_first for record in records(held.journal)] == [True, False]


def test_little_waits_until_it_is_asked_for(rig: MakeRig) -> None:
    held = Held(rig, offered_bytes=None)
    held.stall()
    held.append(make_batch(1))
    held.append(make_batch(2))
    held.let_flusher_go()
    held.process.work(0)
    assert held.errors() == [0]
    settle(held.process)
    assert held.errors() == [0]
    held.stall()
    held.append(make_batch(1))
    held.append(make_batch(1, size=33_000))
    held.let_flusher_go()
    held.process.work(0)
    assert held.errors() == [0, 0], "that is much"


def test_what_comes_meanwhile_joins_what_is_offered(held: Held) -> None:
    before = held.process.turn.commit_rounds
    held.stall()
    held.append(make_batch(1))
    for partition in (0, 1, 0, 2):
        held.append(make_batch(2), partition)
    held.let_flusher_go()
    held.process.work(0)
    assert held.process.turn.commit_rounds == before + 2
    assert held.errors() == [0] * 5
    assert held.journaled() == [[(0, 1)], [(0, 5), (1, 2), (2, 2)]]


def test_what_was_taken_is_not_added_to(held: Held) -> None:
    """Check that what is appended after the flusher took the offer goes into the next round."""
    held.stall()
    held.append(make_batch(1))
    held.append(make_batch(1))
    held.let_flusher_go()
    coming = held.process.turn.coming_commit_round()
    assert coming == held.process.turn.commit_rounds + 3
    held.stall()
    held.append(make_batch(1))
    assert held.errors() == [0, 0]
    assert held.log().state.high_watermark == 2
    held.release()
    assert held.errors() == [0]
    assert held.process.turn.commit_rounds == coming


def test_nothing_is_taken_behind_a_round_that_failed(held: Held) -> None:
    """Check it: the record would say that the round before it was finished."""
    held.append(make_batch(1), 1)
    settle(held.process)
    assert held.errors() == [0]
    segment = held.log(1).directory / "00000000000000000000.log"
    held.stall()
    held.rig.job([(held.targets[0], make_batch(1))])
    held.process.turn.flush(held.log(1).state)
    held.process.work(0)
    fd = held.fd_of(segment, os.O_RDWR)
    real, (pipe, other) = os.dup(fd), os.pipe()
    os.dup2(pipe, fd)
    held.append(make_batch(1), 2)
    held.let_flusher_go()
    os.dup2(real, fd)
    for one in (real, pipe, other):
        os.close(one)
    with pytest.raises(FatalError, match="Invalid argument"):
        settle(held.process)
    assert 0 not in held.errors()
    assert held.journaled() == [[(1, 1)], [(0, 1)]]
    assert held.log(2).state.high_watermark == 0


def test_behind_a_round_that_found_no_room_the_next_is_put_together_anew(held: Held) -> None:
    """Check that the next record goes where that of the round without room was to be."""
    held.append(make_batch(1))
    settle(held.process)
    assert held.errors() == [0]
    _, head = journal_ends(held.process.turn, 0)
    held.stall()
    held.append(make_batch(2), 1)
    held.append(make_batch(3), 2)
    with files_take(4096):
        held.let_flusher_go()
    assert held.process.turn.commit_rounds == 1
    settle(held.process)
    assert held.errors() == [0, 0]
    assert held.process.turn.commit_rounds == 3
    assert held.log(1).state.synced == 2
    assert held.journaled() == [[(0, 1)], [(2, 3)]]
    assert journal_ends(held.process.turn, 0)[1] > head


def test_behind_a_head_that_is_in_flight_none_is_written(rig: MakeRig) -> None:
    """Check that space that becomes free meanwhile is for a later head, in the other place."""
    held = Held(partial(rig, log_journal_bytes=SMALL))
    for number in (0, 0, 1, 1):
        held.append(make_batch(1, size=10_000), number)
        settle(held.process)
    held.process.turn.flush(held.log(0).state)
    settle(held.process)
    version, _ = held.head()
    held.stall()
    held.append(make_batch(1), 2)
    release_journals(held.process.turn)
    until(lambda: held.log(1).state.synced == 2, "the rest is free, too", lambda: held.process.work(5))
    held.append(make_batch(1), 0)
    _, end = journal_ends(held.process.turn, 0)
    held.let_flusher_go()
    assert held.journaled()[-2:] == [[(2, 1)], [(0, 3)]]
    assert held.head() == (version + 1, end // 2)
    settle(held.process)
    held.append(make_batch(1), 1)
    settle(held.process)
    assert held.head() == (version + 2, end)
    assert held.errors() == [0] * 7


def test_a_roll_behind_what_is_offered(held: Held) -> None:
    """Check that the old segment, which has a part in both rounds, is closed behind the one that syncs it."""
    log = held.log()
    segment = log.directory / "00000000000000000000.log"
    held.stall()
    held.append(make_batch(1))
    held.append(make_batch(1))
    held.process.manager.roll(log)
    held.append(make_batch(1))
    assert held.fd_of(segment, os.O_RDWR) >= 0
    held.let_flusher_go()
    settle(held.process)
    assert held.errors() == [0, 0, 0]
    with pytest.raises(AssertionError, match="is not open"):
        held.fd_of(segment, os.O_RDWR)
    assert held.process.manager.checkpoints.recovery_point(log) == 2
    assert held.journaled()[-1] == [(0, 3)]


def test_each_round_syncs_what_rolled_before_it(held: Held) -> None:
    """Check that of two rounds with rolled segments, a failure in the second concerns the second only."""
    segments = [held.log(number).directory / "00000000000000000000.log" for number in (0, 1)]
    for number in (0, 1):
        held.append(make_batch(1), number)
        settle(held.process)
    assert held.errors() == [0, 0]
    held.process.manager.roll(held.log(0))
    held.stall()
    held.process.work(0)
    bad = held.fd_of(segments[1], os.O_RDWR)
    held.process.manager.roll(held.log(1))
    held.append(make_batch(1), 2)
    real, (pipe, other) = os.dup(bad), os.pipe()
    os.dup2(pipe, bad)
    held.let_flusher_go()
    with pytest.raises(FatalError, match="Invalid argument"):
        settle(held.process)
    assert held.process.turn.commit_rounds == 4, "the one in front of it went well"
    for one in (real, pipe, other):
        os.close(one)


def test_a_partition_goes_away_while_its_round_is_offered(held: Held) -> None:
    held.stall()
    held.append(make_batch(1))
    held.append(make_batch(1), 1)
    held.append(make_batch(1), 2)
    held.rig.call(calls.RemoveTopic("t", TOPIC_ID))
    held.process.work(0)
    while held.process.topics.advance():
        pass
    held.release()
    assert set(held.errors()) <= {0, 3}
    assert held.process.turn.is_settled


def test_a_partition_goes_away_when_its_round_was_taken(held: Held) -> None:
    """Check it before the log worker has looked: the round counts as under way."""
    held.stall()
    held.append(make_batch(1))
    held.append(make_batch(1), 1)
    held.append(make_batch(1), 2)
    held.let_flusher_go()
    detach(held.process.turn, held.log(1).state)
    settle(held.process)
    assert held.errors() == [0, 0, 0]
    assert held.journaled() == [[(0, 1)], [(1, 1), (2, 1)]]
    assert held.log(2).state.high_watermark == 1


def test_what_is_retired_behind_what_is_offered_waits_for_the_next(held: Held) -> None:
    """Check that it is closed behind the round that syncs it, and not before."""
    segment = held.log(1).directory / "00000000000000000000.log"
    held.stall()
    held.append(make_batch(1))
    held.append(make_batch(1), 2)
    held.process.turn.retire(os.open(segment, os.O_RDWR | os.O_APPEND), 0)
    before = held.process.turn.commit_rounds
    held.let_flusher_go()
    assert held.fd_of(segment, os.O_APPEND) >= 0
    settle(held.process)
    assert held.process.turn.commit_rounds == before + 3
    assert held.errors() == [0, 0]
    with pytest.raises(AssertionError, match="is not open"):
        held.fd_of(segment, os.O_APPEND)


@pytest.mark.parametrize("offered_bytes", [None, 0])
def test_what_is_visible_stays_so(rig: MakeRig, offered_bytes: int | None) -> None:
    """Without group commit: a round covers less than what is visible when it is done, and what came last
    waits for a flush of its own.
    """
    held = Held(
        partial(rig, log_flush_policy="os", log_flush_interval_messages=12), offered_bytes=offered_bytes
    )
    held.append(make_batch(8))
    held.stall()
    held.process.turn.flush(held.log().state)
    held.process.work(0)
    for count in (2, 3):
        held.append(make_batch(count))
        assert held.log().state.high_watermark == 10
    held.let_flusher_go()
    held.process.work(0)
    assert held.log().state.high_watermark == (10 if offered_bytes is None else 13)
    settle(held.process)
    assert held.log().state.high_watermark == 13
    assert held.errors() == [0, 0, 0]


@each("seed", short=range(6), long=range(200))
def test_whatever_is_answered_is_in_the_journal(rig: MakeRig, seed: int) -> None:
    """Check it while the flusher takes rounds as fast as it can, and more is appended all the time."""
    chance = random.Random(seed)
    b = Held(rig)
    ends: dict[int, int] = {}
    sent: list[tuple[int, int]] = []
    for _ in range(150):
        partition = chance.randrange(PARTITIONS)
        count = chance.randint(1, 3)
        ends[partition] = ends.get(partition, 0) + count
        sent.append((partition, ends[partition]))
        b.rig.job([(b.targets[partition], make_batch(count, size=chance.choice((20, 500))))])
        b.process.work(chance.choice((0, 0, 1)))
        replies = b.rig.replies()
        if replies:
            durable: dict[int, int] = {}
            for record in b.journaled():
                durable |= dict(record)
            for reply in replies:
                partition, end = sent.pop(0)
                assert reply.results[0].error == 0
                assert durable[partition] >= end
    settle(b.process)
    assert len(b.rig.replies()) == len(sent)
    marks = [b.log(partition).state.high_watermark for partition in range(PARTITIONS)]
    assert marks == [ends.get(partition, 0) for partition in range(PARTITIONS)]


def test_a_round_does_not_take_the_marks_back_to_a_segment_that_went(rig: MakeRig) -> None:
    """Check that the marks stay in the new segment if all others expire during the round."""
    held = Held(partial(rig, log_retention_ms=1))
    held.append(make_batch(2))
    settle(held.process)
    held.stall()
    held.process.turn.flush(held.log().state)
    held.process.work(0)
    held.process.turn.for_tests(fixed_now_ms=2 * T0)
    for _ in held.process.deletion.deleting_expired():
        held.process.work(0)
    held.release()
    found = held.rig.partition(held.targets[0][0])
    assert found.log_start_offset == 2
    assert (found.high_watermark, found.high_watermark_segment, found.high_watermark_position) == (2, 2, 0)
    assert (found.last_stable_offset, found.last_stable_segment, found.last_stable_position) == (2, 2, 0)
