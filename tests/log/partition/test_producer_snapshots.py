"""Between rolls, too, there are snapshots: a recovery begins at one, and has little before it to look at."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mpbroker.config.topic_config import TopicConfig
from mpbroker.ipc.table import PartitionFlag
from mpbroker.log.io.io_thread import IoThread
from mpbroker.log.partition import producer_snapshots
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.log.recovery.log_loader import Known, load
from mpbroker.storage import names
from mpbroker.storage.segments import offsets_of
from tests.support.log_node import flip_bit
from tests.support.log_writer import MakeWriter, Writer, topic_config
from tests.support.opened_logs import offsets_in

BATCH_BYTES = 10_000


@pytest.fixture
def snapshot(monkeypatch: pytest.MonkeyPatch) -> Callable[[PartitionLog], bool]:
    monkeypatch.setattr(producer_snapshots, "SNAPSHOT_EVERY_BYTES", 5 * BATCH_BYTES)

    def take(log: PartitionLog) -> bool:
        log.state.flags = PartitionFlag.PARTITION_LIVE
        if not producer_snapshots.is_due(log):
            return False
        io_thread = IoThread()
        for _ in producer_snapshots.snapshotting(lambda: [log], io_thread):
            pass
        io_thread.close()
        assert io_thread.failures() == []
        return True

    return take


def reopened(directory: Path, config: TopicConfig, recovery_point: int) -> tuple[PartitionLog, int]:
    """Open the log again, and return it with the number of bytes that were checked."""
    checked: list[int] = []
    known = Known(clean=False, recovery_point=recovery_point, durable=recovery_point)
    log = load(directory, "t", 0, bytes(range(16)), config, known, str, checked.append)
    return log, sum(checked)


def fill(w: Writer, first: int, count: int) -> None:
    for i in range(first, first + count):
        w.append(size=BATCH_BYTES, producer=(7, 0, i), timestamp=4_000_000_000_000 + i % 7)


@pytest.fixture
def taken(writer: MakeWriter, snapshot) -> Writer:
    """A log of 60 batches, and a snapshot at its end."""
    w: Writer = writer(index_interval_bytes="4096")
    fill(w, 0, 60)
    assert snapshot(w.log)
    return w


def test_a_recovery_begins_at_the_snapshot(taken: Writer) -> None:
    fill(taken, 60, 10)
    taken.log.close_files()
    index = taken.log.directory / names.segment_name(0, names.INDEX_SUFFIX)
    before = index.read_bytes()
    times = index.with_suffix(".timeindex").read_bytes()
    log, checked = reopened(taken.log.directory, topic_config(index_interval_bytes="4096"), 68)
    assert 10 * BATCH_BYTES <= checked <= 13 * BATCH_BYTES
    assert log.state.log_end == 70
    assert [log.state.producers.check(7, 0, i, 1)[0] for i in (65, 69, 70, 64)] == [-1, -1, 0, 45]
    assert offsets_in(log) == list(range(70))
    # As if all of it had been indexed in one go.
    assert index.read_bytes() == before
    assert index.with_suffix(".timeindex").read_bytes() == times
    assert log.state.max_timestamp == 4_000_000_000_006


def test_what_lies_before_it_is_not_read(taken: Writer) -> None:
    path = taken.log.directory / names.segment_name(0)
    flip_bit(path, 5 * BATCH_BYTES)
    taken.log.close_files()
    assert reopened(taken.log.directory, topic_config(), 60)[0].state.log_end == 60


@pytest.mark.parametrize("recovery_point", [0, 30])
def test_one_of_what_may_be_lost_does_not_count(taken: Writer, recovery_point: int) -> None:
    taken.log.close_files()
    path = taken.log.directory / names.segment_name(0)
    os.truncate(path, path.stat().st_size - 5 * BATCH_BYTES)
    log, checked = reopened(taken.log.directory, topic_config(), recovery_point)
    assert checked >= 54 * BATCH_BYTES
    assert 53 < log.state.log_end < 60
    end = log.state.log_end
    assert [log.state.producers.check(7, 0, end - i, 1)[0] for i in (1, 5, 0)] == [-1, -1, 0]
    assert offsets_of(taken.log.directory, names.SNAPSHOT_SUFFIX) == [end]


def test_one_of_what_was_lost_is_gone_for_good(taken: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that no second power cut brings a snapshot of lost records back, behind other records."""
    taken.log.close_files()
    path = taken.log.directory / names.segment_name(0)
    size = path.stat().st_size
    os.truncate(path, size // 60 * 50)
    gone: list[bool] = []
    monkeypatch.setattr(
        "mpbroker.log.recovery.log_loader.fsync_directory",
        lambda directory: gone.append(not offsets_of(directory, names.SNAPSHOT_SUFFIX)),
    )
    log, _ = reopened(taken.log.directory, topic_config(index_interval_bytes="4096"), 50)
    assert log.state.log_end == 50
    assert set(gone) == {True}


@pytest.mark.parametrize("lost", [slice(0, 8), slice(8, 16), slice(40, 48)])
def test_an_index_that_is_not_sound_is_made_anew(taken: Writer, lost: slice) -> None:
    taken.log.close_files()
    index = taken.log.directory / names.segment_name(0, names.INDEX_SUFFIX)
    before = index.read_bytes()
    data = bytearray(before)
    data[lost] = bytes(8)
    index.write_bytes(data)
    log, _ = reopened(taken.log.directory, topic_config(index_interval_bytes="4096"), 60)
    assert index.read_bytes() == before
    assert offsets_in(log) == list(range(60))


def test_two_are_kept_and_those_of_segments(writer: MakeWriter, snapshot) -> None:
    w = writer(segment_bytes="1048576")
    for first in range(0, 200, 10):
        fill(w, first, 10)
        assert snapshot(w.log)
    assert not snapshot(w.log)
    bases = offsets_of(w.log.directory, names.LOG_SUFFIX)
    assert len(bases) == 2
    assert offsets_of(w.log.directory, names.SNAPSHOT_SUFFIX) == [bases[1], 190, 200]
    w.log.close_cleanly()


def test_two_may_drop_the_same_one(writer: MakeWriter, snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a stop and the I/O thread drop old snapshots at once, and check that this is no disk failure."""
    w = writer(segment_bytes="1048576")
    unlink = os.unlink

    def late(name: str, *, dir_fd: int | None = None) -> None:
        unlink(name, dir_fd=dir_fd)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(producer_snapshots.os, "unlink", late)
    for first in range(0, 40, 10):
        fill(w, first, 10)
        assert snapshot(w.log)
    listed = {suffix: offsets_of(w.log.directory, suffix) for suffix in (names.LOG_SUFFIX, ".snapshot")}
    listed[names.SNAPSHOT_SUFFIX].insert(0, 5)
    monkeypatch.setattr("mpbroker.log.partition.partition_log.offsets_of", lambda _, suffix: listed[suffix])
    w.log.drop_old_snapshots()
    monkeypatch.undo()
    assert offsets_of(w.log.directory, names.SNAPSHOT_SUFFIX) == [40]
