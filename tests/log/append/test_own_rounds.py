"""Commit rounds that the log worker does itself: the quick ones that somebody waits for, and no others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from mpbroker.ipc.process import FatalError
from mpbroker.log.append.turn_journals import journal_ends
from tests.support.log_node import STORAGE_ERROR
from tests.support.log_rig import Reply
from tests.support.polling import until
from tests.support.stalled_flusher import MakeRig, Stalled

QUICK, SLOW = 100_000, 10_000_000
PARTITIONS = 18
Batch = Callable[..., bytearray]


@pytest.fixture
def stalled(rig: MakeRig, batch: Batch) -> Iterator[Stalled]:
    """A broker whose flusher does nothing: what is answered was done without it."""
    made = Stalled(rig, PARTITIONS)
    until(lambda: made.process.io_thread.is_idle, "the journal is there")
    made.process.manager.journals.use()
    for partition in range(PARTITIONS):
        made.produce(batch(), partition=partition)
    made.process.turn.for_tests(average_ns=QUICK)
    made.stall()
    yield made
    made.close()


def replies_of_a_turn(made: Stalled) -> list[Reply]:
    made.process.work(0)
    return list(made.rig.replies())


def test_a_produce_is_answered_in_the_turn_that_appends_it(stalled: Stalled, batch: Batch) -> None:
    turn = stalled.process.turn
    before, ends = turn.commit_rounds, journal_ends(turn, 0)
    for number in range(1, 4):
        stalled.rig.job([(stalled.targets[0], batch())])
        (reply,) = replies_of_a_turn(stalled)
        assert (reply.results[0].error, reply.results[0].base_offset) == (0, number)
        assert turn.commit_rounds == before + number
        assert stalled.rig.partition(stalled.targets[0][0]).high_watermark == number + 1
    assert journal_ends(turn, 0)[1] > ends[1]


def test_all_that_waits_shares_the_round(stalled: Stalled, batch: Batch) -> None:
    before = stalled.process.turn.commit_rounds
    for partition in range(8):
        stalled.rig.job([(stalled.targets[partition], batch())])
    assert len(replies_of_a_turn(stalled)) == 8
    assert stalled.process.turn.commit_rounds == before + 1


@pytest.mark.parametrize("why", ["slow", "large", "many", "rolled"])
def test_other_rounds_are_the_flushers(stalled: Stalled, batch: Batch, why: str) -> None:
    """Check that what takes longer holds up neither appends nor answers."""
    turn = stalled.process.turn
    targets, size = stalled.targets[:1], 100
    if why == "slow":
        turn.for_tests(average_ns=SLOW)
    elif why == "large":
        size = 40_000
    elif why == "many":
        targets = stalled.targets
    else:
        stalled.process.manager.roll(stalled.process.manager.logs[stalled.targets[1][0]])
    stalled.rig.job([(target, batch(size=size)) for target in targets])
    assert replies_of_a_turn(stalled) == []
    stalled.rig.job([(stalled.targets[2], batch())], acks=1)
    (reply,) = replies_of_a_turn(stalled)
    assert reply.results[0].error == 0
    stalled.release()
    stalled.stall()
    assert [reply.results[0].error for reply in stalled.rig.replies()] == [0]


def test_what_nobody_waits_for_is_the_flushers(stalled: Stalled, batch: Batch) -> None:
    before = stalled.process.turn.commit_rounds
    stalled.rig.job([(stalled.targets[0], batch())], acks=1)
    (reply,) = replies_of_a_turn(stalled)
    assert reply.results[0].error == 0
    assert stalled.process.turn.commit_rounds == before
    stalled.release()
    stalled.stall()
    assert stalled.process.turn.commit_rounds == before + 1


def test_a_disk_has_to_show_that_it_is_quick(rig: MakeRig, batch: Batch) -> None:
    """Check that a broker begins with the flusher, and goes on by itself when rounds have been quick."""
    made = Stalled(rig)
    until(lambda: made.process.io_thread.is_idle, "the journal is there")
    made.process.manager.journals.use()
    made.produce(batch())
    made.stall()
    made.rig.job([(made.targets[0], batch())])
    assert replies_of_a_turn(made) == []
    made.release()
    assert len(list(made.rig.replies())) == 1
    made.close()


def test_a_journal_that_fails_takes_the_directory_offline(stalled: Stalled, batch: Batch) -> None:
    held = stalled.process.manager.dirs[0].journal.file
    assert held is not None
    nowhere = os.open("/dev/full", os.O_RDONLY)
    os.dup2(nowhere, held.write_fd)
    os.close(nowhere)
    stalled.rig.job([(stalled.targets[0], batch())])
    # It is the directory of the metadata.
    with pytest.raises(FatalError):
        stalled.process.work(0)
    (reply,) = stalled.rig.replies()
    assert reply.results[0].error == STORAGE_ERROR
    assert stalled.process.turn.failed_dirs == 1
