"""The commit journal: what rounds write to it, what a start makes of it, and what happens when it is full."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
from pathlib import Path

import msgspec
import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.process import FatalError
from mpbroker.log.append.turn_journals import release_journals
from mpbroker.log.directories import journal_file, journal_replay, log_directory
from mpbroker.log.directories.journal_file import MAKING_SUFFIX
from mpbroker.storage import journal
from mpbroker.storage.checkpoints import write_epochs
from mpbroker.storage.journal import JournalDamaged, JournalFile
from mpbroker.storage.names import CLEAN_SHUTDOWN
from tests.support.full_disk import failing_with
from tests.support.log_node import (
    OTHER_ID,
    SEGMENT,
    STORAGE_ERROR,
    Journaled,
    MakeJournaled,
    extents,
    fill,
    wait_for_io,
)
from tests.support.log_rig import TOPIC_ID, MakeRig, ensure
from tests.support.log_writer import make_batch
from tests.support.polling import PATIENCE_S
from tests.support.stalled_flusher import Stalled
from tests.support.stepped_log import settle

SMALL = 128 << 10


@pytest.fixture
def n(journaled: MakeJournaled) -> Journaled:
    """A broker that has started, and whose journal is in use."""
    made = journaled()
    made.boot()
    return made


def test_what_segments_lost_comes_back(n: Journaled) -> None:
    fill(n)
    had = n.power_cut(3)
    assert all(had)
    n.boot()
    targets = n.open(ensure(3))
    assert [t.error for t in targets] == [0, 0, 0]
    assert [n.end_of(t) for t in targets] == [10, 10, 10]
    assert [n.segment(number).read_bytes() for number in range(3)] == had
    assert n.ends() == (0, 0), "what is in the segments again needs no journal"
    assert n.produce(targets[0], make_batch()) == [0]


def test_a_round_is_one_record_whatever_its_partitions(n: Journaled) -> None:
    targets = n.open(ensure(5))
    for target in targets:
        n.produce(target, make_batch())
    before = n.process.turn.commit_rounds
    n.rig.job([((t.slot, t.slot_generation, 5), make_batch(2)) for t in targets])
    settle(n.process)
    assert n.process.turn.commit_rounds == before + 1
    n.crash()
    last = extents(n.path)[-1]
    assert sorted(e.partition for e in last) == [0, 1, 2, 3, 4]
    for e in last:
        assert (e.topic_id, e.segment_base, e.end_offset) == (ensure().topic_id, 0, 3)
        data = n.segment(e.partition).read_bytes()
        assert data[e.position :] == bytes(e.data)


def test_a_torn_record_ends_the_replay(n: Journaled) -> None:
    """Check that all records before it are replayed, and nothing of it: it was never acknowledged."""
    fill(n, partitions=1)
    _, head = n.ends()
    n.power_cut()
    with n.path.open("r+b") as file:
        file.seek(journal.RING_AT + head - journal.BLOCK_BYTES + 300)
        file.write(b"torn")
    n.boot()
    (target,) = n.open(ensure(1))
    assert n.end_of(target) == 6


def test_a_replay_that_is_cut_short_is_done_again(n: Journaled, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(n)
    had = n.power_cut(3)

    class Killed(JournalFile):
        def reset(self) -> None:
            raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(log_directory, "JournalFile", Killed)
        with pytest.raises(InterruptedError):
            log_directory.LogDirectory(0, n.dirs[0], group=True, failed=False).take_over(print)
    assert [n.segment(number).read_bytes() for number in range(3)] == had
    os.truncate(n.segment(1), 77)
    n.boot()
    assert [n.end_of(t) for t in n.open(ensure(3))] == [10, 10, 10]


def test_what_belongs_to_no_segment_is_left_out(n: Journaled) -> None:
    """Check deleted partitions, recreated ones of the same name, and segments that retention deleted."""
    fill(n)
    n.power_cut(3)
    n.segment(0).parent.rename(n.dirs[0] / f"t-0.{'0' * 32}-delete")
    (n.dirs[0] / "t-1" / "partition.metadata").write_text("version: 0\ntopic_id: AQIDBAUGBwgJCgsMDQ4PEA")
    n.segment(2).unlink()
    n.boot()
    assert n.segment(1).read_bytes() == b""
    assert not n.segment(2).exists()
    assert not n.segment(0).exists()
    found = n.open(calls.EnsureTopic("t", OTHER_ID, [1], {}, 5))
    assert [p.error for p in found] == [0]


def test_what_another_broker_wrote_since_stays(n: Journaled) -> None:
    fill(n, partitions=1)
    n.power_cut()
    write_epochs(n.dirs[0] / "t-0", [(0, 0), (1, 0)])
    n.boot()
    assert n.segment().read_bytes() == b""


def test_the_ring_goes_round(journaled: MakeJournaled) -> None:
    """Write many times its size in small rounds.

    Segments are synced behind the ring, and its last lap is restored.
    """
    n = journaled()
    n.boot(log_journal_bytes=SMALL)
    targets = n.open(ensure(3))
    written = 0
    for i in range(600):
        for target in targets:
            n.rig.job([((target.slot, target.slot_generation, 5), make_batch(1, size=i % 700))])
        settle(n.process)
        replies = n.rig.replies()
        assert [r.results[0].error for r in replies] == [0] * 3
        written += sum(len(make_batch(1, size=i % 700)) for _ in targets)
        start, head = n.ends()
        assert head - start <= SMALL
    assert n.ends()[0] > SMALL, "it was released more than once"
    synced = {number: n.process.manager.logs[t.slot].state.synced for number, t in enumerate(targets)}
    assert all(300 < offset <= 600 for offset in synced.values())
    had = [n.segment(number).read_bytes() for number in range(3)]
    assert written == sum(map(len, had)) > 4 * SMALL
    n.process.manager.checkpoints.write_high_watermarks()
    wait_for_io(n.process)
    n.crash()
    first_kept = {e.partition: e.position for record in reversed(extents(n.path)) for e in record}
    for number, position in first_kept.items():
        os.truncate(n.segment(number), position)
    n.boot(log_journal_bytes=SMALL)
    assert [n.end_of(t) for t in n.open(ensure(3))] == [600, 600, 600]
    assert [n.segment(number).read_bytes() for number in range(3)] == had


def test_much_for_one_file_goes_there_alone(journaled: MakeJournaled) -> None:
    n = journaled()
    n.boot(log_journal_direct_bytes=10_000)
    (target,) = n.open(ensure(1))
    n.produce(target, make_batch(1, size=50))
    _, small = n.ends()
    assert small > 0
    n.produce(target, make_batch(1, size=20_000))
    assert n.ends()[1] == small
    assert n.process.manager.logs[target.slot].state.synced == 2


def test_a_ring_that_is_full_holds_nobody_up(journaled: MakeJournaled) -> None:
    """Check that a round without room (a record may take a quarter) is synced in its segment."""
    n = journaled()
    n.boot(log_journal_bytes=SMALL)
    targets = n.open(ensure(6))
    for size in (30_000, 12_000, 9_000):
        n.rig.job([((t.slot, t.slot_generation, 5), make_batch(1, size=size)) for t in targets])
        settle(n.process)
        (reply,) = n.rig.replies()
        assert [r.error for r in reply.results] == [0] * 6
    synced = [n.process.manager.logs[t.slot].state.synced for t in targets]
    assert sum(synced) >= 6
    n.crash()
    n.boot(log_journal_bytes=SMALL)
    assert [n.end_of(t) for t in n.open(ensure(6))] == [3] * 6


def test_release_syncs_what_the_journal_has(n: Journaled) -> None:
    fill(n)
    slots = [t.slot for t in n.open(ensure(3))]
    states = [n.process.manager.logs[slot].state for slot in slots]
    assert [s.synced for s in states] == [0, 0, 0]
    release_journals(n.process.turn)
    settle(n.process)
    assert [s.synced for s in states] == [10, 10, 10]
    assert n.process.manager.logs[slots[0]].recovery_point < 10
    n.checkpoint()
    assert "t 0 10" in n.offsets("recovery-point-offset-checkpoint")


def test_a_roll_while_the_journal_is_behind(journaled: MakeJournaled) -> None:
    n = journaled()
    n.boot(log_journal_bytes=8 << 20)
    (target,) = n.open(ensure(1, segment_bytes="1048576"))
    for _ in range(25):
        assert n.produce(target, make_batch(1, size=100_000)) == [0]
    state = n.process.manager.logs[target.slot].state
    assert state.segment_base > 0
    settle(n.process)
    n.crash()
    last = n.segment(base=state.segment_base)
    had = last.read_bytes()
    os.truncate(last, 0)
    n.boot(log_journal_bytes=8 << 20)
    (target,) = n.open(ensure(1, segment_bytes="1048576"))
    assert n.end_of(target) == 25
    assert last.read_bytes() == had


def test_a_successor_goes_on_with_the_journal(n: Journaled) -> None:
    """Check it after the death of the process alone.

    The segments are whole in the page cache, but may still be lost from there.
    """
    fill(n)
    _, head = n.ends()
    for _ in range(2):
        n.succeed()
        n.process.manager.journals.use()
        assert n.ends() == (0, head)
        fill(n, rounds=1)
        _, head = n.ends()
    assert len(extents(n.path)) == 12 + 3 + 3
    had = n.power_cut(3)
    n.boot()
    assert [n.end_of(t) for t in n.open(ensure(3))] == [12, 12, 12]
    assert [n.segment(number).read_bytes() for number in range(3)] == had


def test_what_a_predecessor_wrote_is_kept_until_its_segments_are_synced(
    journaled: MakeJournaled, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = journaled()
    n.boot(log_journal_bytes=SMALL)
    fill(n)
    may_sync = threading.Event()
    monkeypatch.setattr(journal_file, "sync_named", lambda *_: may_sync.wait(PATIENCE_S))
    n.succeed()
    targets = n.open(ensure(3))
    for _ in range(300):
        assert n.produce(targets[0], make_batch(1, size=700)) == [0]
    assert n.ends()[0] == 0, "however full the ring is"
    may_sync.set()
    wait_for_io(n.process)
    n.process.manager.journals.use()
    for _ in range(300):
        assert n.produce(targets[0], make_batch(1, size=700)) == [0]
    assert n.ends()[0] > 0


def test_what_rolled_is_synced_before_the_journal_is_released(rig: MakeRig) -> None:
    """Check that the new segment's records stay in the journal until a round has synced the old segment."""
    b = Stalled(rig)
    wait_for_io(b.process)
    b.process.manager.journals.use()
    log = b.log()
    log.apply_config(msgspec.structs.replace(log.config, segment_bytes=2_000))
    b.produce(make_batch(size=800))
    assert log.state.synced == 0
    b.stall()
    b.rig.job([(b.targets[0], make_batch(size=100))])
    b.process.work(0)
    b.rig.job([(b.targets[0], make_batch(size=1_500))])
    release_journals(b.process.turn)
    b.process.work(0)
    assert log.state.segment_base == 2
    for _ in range(20):
        b.process.work(5)
    assert log.state.synced == 0
    b.release()
    release_journals(b.process.turn)
    settle(b.process)
    assert log.state.synced == 3


def test_a_roll_with_nothing_behind_it(rig: MakeRig) -> None:
    """Check that a new segment that retention rolled without an append is synced with the old one."""
    b = Stalled(rig)
    wait_for_io(b.process)
    b.process.manager.journals.use()
    log = b.log()
    b.produce(make_batch())
    b.stall()
    b.rig.job([(b.targets[0], make_batch())])
    b.process.work(0)
    b.rig.job([(b.targets[0], make_batch())])
    b.process.work(0)
    for fd in log.roll():
        b.process.turn.retire(fd, log.state.log_dir)
    b.release()
    assert [reply.results[0].error for reply in b.rig.replies()] == [0, 0]
    assert log.state.high_watermark == 3
    b.produce(make_batch())
    records = extents(b.rig.directory / journal.NAME)
    named = [
        (e.segment_base, len(e.data) > 0) for record in records for e in record if e.topic_id == TOPIC_ID
    ]
    assert named == [(0, True), (0, True), (3, True)]


def test_a_clean_stop_leaves_an_empty_journal(n: Journaled) -> None:
    fill(n)
    n.stop()
    assert extents(n.path) == []
    assert (n.dirs[0] / CLEAN_SHUTDOWN).exists()


def test_after_somebody_elses_clean_stop_the_journal_does_not_count(n: Journaled) -> None:
    fill(n, partitions=1)
    n.crash()
    assert extents(n.path)
    os.truncate(n.segment(), 0)
    (n.dirs[0] / CLEAN_SHUTDOWN).touch()
    n.boot()
    assert n.segment().read_bytes() == b""
    assert extents(n.path) == []


@pytest.mark.parametrize("after", ["os", "group"])
def test_the_policy_may_change(n: Journaled, after: str) -> None:
    fill(n)
    had = n.power_cut(3)
    n.boot(log_flush_policy=after)
    assert [n.end_of(t) for t in n.open(ensure(3))] == [10, 10, 10]
    assert [n.segment(number).read_bytes() for number in range(3)] == had
    assert n.path.exists() == (after == "group")
    fill(n, rounds=1)
    n.boot()
    assert [n.end_of(t) for t in n.open(ensure(3))] == [11, 11, 11]
    assert n.path.exists()


def test_another_size_makes_another_journal(journaled: MakeJournaled) -> None:
    n = journaled()
    n.boot(log_journal_bytes=SMALL)
    fill(n)
    had = n.power_cut(3)
    n.boot(log_journal_bytes=3 * SMALL)
    assert n.path.stat().st_size == 3 * SMALL
    assert [n.end_of(t) for t in n.open(ensure(3))] == [10, 10, 10]
    assert [n.segment(number).read_bytes() for number in range(3)] == had
    fill(n, rounds=1)
    assert n.ends()[1] > 0


def test_a_journal_that_cannot_be_written_takes_the_directory_offline(journaled: MakeJournaled) -> None:
    n = journaled(2)
    n.boot()
    targets = n.open(ensure(3))
    for target in targets:
        assert n.produce(target, make_batch()) == [0]
    by_dir = {n.rig.partition(t.slot).log_dir: t for t in targets}
    held = n.process.manager.dirs[1].journal.file
    assert held is not None
    nowhere = os.open("/dev/full", os.O_RDONLY)
    os.dup2(nowhere, held.write_fd)
    os.close(nowhere)
    assert n.produce(by_dir[1], make_batch()) == [STORAGE_ERROR]
    assert n.produce(by_dir[0], make_batch()) == [0]
    assert n.process.manager.dirs[1].failed


def test_no_room_for_a_journal_is_said_and_serves(
    journaled: MakeJournaled, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    reserve = os.posix_fallocate

    def full(fd: int, offset: int, count: int) -> None:
        if journal.NAME + MAKING_SUFFIX in str(Path(f"/proc/self/fd/{fd}").readlink()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(fd, offset, count)

    n = journaled()
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        n.boot()
        for _ in range(3):
            # Somebody looks from time to time.
            n.checkpoint()
    assert caplog.text.count("log.journal.bytes: there is no room") == 1
    fill(n)
    assert sorted(p.name for p in n.dirs[0].iterdir() if p.name.startswith(journal.NAME)) == []
    # There is room now, and somebody looks.
    n.checkpoint()
    n.process.manager.journals.use()
    fill(n, rounds=1)
    assert n.ends()[1] > 0
    assert caplog.text.count("there is room for its commit journal now") == 1


@pytest.mark.parametrize("at", ["pwrite", "fsync"])
def test_no_room_to_restore_is_an_error_and_loses_nothing(
    journaled: MakeJournaled, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Check that the next start replays again; some file systems report a full disk only at the sync."""

    n = journaled()
    n.boot()
    fill(n)
    n.power_cut(3)
    with monkeypatch.context() as patch:
        patch.setattr(journal_replay.os, at, failing_with(errno.ENOSPC))
        with pytest.raises(FatalError, match=r"no room.*Free some space"):
            n.boot()
    n.boot()
    assert [n.end_of(t) for t in n.open(ensure(3))] == [10, 10, 10]


def test_a_damaged_journal_is_not_taken_for_an_empty_one(n: Journaled) -> None:
    fill(n)
    n.crash()
    kept = n.path.read_bytes()
    with n.path.open("r+b") as file:
        file.write(bytes(journal.RING_AT))
    with pytest.raises(JournalDamaged):
        JournalFile(n.path)
    with pytest.raises(FatalError, match="may be nowhere else"):
        n.boot()
    n.path.write_bytes(kept)
    n.boot()
    assert [n.end_of(t) for t in n.open(ensure(3))] == [10, 10, 10]


def test_a_torn_head_leaves_the_other(n: Journaled) -> None:
    n.crash()
    found = JournalFile(n.path)
    found.reset()
    version, nonce = found.version, found.nonce
    found.close()
    with n.path.open("r+b") as file:
        file.seek((version & 1) * 4096 + 10)
        file.write(b"torn")
    older = JournalFile(n.path)
    assert older.version == version - 1
    assert older.nonce == nonce
    older.close()


def test_an_unfinished_journal_is_made_anew(n: Journaled) -> None:
    n.crash()
    unfinished = n.path.with_name(n.path.name + ".tmp")
    shutil.move(n.path, unfinished)
    os.truncate(unfinished, 5000)
    n.boot()
    assert not unfinished.exists()
    fill(n)
    assert n.ends()[1] > 0


def test_segments_above_the_journals_view(journaled: MakeJournaled) -> None:
    """Check that bytes that were synced in the segment itself, behind those of the journal, are kept."""
    n = journaled()
    n.boot(log_journal_direct_bytes=10_000)
    (target,) = n.open(ensure(1))
    n.produce(target, make_batch())
    n.produce(target, make_batch(1, size=20_000))
    n.crash()
    had = (n.dirs[0] / "t-0" / SEGMENT).read_bytes()
    with n.segment().open("r+b") as file:
        file.write(bytes(70))
    n.boot()
    assert n.segment().read_bytes() == had
    assert n.end_of(n.open(ensure(1))[0]) == 2
