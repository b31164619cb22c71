"""Committed records out of log directories, beside a broker and at rest: none that is aborted or open."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from mpbroker.reading import transactions
from mpbroker.reading.errors import CorruptLog, SourceUnavailable
from mpbroker.storage.names import segment_name
from tests.support.reading_queries import UNCOMMITTED, TransactionalWriter, offsets_of, planned, query, read
from tests.support.spark_logs import FakeBroker, PartitionWriter, checkpoint, numbered


@pytest.fixture
def writer(log_dir: Path) -> TransactionalWriter:
    made = TransactionalWriter(log_dir, "t")
    made.begin()
    return made


def publish(broker: FakeBroker, writer: TransactionalWriter) -> None:
    broker.publish(writer, stable=writer.stable, aborted_end=writer.aborted_end)


def some_transactions(writer: TransactionalWriter) -> None:
    """Over two segments; at the end one is open."""
    writer.plain(2)
    writer.write(1, 3)
    writer.write(2, 2)
    writer.abort(1)
    writer.write(1, 2)
    writer.roll()
    writer.commit(2)
    writer.write(3, 1)
    writer.plain(2)
    writer.abort(1)
    writer.commit(3)
    writer.write(4, 2)
    writer.plain(1)


def test_beside_a_broker(log_dir: Path, writer: TransactionalWriter, fake_broker: FakeBroker) -> None:
    some_transactions(writer)
    publish(fake_broker, writer)
    stable = writer.stable.offset
    assert stable == 16
    assert read(log_dir) == writer.committed_below(stable) == [0, 1, 5, 6, 11, 12, 13]
    assert read(log_dir, **UNCOMMITTED) == [0, 1, 2, 3, 4, 5, 6, 8, 9, 11, 12, 13, 16, 17, 18]
    writer.commit(4)
    publish(fake_broker, writer)
    assert read(log_dir) == [0, 1, 5, 6, 11, 12, 13, 16, 17, 18]
    # Each offset in a task of its own: the transactions begin before, and end behind.
    assert read(log_dir, maxRecordsPerPartition=1) == [0, 1, 5, 6, 11, 12, 13, 16, 17, 18]


@pytest.mark.parametrize("indexed", [True, False], ids=["indexed", "without indexes and snapshots"])
@pytest.mark.parametrize("seed", range(8))
def test_at_rest_every_high_watermark(
    log_dir: Path, writer: TransactionalWriter, seed: int, indexed: bool
) -> None:
    """Whatever was checkpointed: open ones end the reading, and what was aborted is not seen."""
    draw = random.Random(seed)
    stable_at: dict[int, int] = {}
    for _ in range(60):
        producer_id = draw.randrange(4)
        step = draw.choice(["write"] * 4 + ["plain", "commit", "abort", "roll", "snapshot"])
        if step == "write":
            writer.write(producer_id, draw.randint(1, 3))
        elif step == "plain":
            writer.plain(draw.randint(1, 3))
        elif step == "commit":
            writer.commit(producer_id)
        elif step == "abort":
            writer.abort(producer_id, indexed=indexed)
        else:
            if indexed:
                writer.snapshot()
            if step == "roll" and writer.next_offset > writer.base:
                writer.roll()
            continue
        stable_at[writer.next_offset] = writer.stable.offset
    for high_watermark, stable in stable_at.items():
        checkpoint(log_dir, {("t", 0): high_watermark})
        assert read(log_dir) == writer.committed_below(stable), high_watermark


def test_at_rest_from_the_newest_snapshot(log_dir: Path, writer: TransactionalWriter) -> None:
    some_transactions(writer)
    writer.snapshot()
    writer.commit(4)
    writer.write(5, 2)
    writer.plain(1)
    writer.write(6, 1)
    # An unclean stop: the index does not say so.
    writer.abort(6, indexed=False)
    checkpoint(log_dir, {("t", 0): writer.next_offset})
    assert read(log_dir) == writer.committed_below(20)
    writer.commit(5)
    checkpoint(log_dir, {("t", 0): writer.next_offset})
    assert read(log_dir) == sorted(writer.committed)
    # A marker that is not below the high watermark ends nothing.
    checkpoint(log_dir, {("t", 0): writer.next_offset - 1})
    assert read(log_dir) == writer.committed_below(20)
    # One that a crash left half written is passed over.
    (newest,) = writer.directory.glob("*.snapshot")
    newest.write_bytes(newest.read_bytes()[:-3])
    assert read(log_dir) == writer.committed_below(20)


def test_a_snapshot_above_the_high_watermark_says_nothing(log_dir: Path, writer: TransactionalWriter) -> None:
    writer.plain(3)
    writer.write(1, 2)
    writer.commit(1)
    writer.snapshot()
    checkpoint(log_dir, {("t", 0): 5})
    assert read(log_dir) == [0, 1, 2]
    checkpoint(log_dir, {("t", 0): 6})
    assert read(log_dir) == [0, 1, 2, 3, 4]


def test_a_missing_index(log_dir: Path, writer: TransactionalWriter, fake_broker: FakeBroker) -> None:
    """Of the last transaction the broker knows; of one before it the marker in the log says so."""
    writer.write(1, 2)
    writer.abort(1)
    writer.plain(1)
    publish(fake_broker, writer)
    assert read(log_dir) == [3]
    kept = writer.index.read_bytes()
    writer.index.unlink()
    with pytest.raises(CorruptLog, match=r"txnindex does not have the transaction .* aborted at offset 2"):
        read(log_dir)
    assert read(log_dir, **UNCOMMITTED) == [0, 1, 3]
    writer.roll()
    writer.plain(1)
    publish(fake_broker, writer)
    with pytest.raises(CorruptLog, match=r"00\.log is damaged at position \d+: .* producer 1 that no"):
        read(log_dir)
    index = writer.directory / "00000000000000000000.txnindex"
    index.write_bytes(kept[:-1])
    with pytest.raises(CorruptLog, match=r"ends within an entry.*read_uncommitted"):
        read(log_dir)
    index.write_bytes(kept)
    assert read(log_dir) == [3, 4]


@pytest.mark.parametrize("roll", [False, True])
def test_a_missing_index_of_a_transaction_that_tasks_cut_through(
    log_dir: Path, writer: TransactionalWriter, fake_broker: FakeBroker, roll: bool
) -> None:
    """A task that gives its records has no marker of them: it looks for the next one of the producer."""
    writer.write(1, 1)
    writer.write(2, 1)
    writer.write(3, 1)
    writer.commit(2)
    if roll:
        writer.roll()
    writer.write(1, 1)
    index = writer.index
    writer.abort(1)
    writer.write(2, 1)
    writer.commit(3)
    writer.commit(2)
    writer.roll()
    writer.plain(1)
    publish(fake_broker, writer)
    assert read(log_dir, maxRecordsPerPartition=1) == [1, 2, 6, 9]
    index.unlink()
    options = query(log_dir, maxRecordsPerPartition=1)
    tasks = planned(options)
    for task in tasks:
        if task.start in (0, 4):
            with pytest.raises(CorruptLog, match=r"offset 5 aborts a transaction of producer 1"):
                offsets_of([task], options)
        else:
            assert offsets_of([task], options) == ([task.start] if task.start in (1, 2, 6, 9) else [])


def test_an_aborted_transaction_without_records_needs_no_index(
    log_dir: Path, writer: TransactionalWriter, fake_broker: FakeBroker
) -> None:
    writer.write(1, 2)
    writer.commit(1)
    writer.abort(1)
    publish(fake_broker, writer)
    assert writer.aborted_end == 0
    assert read(log_dir) == [0, 1]


def test_a_range_of_time_ends_at_the_last_stable_offset(
    log_dir: Path, writer: TransactionalWriter, fake_broker: FakeBroker
) -> None:
    writer.plain(3)
    writer.write(1, 3)
    writer.plain(2)
    publish(fake_broker, writer)
    assert read(log_dir, startingTimestamp=1_700_000_000_001) == [1, 2]
    assert read(log_dir, startingTimestamp=1_700_000_000_001, **UNCOMMITTED) == [1, 2, 3, 4, 5, 6, 7]


def test_an_index_that_goes_while_it_is_read(
    log_dir: Path, writer: TransactionalWriter, fake_broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cleaner merges two segments: the index of the second was listed, and is gone when it is opened."""
    writer.write(1, 2)
    writer.roll()
    writer.abort(1)
    writer.plain(1)
    publish(fake_broker, writer)
    options = query(log_dir)
    tasks = planned(options)
    listdir, index = os.listdir, writer.index
    entries = index.read_bytes()

    def and_merged(path: Path) -> list[str]:
        names = listdir(path)
        if index.exists() and index.name in names:
            index.unlink()
            (writer.directory / "00000000000000000000.txnindex").write_bytes(entries)
        return names

    monkeypatch.setattr(transactions.os, "listdir", and_merged)
    assert offsets_of(tasks, options) == [3]


def test_a_deleted_last_index(log_dir: Path, fake_broker: FakeBroker) -> None:
    """DeleteRecords up to the end passes an open transaction: LSO and log start meet, and the segment of the
    last abort marker is gone with its index. That is no damage, of this topic or of another one.
    """
    writer = TransactionalWriter(log_dir, "t")
    writer.begin()
    writer.write(1, 1)
    writer.write(2, 1)
    writer.abort(2)
    first = sorted(writer.directory.glob("*0000.*"))
    writer.roll()
    writer.plain(1)
    # As `PartitionState.raise_stable` leaves it: the offset is raised, its segment stays that of the batch.
    stable = writer.stable._replace(offset=writer.next_offset)
    fake_broker.publish(writer, stable=stable, aborted_end=writer.aborted_end, log_start=writer.next_offset)
    for path in first:
        path.unlink()
    other = PartitionWriter(log_dir, "other")
    other.append(numbered(2))
    fake_broker.publish(other)
    assert read(log_dir, "other") == [0, 1]
    assert read(log_dir) == []
    writer.commit(1)
    writer.plain(1)
    publish(fake_broker, writer)
    assert read(log_dir, startingOffsets='{"t":{"0":4}}') == [5]


@pytest.mark.parametrize("is_served", [True, False], ids=["beside a broker", "at rest"])
def test_what_is_wrong_with_one_topic_is_no_matter_of_another(
    log_dir: Path, writer: TransactionalWriter, fake_broker: FakeBroker, is_served: bool
) -> None:
    writer.write(1, 2)
    writer.abort(1)
    publish(fake_broker, writer)
    writer.index.unlink()
    segment = writer.directory / segment_name(0)
    other = PartitionWriter(log_dir, "other")
    other.append(numbered(2))
    fake_broker.publish(other)
    if not is_served:
        fake_broker.stop()
        checkpoint(log_dir, {("t", 0): 3, ("other", 0): 2})
        segment.unlink()
        segment.symlink_to("nowhere")
    assert read(log_dir, "other") == [0, 1]
    with pytest.raises(CorruptLog if is_served else SourceUnavailable, match=r"/t-0/0"):
        read(log_dir)
