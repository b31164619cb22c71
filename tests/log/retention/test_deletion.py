"""Segments and records that go: where the log starts then, which files are left, and what readers see."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.process import FatalError, ProcessContext, pack_order
from mpbroker.ipc.slots import SlotKind, pack_call
from mpbroker.ipc.table import PartitionFlag
from mpbroker.ipc.topology import LOG, SUPERVISOR
from mpbroker.log.io.io_thread import THREAD_NAME
from mpbroker.log.process import LogProcess
from mpbroker.records.iterate import iterate_batches
from mpbroker.storage.checkpoints import read_epochs, read_offsets
from mpbroker.storage.names import LOG_STARTS
from mpbroker.storage.reader import Bound, OffsetOutOfRange, PartitionReader, SegmentGone
from tests.log.test_process import appended, forked, targets_of
from tests.support.full_disk import failing_with
from tests.support.log_rig import MakeRig, Rig, ensure
from tests.support.log_writer import T0, make_batch
from tests.support.polling import PATIENCE_S, until
from tests.support.stepped_log import Broker

RECORD_BYTES = 300_000
PER_SEGMENT = 3
SMALL = {"segment_bytes": "1048576"}
DAY_MS = 86_400_000


def fill(broker: Broker, count: int, timestamp: int = T0) -> None:
    for i in range(count):
        (result,) = broker.produce(bytes(make_batch(size=RECORD_BYTES, timestamp=timestamp + i)))
        assert result.error == 0


def look(broker: Broker, now_ms: int = T0) -> None:
    """Look once at all partitions, and wait for what that gave to the I/O thread."""
    process = broker.process
    process.turn.for_tests(fixed_now_ms=now_ms)
    for _ in process.deletion.deleting_expired():
        broker.settle()
    drain(process)
    broker.settle()


def drain(process: LogProcess) -> None:
    done = threading.Event()
    process.io_thread.submit(done.set, 0)
    assert done.wait(PATIENCE_S)


def names_in(broker: Broker, pattern: str = "*") -> set[str]:
    return {path.name for path in (broker.rig.directory / "t-0").glob(pattern)}


def bases(broker: Broker) -> list[int]:
    return sorted(int(name[:20]) for name in names_in(broker, "*.log"))


def start_and_end(broker: Broker) -> tuple[int, int]:
    found = broker.rig.partition(broker.targets[0][0])
    assert found.high_watermark == found.log_end_offset
    return found.log_start_offset, found.high_watermark


def bound_of(rig: Rig, slot: int) -> Bound:
    found = rig.partition(slot)
    return Bound(found.high_watermark, found.high_watermark_segment, found.high_watermark_position)


def offsets_from(rig: Rig, slot: int, offset: int) -> list[int]:
    """The base offsets of all batches of one record from there to the high watermark."""
    reader, found = PartitionReader(rig.directory / "t-0"), []
    while (piece := reader.fetch_slice(offset, 1 << 30, bound_of(rig, slot))) is not None:
        for one in iterate_batches(reader.read(piece)):
            found.append(one.header.base_offset)
            offset = one.last_offset + 1
    reader.close()
    return found


def delete_before(broker: Broker, *offsets: int) -> list[tuple[int, int]]:
    """(error, log start) for each, of the same partition."""
    slot, generation, _ = broker.targets[0]
    broker.rig.call(calls.DeleteRecords([calls.DeleteBefore(slot, generation, one) for one in offsets]))
    process = broker.process
    process.work(0)

    def step() -> None:
        process.advance_tasks()
        process.work(5)

    until(lambda: broker.rig.answer_ring.waiting() > 0, "records are deleted", step)
    answer = broker.rig.take_answer()
    assert isinstance(answer, calls.DeletedRecords)
    return [(one.error, one.log_start) for one in answer.partitions]


def test_segments_that_are_too_old_go(rig: MakeRig, caplog) -> None:
    b = Broker(rig(), retention_ms="1000", file_delete_delay_ms="0", **SMALL)
    fill(b, 2 * PER_SEGMENT, T0 - DAY_MS)
    fill(b, PER_SEGMENT + 1)
    assert bases(b) == [0, 3, 6, 9]
    with caplog.at_level(logging.INFO, "mpbroker"):
        look(b)
    assert start_and_end(b) == (6, 10)
    assert bases(b) == [6, 9]
    said = [record.getMessage() for record in caplog.records if "deleting the segment" in record.getMessage()]
    assert len(said) == 2
    for text in ("00000000000000000000.log", "offsets 0 to 2", "bytes", "retention.ms=1000"):
        assert text in said[0]
    assert read_offsets(b.rig.directory / LOG_STARTS) == {("t", 0): 6}
    assert read_epochs(b.rig.directory / "t-0") == [(0, 6)]
    assert offsets_from(b.rig, b.targets[0][0], 6) == [6, 7, 8, 9]
    with pytest.raises(OffsetOutOfRange):
        offsets_from(b.rig, b.targets[0][0], 5)
    look(b)
    assert start_and_end(b) == (6, 10)


def test_files_keep_their_bytes_until_the_delay_is_over(rig: MakeRig) -> None:
    b = Broker(rig(), retention_ms="1000", file_delete_delay_ms="60000", **SMALL)
    fill(b, PER_SEGMENT, T0 - DAY_MS)
    fill(b, 1)
    before = (b.rig.directory / "t-0" / f"{0:020d}.log").read_bytes()
    look(b)
    deleted = names_in(b, "*.deleted")
    assert deleted == {f"{0:020d}.{kind}.deleted" for kind in ("log", "index", "timeindex")}
    assert (b.rig.directory / "t-0" / f"{0:020d}.log.deleted").read_bytes() == before
    now = b.process.manager.removal.deletions.next_due_s
    b.process.manager.removal.deletions.begin_due(now - 0.001)
    drain(b.process)
    assert names_in(b, "*.deleted") == deleted
    b.process.manager.removal.deletions.begin_due(now)
    drain(b.process)
    assert not names_in(b, "*.deleted")


@pytest.mark.parametrize("policy", ["group", "os"])
def test_an_active_segment_that_is_too_old_is_rolled_and_goes(rig: MakeRig, policy) -> None:
    b = Broker(rig(log_flush_policy=policy), retention_ms="1000", file_delete_delay_ms="0")
    fill(b, 2, T0 - DAY_MS)
    look(b)
    assert start_and_end(b) == (2, 2)
    assert bases(b) == [2]
    assert bound_of(b.rig, b.targets[0][0]) == Bound(2, 2, 0)
    look(b)
    assert bases(b) == [2]
    fill(b, 2)
    assert start_and_end(b) == (2, 4)
    assert offsets_from(b.rig, b.targets[0][0], 2) == [2, 3]


def test_without_timestamps_the_last_write_counts(rig: MakeRig) -> None:
    b = Broker(rig(), retention_ms="1000", **SMALL)
    for _ in range(2 * PER_SEGMENT):
        (result,) = b.produce(bytes(make_batch(size=RECORD_BYTES, timestamp=-1)))
        assert result.error == 0
    written_ms = (b.rig.directory / "t-0" / f"{0:020d}.log").stat().st_mtime_ns // 1_000_000
    look(b, written_ms + 900)
    assert start_and_end(b)[0] == 0
    look(b, written_ms + 20_000)
    assert start_and_end(b) == (6, 6)


def test_by_size_also_what_was_there_before_the_start(rig: MakeRig) -> None:
    limits = {"retention_bytes": str(7 * RECORD_BYTES), "file_delete_delay_ms": "0", **SMALL}
    b = Broker(rig(), **limits)
    fill(b, 5 * PER_SEGMENT)
    b.process.manager.close_cleanly()
    b.process.turn.close()
    again = Broker(b.rig, **limits)
    look(again)
    assert start_and_end(again) == (6, 15)
    assert bases(again) == [6, 9, 12]


def test_metadata_is_never_deleted(rig: MakeRig) -> None:
    b = Broker(rig(log_retention_ms=1), retention_ms="-1")
    metadata = (0, 1, 0)
    b.rig.job([(metadata, bytes(make_batch(timestamp=1)))])
    b.settle()
    look(b)
    assert b.rig.partition(0).log_start_offset == 0
    assert b.rig.partition(0).high_watermark == 1


def test_a_full_disk_does_not_keep_segments(rig: MakeRig, monkeypatch) -> None:
    """Check that a checkpoint that cannot be written does not stop deletion, which makes room for it."""
    b = Broker(rig(), retention_ms="1000", file_delete_delay_ms="0", **SMALL)
    fill(b, PER_SEGMENT, T0 - DAY_MS)
    fill(b, 1)

    with monkeypatch.context() as patched:
        patched.setattr("mpbroker.log.directories.log_directory.write_offsets", failing_with(errno.ENOSPC))
        look(b)
    assert start_and_end(b) == (3, 4)
    assert bases(b) == [3]
    assert b.rig.partition(b.targets[0][0]).flags == PartitionFlag.PARTITION_LIVE
    b.process.manager.checkpoints.write_recovery_points()
    b.process.manager.checkpoints.write_all_log_starts()
    drain(b.process)
    assert read_offsets(b.rig.directory / LOG_STARTS) == {("t", 0): 3}


def test_what_is_rolled_needs_room_and_stays_without(rig: MakeRig, monkeypatch) -> None:
    b = Broker(rig(), retention_ms="1000", file_delete_delay_ms="0", **SMALL)
    fill(b, PER_SEGMENT + 1, T0 - DAY_MS)

    with monkeypatch.context() as patched:
        patched.setattr("mpbroker.log.partition.partition_log.open_files", failing_with(errno.ENOSPC))
        look(b)
    assert start_and_end(b) == (3, 4)
    look(b)
    assert start_and_end(b) == (4, 4)


# ---- records ----


def test_records_are_deleted_within_a_segment(rig: MakeRig) -> None:
    b = Broker(rig(), **SMALL)
    fill(b, 2 * PER_SEGMENT)
    assert delete_before(b, 1) == [(0, 1)]
    assert start_and_end(b) == (1, 6)
    assert bases(b) == [0, 3]
    assert read_offsets(b.rig.directory / LOG_STARTS) == {("t", 0): 1}
    # Never back, never beyond what is durable.
    assert delete_before(b, 0, 1, 7, -2) == [(0, 1), (0, 1), (1, -1), (1, -1)]
    assert delete_before(b, 4) == [(0, 4)]
    drain(b.process)
    assert bases(b) == [3]
    assert delete_before(b, -1) == [(0, 6)]
    assert start_and_end(b) == (6, 6)
    assert bases(b) == [3]
    fill(b, 1)
    assert offsets_from(b.rig, b.targets[0][0], 6) == [6]


def test_a_partition_that_is_named_twice_keeps_what_is_not_deleted(rig: MakeRig) -> None:
    b = Broker(rig(), file_delete_delay_ms="0", **SMALL)
    fill(b, 4 * PER_SEGMENT)
    assert delete_before(b, PER_SEGMENT, PER_SEGMENT + 1) == [(0, PER_SEGMENT), (0, PER_SEGMENT + 1)]
    drain(b.process)
    (log,) = [one for one in b.process.manager.logs.values() if one.name == "t-0"]
    assert [segment.base for segment in log.sealed] == [3, 6]
    assert bases(b) == [3, 6, 9]


def test_the_log_start_outlives_a_restart(rig: MakeRig) -> None:
    b = Broker(rig(), **SMALL)
    fill(b, 2 * PER_SEGMENT)
    assert delete_before(b, 4) == [(0, 4)]
    b.process.manager.close_cleanly()
    b.process.turn.close()
    again = Broker(b.rig, **SMALL)
    assert start_and_end(again) == (4, 6)
    assert offsets_from(again.rig, again.targets[0][0], 4) == [4, 5]


def test_a_deletion_that_is_not_on_disk_is_not_acknowledged(b: Broker, monkeypatch) -> None:
    fill(b, 2)

    with monkeypatch.context() as patched:
        patched.setattr("mpbroker.log.directories.log_directory.write_offsets", failing_with(errno.ENOSPC))
        assert delete_before(b, 1) == [(56, -1)]
    b.settle()
    assert delete_before(b, 1) == [(0, 1)]


def test_a_later_deletion_does_not_keep_the_first_from_its_answer(b: Broker) -> None:
    fill(b, 3)
    slot, generation, _ = b.targets[0]
    steps = b.process.deletion.deleting(calls.DeleteRecords([calls.DeleteBefore(slot, generation, 1)]))
    next(steps, None)
    drain(b.process)
    b.process.manager.logs[slot].move_start(2)
    with pytest.raises(StopIteration) as ended:
        next(steps)
    assert ended.value.value == calls.DeletedRecords([calls.DeletedBefore(0, 1)])


def test_who_asks_with_an_old_generation_is_told_so(b: Broker) -> None:
    fill(b, 1)
    slot, generation, version = b.targets[0]
    b.targets[0] = (slot, generation + 1, version)
    assert delete_before(b, 1) == [(6, -1)]
    b.targets[0] = (slot, generation, version)
    b.process.turn.storage_failed(0, 5)
    with pytest.raises(FatalError):
        b.settle()


# ---- readers ----


def test_a_reader_goes_on_with_what_it_has_open_and_finds_the_rest(rig: MakeRig) -> None:
    b = Broker(rig(), retention_ms="1000", file_delete_delay_ms="0", **SMALL)
    fill(b, 2 * PER_SEGMENT, T0 - DAY_MS)
    fill(b, PER_SEGMENT)
    slot = b.targets[0][0]
    reader = PartitionReader(b.rig.directory / "t-0")
    piece = reader.fetch_slice(0, 1 << 20, bound_of(b.rig, slot))
    assert piece is not None
    before = reader.read(piece)
    look(b)
    assert start_and_end(b) == (6, 9)
    assert reader.read(piece) == before
    # A listing from before: a time is looked for where the log starts now, in the segments that are there.
    assert reader.find_timestamp(0, 6, bound_of(b.rig, slot)).offset == 6
    assert reader.max_timestamp(bound_of(b.rig, slot), 6).offset == 8
    with pytest.raises(SegmentGone):
        reader.fetch_slice(3, 1 << 20, bound_of(b.rig, slot))
    reader.close()


def test_times_of_records_that_were_deleted_are_not_found(b: Broker) -> None:
    fill(b, 1, T0 + 900)
    fill(b, 2)
    assert delete_before(b, 1) == [(0, 1)]
    bound = bound_of(b.rig, b.targets[0][0])
    reader = PartitionReader(b.rig.directory / "t-0")
    assert reader.max_timestamp(bound, 1) == (T0 + 1, 2)
    assert reader.max_timestamp(bound, 0) == (T0 + 900, 0)
    assert reader.find_timestamp(T0, 1, bound) == (T0, 1)
    reader.close()


# ---- deaths ----


class KilledAt:
    """Kills the process before the n-th change that its io_thread makes to a file."""

    CHANGES = ("os.rename", "os.remove", "open")

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if event not in self.CHANGES or threading.current_thread().name != THREAD_NAME:
            return
        if event == "open" and not int(arguments[2]) & (os.O_WRONLY | os.O_RDWR):  # type: ignore[call-overload]
            return
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), 9)


def delete_in_child(r: Rig, number: int) -> None:
    process = LogProcess(ProcessContext(LOG, r.memory, r.config))
    process.start()
    process.manager.ensure(ensure(retention_ms="1000", file_delete_delay_ms="0", **SMALL))
    drain(process)
    sys.addaudithook(KilledAt(number))
    process.turn.for_tests(fixed_now_ms=T0)
    for _ in process.deletion.deleting_expired():
        pass
    process.manager.removal.deletions.begin_due(float("inf"))
    drain(process)
    os._exit(0)


def die_while_deleting(r: Rig, number: int) -> bool:
    """A child opens the log, deletes what is too old and dies on the way; whether it did."""
    pid = os.fork()
    if pid == 0:
        try:
            delete_in_child(r, number)
        finally:
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)


def fill_for_real(r: Rig) -> None:
    """Two segments that are old, one that is not."""
    target = forked(r, **SMALL)
    for i in range(2 * PER_SEGMENT + 2):
        timestamp = T0 if i >= 2 * PER_SEGMENT else 1_000
        assert appended(r, target, bytes(make_batch(size=RECORD_BYTES, timestamp=timestamp))).base_offset == i
    assert r.stop() == 0


@pytest.mark.parametrize("machine", [False, True])
def test_killed_between_any_two_steps_of_a_deletion(rig: MakeRig, machine) -> None:
    """Nothing at or above the log start is lost, and no file is left over. `machine`: the table is lost too,
    as when all of the broker is killed.
    """
    filled = rig("filled")
    fill_for_real(filled)
    deaths = 0
    while True:
        r = rig(f"data{deaths}")
        shutil.copytree(filled.directory, r.directory, dirs_exist_ok=True)
        if not die_while_deleting(r, deaths + 1):
            break
        deaths += 1
        if machine:
            r = rig(r.directory.name)
        target = forked(r, **SMALL)
        found = r.partition(target[0])
        assert found.high_watermark == 8
        assert found.log_start_offset in (0, 3, 6)
        if not machine:
            # The table said so already, and somebody may have seen it.
            assert found.log_start_offset == 6
        assert offsets_from(r, target[0], found.log_start_offset) == list(range(found.log_start_offset, 8))
        check_files(r.directory / "t-0")
        assert r.stop() == 0
        check_files(r.directory / "t-0")
    assert deaths >= 8


def check_files(directory: Path) -> None:
    """Whole segments, the state of producers before them or at the end, and what each partition has."""
    names = {path.name for path in directory.iterdir()}
    logs = {name[:20] for name in names if name.endswith(".log")}
    for kind in ("index", "timeindex"):
        assert {name[:20] for name in names if name.endswith(f".{kind}")} == logs
    snapshots = {name[:20] for name in names if name.endswith(".snapshot")}
    assert snapshots <= logs | {f"{8:020d}"}
    others = {name for name in names if not name.endswith((".log", ".index", ".timeindex", ".snapshot"))}
    assert others == {"leader-epoch-checkpoint", "partition.metadata"}


def test_a_death_after_records_were_deleted(rig: MakeRig) -> None:
    """Check that an acknowledged deletion holds, with the partition table and without it."""
    r = rig()
    fill_for_real(r)
    target = forked(r, **SMALL)
    r.call(calls.DeleteRecords([calls.DeleteBefore(target[0], target[1], 7)]))
    assert r.await_answer() == calls.DeletedRecords([calls.DeletedBefore(0, 7)])
    r.kill()
    target = forked(r, **SMALL)
    assert r.partition(target[0]).log_start_offset == 7
    r.kill()
    r = rig(r.directory.name)
    target = forked(r, **SMALL)
    assert r.partition(target[0]).log_start_offset == 7
    assert r.stop() == 0


def test_a_handler_dies_while_records_are_deleted_for_it(b: Broker) -> None:
    """Check that the records are deleted, nobody is answered, and nothing is left of the call."""
    fill(b, 3)
    r, process = b.rig, b.process
    gate = threading.Event()

    def wait() -> None:
        gate.wait(PATIENCE_S)

    process.io_thread.submit(wait, 0)
    slot, generation, _ = b.targets[0]
    data = calls.encode(calls.DeleteRecords([calls.DeleteBefore(slot, generation, 2)]))
    block = r.replies_arena.allocate(len(data))
    r.replies_arena.view(block, len(data))[:] = data
    lent = r.replies_arena.lend(block, LOG)
    r.to_log.push(pack_call(SlotKind.CALL, r.handler, 1, block, lent, len(data)))
    process.work(0)
    process.advance_tasks()
    assert b.rig.partition(slot).log_start_offset == 2
    order = pack_order(1, 1, r.handler)
    r.memory.words("fence_orders").store(LOG, order)

    def obey() -> None:
        process.obey_order()
        process.work(0)

    until(lambda: r.memory.words("fence_acks").load(LOG) == order, "the fence is acknowledged", obey)
    gate.set()
    drain(process)
    process.advance_tasks()
    assert process.lender.in_use_bytes == 0
    assert r.produced.waiting() == 0
    assert read_offsets(r.directory / LOG_STARTS) == {("t", 0): 2}


def test_the_process_looks_by_itself(rig: MakeRig) -> None:
    r = rig(log_initial_task_delay_ms=0, log_retention_check_interval_ms=1)
    r.fork()
    settings = {"retention_ms": "1000", "file_delete_delay_ms": "0", **SMALL}
    (target,) = targets_of(r, **settings)
    r.job([(target, bytes(make_batch(size=RECORD_BYTES, timestamp=1_000)))])
    r.await_replies(1)
    r.until(SUPERVISOR, lambda: r.partition(target[0]).log_start_offset == 1)
    assert r.stop() == 0


def test_the_log_ends_below_its_start(rig: MakeRig) -> None:
    """Check it: without group commit, the system may lose records that were deleted before their sync."""
    r = rig(log_flush_policy="os")
    fill_for_real(r)
    (r.directory / ".kafka_cleanshutdown").unlink()
    (r.directory / LOG_STARTS).write_text("0\n1\nt 0 20\n")
    r.config = msgspec.structs.replace(r.config, log_flush_policy="os")
    (r.directory / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 0\n")
    target = forked(r, **SMALL)
    found = r.partition(target[0])
    assert (found.log_start_offset, found.high_watermark) == (20, 20)
    assert appended(r, target, bytes(make_batch())).base_offset == 20
    assert sorted(path.name for path in (r.directory / "t-0").glob("*.log")) == [f"{20:020d}.log"]
    assert r.stop() == 0
