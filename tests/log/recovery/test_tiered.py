"""Opening tiered partitions: where the log starts, what is kept, what is refused, and kills at each step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.table import version_of, word_of
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.log.recovery import workers
from mpbroker.log.recovery.workers import RecoveredPartition
from mpbroker.log.retention import deletion
from mpbroker.protocol.errors import ErrorCode
from mpbroker.storage.checkpoints import read_epochs, write_epochs
from mpbroker.storage.names import LOG_STARTS, REMOTE_SEGMENTS
from mpbroker.storage.remote_segments import RemoteSegment, read_remote_segments, write_remote_segments
from mpbroker.storage.segments import segments_of
from tests.support.log_node import MakeNode, Node, wait_for_io
from tests.support.log_rig import ensure
from tests.support.log_writer import T0, make_batch, topic_config
from tests.support.stepped_log import settle

OPTIONS = {"remote_log_storage_system_enable": True, "mpbroker_remote_url": "file:///b"}
SETTINGS = {"segment_bytes": "1048576", "retention_ms": "-1", "file_delete_delay_ms": "0"}
TIERED = ensure(1, remote_storage_enable="true", local_retention_ms="1000", **SETTINGS)
DAY_MS = 86_400_000
RECORD_BYTES = 300_000
OLD, NEW = 6, 4
"""Records in two old segments, and in two new ones."""


class TieredNode:
    """A log process with one tiered partition of four segments; the test plays the tier."""

    def __init__(self, node: Node, epoch: int = 0) -> None:
        self.node = node
        node.boot(**OPTIONS)
        (self.target,) = node.open(TIERED)
        if epoch:
            self.node.stop()
            write_epochs(self.directory, [(epoch, 0)])
            node.boot(**OPTIONS)
            (self.target,) = node.open(TIERED)
        self.sequence = 0
        self.produce(OLD, T0 - DAY_MS)
        self.produce(NEW, T0)
        assert self.bases == [0, 3, 6, 9]

    @property
    def directory(self) -> Path:
        return self.node.dirs[0] / "t-0"

    @property
    def bases(self) -> list[int]:
        return segments_of(self.directory)

    @property
    def log(self) -> PartitionLog:
        return self.node.process.manager.logs[self.target.slot]

    @property
    def start_and_end(self) -> tuple[int, int]:
        found = self.node.rig.partition(self.target.slot)
        return found.log_start_offset, found.high_watermark

    def produce(self, count: int, timestamp: int = T0) -> None:
        for _ in range(count):
            producer = (7, 0, self.sequence)
            batch = make_batch(size=RECORD_BYTES, timestamp=timestamp + self.sequence, producer=producer)
            assert self.node.produce(self.target, bytes(batch)) == [0]
            self.sequence += 1

    def store(self, *ranges: tuple[int, int]) -> None:
        known = {one.base: one.size for one in read_remote_segments(self.directory)}
        known |= {int(path.stem): path.stat().st_size for path in self.directory.glob("*.log")}
        of_store = [RemoteSegment(*one, known[one[0]], T0 - DAY_MS, bytes(16)) for one in ranges]
        write_remote_segments(self.directory, of_store)
        words, generation = self.node.rig.memory.words("remote"), self.target.slot_generation
        version = version_of(words.load(self.target.slot), generation) + 1
        words.store(self.target.slot, word_of(generation, version))

    def retain(self) -> None:
        process = self.node.process
        process.turn.for_tests(fixed_now_ms=T0)
        for _ in process.deletion.deleting_expired():
            settle(process)
        wait_for_io(process)
        settle(process)

    def open(self, topic: calls.EnsureTopic = TIERED) -> calls.EnsuredPartition:
        (self.target,) = self.node.open(topic)
        return self.target

    def crash_and_boot(self) -> None:
        self.node.crash()
        self.node.boot(**OPTIONS)
        assert self.open().error == 0

    def stop_and_boot(self) -> None:
        self.node.stop()
        self.node.boot(**OPTIONS)
        assert self.open().error == 0

    def succeed(self) -> None:
        self.node.succeed()
        assert self.open().error == 0


RESTARTS = [TieredNode.crash_and_boot, TieredNode.stop_and_boot, TieredNode.succeed]
Restart = Callable[[TieredNode], None]


@pytest.fixture
def n(node: MakeNode) -> TieredNode:
    return TieredNode(node())


@pytest.mark.parametrize("restart", RESTARTS)
def test_the_log_starts_in_the_store(n: TieredNode, restart: Restart) -> None:
    n.store((0, 3), (3, 6))
    n.retain()
    n.node.checkpoint()
    assert (n.bases, n.start_and_end) == ([6, 9], (0, 10))
    restart(n)
    assert (n.bases, n.start_and_end, n.log.local_start) == ([6, 9], (0, 10), 6)
    assert read_epochs(n.directory) == [(0, 0)]
    # The producer goes on where it was; a repeated batch is known.
    n.produce(1)
    n.sequence -= 1
    n.produce(1)
    assert n.start_and_end == (0, 11)


@pytest.mark.parametrize("restart", RESTARTS)
def test_only_an_empty_active_segment_is_left(n: TieredNode, restart: Restart) -> None:
    n.store((0, 3), (3, 6), (6, 9))
    n.node.process.manager.roll(n.log)
    n.log.state.all_is_durable(n.log.state.synced)
    n.store((0, 3), (3, 6), (6, 9), (9, 10))
    n.node.process.turn.for_tests(fixed_now_ms=T0 + DAY_MS)
    for _ in n.node.process.deletion.deleting_expired():
        settle(n.node.process)
    wait_for_io(n.node.process)
    assert (n.bases, n.start_and_end) == ([10], (0, 10))
    n.node.checkpoint()
    restart(n)
    assert (n.bases, n.start_and_end, n.log.local_start) == ([10], (0, 10), 10)
    n.produce(2)
    assert n.start_and_end == (0, 12)
    assert n.log.epochs == ((0, 0),) or n.log.epochs == [(0, 0)]


@pytest.mark.parametrize("is_clean", [True, False])
def test_epochs_of_what_is_in_the_store_are_kept(node: MakeNode, is_clean: bool) -> None:
    """A consumer asks for the end of an epoch whose records are remote (KIP-320)."""
    n = TieredNode(node(), epoch=5)
    n.store((0, 3), (3, 6))
    n.retain()
    n.node.checkpoint()
    (n.node.stop if is_clean else n.node.crash)()
    epochs = [(0, 0), (3, 2), (5, 4)]
    write_epochs(n.directory, epochs)
    n.node.boot(**OPTIONS)
    n.open()
    assert read_epochs(n.directory) == n.log.epochs == epochs
    n.log.move_start(3)
    assert n.log.epochs == [(3, 3), (5, 4)]


@pytest.mark.parametrize("restart", RESTARTS)
def test_deleted_records_stay_deleted(n: TieredNode, restart: Restart) -> None:
    n.store((0, 3), (3, 6))
    n.retain()
    n.log.move_start(4)
    n.node.process.manager.checkpoints.write_log_starts([n.log])
    n.log.state.publish(n.node.process.manager.table)
    wait_for_io(n.node.process)
    n.node.checkpoint()
    restart(n)
    assert (n.bases, n.start_and_end) == ([6, 9], (4, 10))


@pytest.mark.parametrize("checkpoint", ["lost", "older"])
def test_a_log_start_that_is_not_known_is_the_stores(n: TieredNode, checkpoint: str) -> None:
    n.store((0, 3), (3, 6))
    n.retain()
    n.node.checkpoint()
    n.store((3, 6))
    n.node.crash()
    path = n.node.dirs[0] / LOG_STARTS
    if checkpoint == "lost":
        path.unlink()
    else:
        path.write_text("0\n1\nt 0 1\n")
    n.node.boot(**OPTIONS)
    n.open()
    assert n.start_and_end == (3, 10)


@pytest.mark.parametrize("left", [6, 0])
def test_offsets_are_not_given_out_twice(n: TieredNode, left: int) -> None:
    """The local log was lost or is an old copy, whose checkpoints know nothing of it."""
    n.store((0, 3), (3, 6), (6, 9))
    n.retain()
    n.node.checkpoint()
    n.node.crash()
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint", LOG_STARTS):
        (n.node.dirs[0] / name).unlink()
    for base in n.bases:
        if base > left or not left:
            (n.directory / f"{base:020}.log").unlink()
    if left:
        os.truncate(n.directory / f"{left:020}.log", 0)
    shutil.rmtree(n.node.dirs[0] / "mpbroker.journal", ignore_errors=True)
    (n.node.dirs[0] / "mpbroker.journal").unlink(missing_ok=True)
    n.node.boot(**OPTIONS)
    opened = n.open()
    assert opened.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert f"t-0 ends at offset {left}, and the object store has its offsets up to 8" in (
        opened.message or ""
    )


def test_a_gap_is_reported(n: TieredNode, caplog: pytest.LogCaptureFixture) -> None:
    n.store((0, 3))
    n.node.stop()
    for path in n.directory.glob(f"{3:020}.*"):
        path.unlink()
    (n.directory / f"{0:020}.log").unlink()
    n.node.boot(**OPTIONS)
    n.open()
    assert n.start_and_end == (0, 10)
    assert "t-0: offsets 3 to 5 are neither in the object store nor in a local segment" in caplog.text


def test_a_damaged_file_is_no_reason_not_to_serve(n: TieredNode, caplog: pytest.LogCaptureFixture) -> None:
    n.store((0, 3), (3, 6))
    n.retain()
    n.node.stop()
    whole = (n.directory / REMOTE_SEGMENTS).read_bytes()
    (n.directory / REMOTE_SEGMENTS).write_bytes(whole[:-1])
    n.node.boot(**OPTIONS)
    n.open()
    assert (n.bases, n.start_and_end) == ([6, 9], (0, 10))
    assert "mpbroker.remote is damaged: its checksum does not match. It is written again" in caplog.text
    # The log start that the checkpoint has is below what the store has.
    (n.directory / REMOTE_SEGMENTS).write_bytes(whole)
    n.store((3, 6))
    n.retain()
    assert n.start_and_end == (3, 10)


@pytest.mark.parametrize("restart", RESTARTS)
def test_a_missing_file_moves_no_log_start(n: TieredNode, restart: Restart) -> None:
    """The tier removes what is below the log start from the store."""
    n.store((0, 3), (3, 6))
    n.retain()
    n.log.move_start(2)
    n.log.state.publish(n.node.process.manager.table)
    n.node.process.manager.checkpoints.write_log_starts([n.log])
    wait_for_io(n.node.process)
    n.node.checkpoint()
    (n.directory / REMOTE_SEGMENTS).unlink()
    restart(n)
    assert (n.bases, n.start_and_end, n.log.local_start) == ([6, 9], (2, 10), 6)
    n.produce(1)
    assert n.start_and_end == (2, 11)


def test_a_missing_file_of_a_topic_without_tiering_is_no_loss(n: TieredNode) -> None:
    n.node.stop()
    for base in (0, 3):
        for path in n.directory.glob(f"{base:020}.*"):
            path.unlink()
    n.node.boot(**OPTIONS)
    n.open(ensure(1, **SETTINGS))
    assert n.start_and_end == (6, 10)


def test_switched_off_the_log_starts_here_also_if_the_process_died_at_once(n: TieredNode) -> None:
    n.store((0, 3), (3, 6))
    n.retain()
    n.node.checkpoint()
    n.node.crash()
    n.node.boot(**OPTIONS)
    n.open(ensure(1, remote_log_delete_on_disable="true", **SETTINGS))
    assert n.start_and_end == (6, 10)


def test_a_recovery_worker_hands_over_what_the_store_has(n: TieredNode) -> None:
    n.store((0, 3), (3, 6))
    n.retain()
    n.node.stop()
    known = workers.Known(clean=True, log_start=2)
    topic_id, config = TIERED.topic_id, topic_config(remote_storage_enable="true")
    job = workers.OpenJob(str(n.directory), "t", 0, topic_id, config, known)
    recovered = job.run(lambda _: None, workers.EACH_FILE)
    assert isinstance(recovered, RecoveredPartition)
    log = PartitionLog(n.directory, "t", 0, topic_id, config)
    recovered.adopt(log)
    assert (log.log_start, log.local_start, log.remote) == (2, 6, read_remote_segments(n.directory))
    n.node.boot(**OPTIONS)


# ---- kills ----


def covered(n: TieredNode) -> None:
    """Check that each offset of the log is in the store or in a local segment, and that none was lost."""
    start, end = n.start_and_end
    assert end == 10
    offsets = {offset for one in read_remote_segments(n.directory) for offset in range(one.base, one.end)}
    offsets |= set(range(n.bases[0], end))
    assert set(range(start, end)) <= offsets


@pytest.mark.parametrize("restart", [TieredNode.crash_and_boot, TieredNode.succeed])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("renames", range(8))
def test_killed_while_files_go(
    n: TieredNode, monkeypatch: pytest.MonkeyPatch, renames: int, whole: bool, restart: Restart
) -> None:
    """Kill after any number of renames. With `whole`, the log start moves over the store's segments, too."""
    n.node.checkpoint()
    n.store((0, 3), (3, 6), (6, 9))
    done: list[str | Path] = []
    rename = os.rename

    def some(name: str | Path, to: str | Path, **where: int) -> None:
        if str(to).endswith(".deleted"):
            if len(done) >= renames:
                return
            done.append(name)
        rename(name, to, **where)

    monkeypatch.setattr(deletion.os, "rename", some)
    monkeypatch.setattr(deletion, "write_epochs_at", lambda *_: None)
    if whole:
        n.log.apply_config(topic_config(remote_storage_enable="true", retention_ms="1000", **BYTES))
    n.retain()
    assert len(done) == min(renames, 7)
    before, _ = n.start_and_end
    assert before == (6 if whole else 0)
    monkeypatch.undo()
    restart(n)
    covered(n)
    assert n.start_and_end[0] == before
    # After a start of the whole broker nothing goes before the tier has seen the store.
    n.store((0, 3), (3, 6), (6, 9))
    n.retain()
    covered(n)
    assert n.bases == [6, 9]


BYTES = {"segment_bytes": "1048576"}


@pytest.mark.parametrize("restart", [TieredNode.crash_and_boot, TieredNode.succeed])
def test_killed_before_the_log_start_is_on_disk(
    n: TieredNode, monkeypatch: pytest.MonkeyPatch, restart: Restart
) -> None:
    """The tier saw the log start in the table and removed the segments; the disk knows neither."""
    n.store((0, 3), (3, 6))
    n.retain()
    n.node.checkpoint()
    monkeypatch.setattr(n.node.process.manager.checkpoints, "write_log_starts", lambda _: None)
    most = str(sum(path.stat().st_size for path in n.directory.glob("*.log")) + 1000)
    n.log.apply_config(topic_config(remote_storage_enable="true", retention_bytes=most, **BYTES))
    n.retain()
    assert n.start_and_end[0] == 3
    n.store((3, 6))
    restart(n)
    assert n.start_and_end == (3, 10)
    covered(n)
