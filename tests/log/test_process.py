"""A real log process: clean restart, kill -9 at any moment, fences, a full disk."""

from __future__ import annotations

import errno
import os
import random
import re
import resource
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.process import pack_order
from mpbroker.ipc.table import PartitionFlag
from mpbroker.ipc.topology import LOG, SUPERVISOR
from mpbroker.log.process import POINTS_EVERY_BYTES
from mpbroker.log.recovery.scheduler import RecoveryScheduler
from mpbroker.records.iterate import iterate_batches
from mpbroker.storage.directory_lock import lock_log_dirs
from mpbroker.storage.reader import Bound, PartitionReader
from tests.support.full_disk import failing_with
from tests.support.log_rig import TOPIC_ID, MakeRig, Result, Rig, ensure
from tests.support.log_writer import make_batch
from tests.support.polling import until
from tests.support.stepped_log import Broker, fence_coordinator, settle

Target = tuple[int, int, int]


def targets_of(rig: Rig, partitions: int = 1, **configs: str) -> list[Target]:
    rig.call(ensure(partitions, **configs))
    answer = rig.await_answer()
    assert isinstance(answer, calls.EnsuredTopic)
    assert [p.error for p in answer.partitions] == [0] * partitions, answer
    return [(p.slot, p.slot_generation, 5) for p in answer.partitions]


def forked(rig: Rig, **configs: str) -> Target:
    """Start a log process, and open the partition."""
    rig.fork()
    (target,) = targets_of(rig, **configs)
    return target


def appended(rig: Rig, target: Target, data: bytes) -> Result:
    rig.job([(target, data)])
    (result,) = rig.await_replies(1)[0].results
    return result


def sequences_in(rig: Rig, target: Target, name: str = "t-0") -> list[int]:
    """The base sequences of all batches up to the high watermark, in order."""
    found = rig.partition(target[0])
    bound = Bound(found.high_watermark, found.high_watermark_segment, found.high_watermark_position)
    reader = PartitionReader(rig.directory / name)
    offset, sequences = 0, []
    while (piece := reader.fetch_slice(offset, 1 << 20, bound)) is not None:
        for one in iterate_batches(reader.read(piece)):
            assert one.header.base_offset == offset
            sequences.append(one.header.base_sequence)
            offset = one.last_offset + 1
    reader.close()
    return sequences


@pytest.mark.parametrize("policy", ["group", "os"])
def test_clean_restart(rig: MakeRig, policy: str) -> None:
    r = rig(log_flush_policy=policy)
    target = forked(r)
    for i in range(10):
        r.job([(target, make_batch(producer=(3, 0, i)))])
    assert [reply.results[0].base_offset for reply in r.await_replies(10)] == list(range(10))
    before = r.partition(target[0])
    assert r.stop() == 0
    assert (r.directory / ".kafka_cleanshutdown").exists()
    marks = (r.directory / "replication-offset-checkpoint").read_text()
    assert re.fullmatch(r"0\n3\nmpbroker:crc 0 \d+\n__cluster_metadata 0 0\nt 0 10\n", marks)
    assert (r.directory / "recovery-point-offset-checkpoint").read_text().endswith("t 0 10\n")
    assert (r.directory / "t-0" / "00000000000000000010.snapshot").exists()
    r.fork()
    assert not (r.directory / ".kafka_cleanshutdown").exists()
    (target,) = targets_of(r)
    assert r.partition(target[0]) == before
    assert appended(r, target, make_batch(producer=(3, 0, 9))).base_offset == 9
    assert appended(r, target, make_batch(producer=(3, 0, 10))).base_offset == 10
    assert r.stop() == 0


def test_killed_at_any_moment_nothing_acked_is_lost_or_doubled(rig: MakeRig) -> None:
    """Check it with an idempotent producer with five requests in flight that retries unanswered ones."""
    r = rig()
    chance = random.Random(7)
    acked: dict[int, int] = {}
    flying: list[int] = []
    upcoming = 0
    rounds = 15
    target = forked(r, segment_bytes="1048576")
    for _ in range(rounds):
        deadline = time.monotonic() + chance.uniform(0.005, 0.12)
        by_request: dict[int, int] = {}
        for sequence in flying:
            by_request[r.job([(target, make_batch(producer=(3, 0, sequence), size=90_000))])] = sequence
        while True:
            while len(flying) < 5:
                flying.append(upcoming)
                by_request[r.job([(target, make_batch(producer=(3, 0, upcoming), size=90_000))])] = upcoming
                upcoming += 1
            for reply in r.await_replies(1):
                sequence = by_request.pop(reply.request)
                assert reply.results[0].error == 0
                acked[sequence] = reply.results[0].base_offset
                flying.remove(sequence)
            if time.monotonic() >= deadline:
                break
        seen = r.partition(target[0]).high_watermark
        r.kill()
        r.fork()
        assert r.partition(target[0]).high_watermark >= seen
        (target,) = targets_of(r, segment_bytes="1048576")
        assert r.partition(target[0]).high_watermark >= seen
    found = sequences_in(r, target)
    assert found == list(range(len(found)))
    assert all(found[offset] == sequence for sequence, offset in acked.items())
    assert len(acked) >= rounds
    assert len(PartitionReader(r.directory / "t-0").segments()) > 1
    assert r.stop() == 0


def test_a_dead_handlers_jobs_are_appended_before_its_fence(rig: MakeRig) -> None:
    r = rig()
    target = forked(r)
    for i in range(500):
        r.job([(target, make_batch(producer=(3, 0, i)))])
    acks = r.memory.words("fence_acks")
    first = pack_order(1, 1, r.handler)
    r.memory.words("fence_orders").store(LOG, first)
    r.bell.ring()
    r.until(SUPERVISOR, lambda: acks.load(LOG) == first)
    assert len(r.replies()) == 500
    assert r.partition(target[0]).high_watermark == 500
    r.memory.reset_rings_of(r.handler)
    r.memory.words("roles").store(r.handler, 2)
    second = pack_order(2, 0, r.handler)
    r.memory.words("fence_orders").store(LOG, second)
    r.bell.ring()
    r.until(SUPERVISOR, lambda: acks.load(LOG) == second)
    r.bind()
    assert appended(r, target, make_batch(producer=(3, 0, 500))).base_offset == 500
    assert r.stop() == 0


def test_a_dead_coordinators_topics_are_no_news_to_its_successor(rig: MakeRig) -> None:
    """Check that answers to a predecessor are not sent to its successor, which numbers its calls anew."""
    r = rig()
    process = r.in_process()
    r.call(ensure(5))
    process.work(0)
    assert process.topics.advance(), "the first of five partitions"
    fence_coordinator(r, process)
    r.call(calls.Recovered({}))
    process.work(0)
    while process.topics.advance():
        process.work(0)
    assert r.take_answer() == calls.Acknowledged()
    assert r.take_answer() is None


def test_a_full_disk_refuses_and_recovers(rig: MakeRig) -> None:
    """Check it with a file size limit as the full disk: EFBIG where a file system says ENOSPC."""
    r = rig()
    target = forked(r)
    limit = 200_000
    soft, hard = resource.prlimit(r.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(r.pid, resource.RLIMIT_FSIZE, (limit, hard))
    acked = []
    errors = 0
    for i in range(60):
        result = appended(r, target, make_batch(producer=(3, 0, len(acked)), size=9_000))
        if result.error == 0:
            assert result.base_offset == len(acked)
            acked.append(i)
        else:
            assert (result.error, result.base_offset) == (56, -1)
            errors += 1
    assert errors > 10
    (seen,) = r.memory.dir_sizes().all().values()
    assert seen.error == errno.EFBIG
    assert (r.directory / "t-0" / "00000000000000000000.log").stat().st_size <= limit
    assert r.partition(target[0]).flags == PartitionFlag.PARTITION_LIVE
    assert sequences_in(r, target) == list(range(len(acked)))
    resource.prlimit(r.pid, resource.RLIMIT_FSIZE, (soft, hard))
    assert appended(r, target, make_batch(producer=(3, 0, len(acked)), size=9_000)).error == 0
    assert sequences_in(r, target) == list(range(len(acked) + 1))
    assert r.stop() == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_a_checkpoint_that_finds_no_room_is_written_again_and_takes_nothing_offline(
    b: Broker, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    r, process = b.rig, b.process
    r.job([(b.targets[0], make_batch())])
    until(r.replies, "an answer", lambda: process.work(100))

    with monkeypatch.context() as full:
        full.setattr("mpbroker.storage.checkpoints.write_whole", failing_with(number))
        process.manager.checkpoints.write_high_watermarks()
        problems: list[Any] = []
        until(lambda: problems.extend(process.io_thread.failures()) or problems, "the I/O thread fails")
    monkeypatch.setattr(process.io_thread, "failures", lambda: [problems.pop()] if problems else [])
    process.work(0)
    assert r.partition(b.targets[0][0]).flags == PartitionFlag.PARTITION_LIVE
    process.manager.checkpoints.write_high_watermarks()
    process.io_thread.close()
    assert "t 0 1\n" in (r.directory / "replication-offset-checkpoint").read_text()


def test_producers_go_on_while_a_large_topic_is_opened(b: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that one partition is opened per round where that takes its time, and produces are answered."""
    monkeypatch.setattr(RecoveryScheduler, "stay_s", 0.0)
    r, process = b.rig, b.process
    r.call(calls.EnsureTopic("large", bytes(16 * [7]), list(range(20))))
    process.work(0)
    steps = 0
    while process.topics.advance():
        steps += 1
        r.job([(b.targets[0], make_batch())], acks=1)
        process.work(0)
        if steps < 20:
            assert r.replies()
            assert r.take_answer() is None
    opened = r.take_answer()
    assert isinstance(opened, calls.EnsuredTopic)
    assert len(opened.partitions) == 20


def test_damage_keeps_one_partition_offline(rig: MakeRig) -> None:
    # Else the journal has what is damaged, and restores it.
    r = rig(log_journal_direct_bytes=0)
    r.fork()
    first, second = targets_of(r, 2)
    for target in (first, second):
        for _ in range(3):
            r.job([(target, make_batch())])
    r.await_replies(6)
    r.kill()
    path = r.directory / "t-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    r.fork()
    r.call(ensure(2))
    answer = r.await_answer()
    assert isinstance(answer, calls.EnsuredTopic)
    assert [p.error for p in answer.partitions] == [56, 0]
    assert "is damaged at byte" in (answer.partitions[0].message or "")
    assert path.read_bytes() == data
    r.job([(first, make_batch())])
    r.job([(second, make_batch())])
    assert sorted(reply.results[0].error for reply in r.await_replies(2)) == [0, 56]
    assert r.stop() == 0


def test_a_full_disk_is_told_with_when_space_comes_back(
    rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    process = rig(log_segment_delete_delay_ms=7000).in_process()
    process._report_no_room(errno.ENOSPC)
    process._report_no_room(errno.ENOSPC)
    (said,) = [record.getMessage() for record in caplog.records if "No space left" in record.getMessage()]
    assert "delete topics" in said
    assert "gives its space back after file.delete.delay.ms (of topics that do not set it 7000 ms)" in said
    assert process._stop() == 0


def test_the_lock_outlives_the_log_process(rig: MakeRig, tmp_path: Path) -> None:
    r = rig()
    (held,) = lock_log_dirs(r.config)
    r.fork()
    os.close(held)
    with pytest.raises(Exception, match="locked by another broker"):
        lock_log_dirs(r.config)
    r.kill()
    for fd in lock_log_dirs(r.config):
        os.close(fd)
    assert tmp_path.is_dir()
    assert len(TOPIC_ID) == 16


def test_one_look_at_all_partitions_comes_between_two_rounds(
    rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = rig().in_process()
    looks: list[str] = []
    for name in ("write_high_watermarks", "write_recovery_points", "write_all_log_starts"):
        monkeypatch.setattr(process.manager.checkpoints, name, partial(looks.append, name))
    process.due |= {"high watermarks": 0, "recovery points": 0}
    for number in range(1, 4):
        process._do_housekeeping()
        assert len(looks) == number
    assert len(set(looks)) == 3
    process._do_housekeeping()
    assert len(looks) == 3
    # Many bytes bring the recovery points forward, once.
    process.context.counters.add(Counter.COUNT_BYTES_APPENDED, POINTS_EVERY_BYTES)
    for _ in range(3):
        process._do_housekeeping()
    assert looks[3:] == ["write_recovery_points", "write_all_log_starts"]


def test_a_job_of_many_batches_gives_way_to_others(rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a job of its own connection stays behind it, and that each batch is appended once."""
    monkeypatch.setattr("mpbroker.log.process.BATCHES_AT_ONCE", 4)
    b = Broker(rig(), 40)
    r, process, targets = b.rig, b.process, b.targets
    process.turn.for_tests(by_reference=True)
    large = r.job([(target, make_batch()) for target in targets], acks=1, connection=7)
    behind = r.job([(targets[39], make_batch())], acks=1, connection=7)
    seen: list[int] = []
    found: dict[int, list[int]] = {}
    others = []
    while len(found) < 2:
        others.append(r.job([(targets[0], make_batch())], acks=1, connection=8))
        process.work(0)
        for reply in r.replies():
            assert all(result.error == 0 for result in reply.results)
            seen.append(reply.request)
            if reply.request in (large, behind):
                found[reply.request] = [result.base_offset for result in reply.results]
    assert len(others) >= 3, "a share of four batches and one of eight in the first call, then one of eight"
    assert seen.index(others[0]) < seen.index(others[1]) < seen.index(large) < seen.index(behind)
    assert found == {large: [0] * 40, behind: [1]}
    settle(process)
