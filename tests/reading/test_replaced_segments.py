"""The cleaner, retention and moves go on while a range is planned and read: nothing twice, nothing lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mpbroker.log.format.index import offset_floor
from mpbroker.log.format.names import CLEANED_FILE_SUFFIX, segment_name
from mpbroker.log.format.scan import batches
from mpbroker.log.partition.partition_log import remove_segment
from mpbroker.log.partition.segment_swap import begin_swap, swap_in
from mpbroker.reading import columns, read_local
from mpbroker.reading.errors import CorruptLog
from mpbroker.reading.read import read_range
from tests.support.reading_queries import OFFSETS, offsets_of, planned, query, read
from tests.support.spark_logs import FakeBroker, PartitionWriter, fill, numbered


@pytest.fixture
def writer(log_dir: Path) -> PartitionWriter:
    return PartitionWriter(log_dir, "t")


def clean(directory: Path, bases: list[int], keeps: Callable[[int], bool]) -> None:
    """As the cleaner does it: one segment of what is kept of the batches takes the place of several."""
    kept = bytearray()
    for base in bases:
        path = directory / segment_name(base)
        with path.open("rb") as file:
            data = file.read()
            for batch in batches(file.fileno(), 0, len(data)):
                if keeps(batch.base_offset):
                    kept += data[batch.position : batch.position + batch.length]
    (directory / (segment_name(bases[0]) + CLEANED_FILE_SUFFIX)).write_bytes(kept)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        begin_swap(fd, bases[0])
        swap_in(fd, bases)
    finally:
        os.close(fd)


def even(offset: int) -> bool:
    return offset // 10 % 2 == 0


def test_the_segment_of_the_bound_is_cleaned_between_plan_and_task(
    log_dir: Path, writer: PartitionWriter, fake_broker: FakeBroker
) -> None:
    fill(writer, 20)
    fake_broker.publish(writer)
    options = query(log_dir)
    tasks = planned(options)
    writer.roll()
    fill(writer, 5)
    clean(writer.directory, [0], even)
    assert offsets_of(tasks, options) == [n for n in range(200) if even(n)]


def test_the_segment_of_the_bound_is_merged_into_the_one_before(
    log_dir: Path, writer: PartitionWriter, fake_broker: FakeBroker
) -> None:
    fill(writer, 20, roll_every=10)
    fake_broker.publish(writer)
    options = query(log_dir, minPartitions=4)
    tasks = planned(options)
    assert len(tasks) == 4
    writer.roll()
    fill(writer, 5)
    # Also the last records below the bound are gone: others have their keys.
    clean(writer.directory, [0, 100], lambda offset: offset < 150 and even(offset))
    assert offsets_of(tasks, options) == [n for n in range(150) if even(n)]


@pytest.mark.parametrize("seen", range(12))
@pytest.mark.parametrize("action", ["clean", "merge", "retention", "clean and retention", "two merges"])
def test_whenever_the_cleaner_or_retention_comes(
    log_dir: Path,
    writer: PartitionWriter,
    fake_broker: FakeBroker,
    seen: int,
    action: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After each number of batches that was read: what is open is read on, the rest is looked for."""
    monkeypatch.setattr(read_local, "WINDOW_BYTES", 1500)
    monkeypatch.setattr(columns, "MAX_ROWS", 10)
    fill(writer, 12, roll_every=3)
    fake_broker.publish(writer)
    writer.roll()
    options = query(log_dir, failOnDataLoss="false")
    (task,) = planned(options)
    found = read_range(task, OFFSETS, options)
    rows = [offset for _ in range(seen) for offset in next(found).column(0).to_pylist()]
    gone = 0
    if action in ("clean", "clean and retention"):
        for base in (0, 30, 60):
            clean(writer.directory, [base], even)
    if action == "merge":
        clean(writer.directory, [0, 30, 60], even)
    if action == "two merges":
        clean(writer.directory, [0, 30], even)
        clean(writer.directory, [60, 90], even)
    if action in ("retention", "clean and retention"):
        gone = 60
        remove_segment(writer.directory, 0)
        remove_segment(writer.directory, 30)
    rows += [offset for batch in found for offset in batch.column(0).to_pylist()]
    assert rows == sorted(set(rows))
    stays = [n for n in range(120) if n >= gone and (action == "retention" or even(n) or n >= 90)]
    if action == "two merges":
        stays = [n for n in range(120) if even(n)]
    assert set(rows) >= set(stays)
    assert set(rows) <= set(range(120))


def test_an_older_copy_of_the_log_is_an_error(
    log_dir: Path, writer: PartitionWriter, fake_broker: FakeBroker, tmp_path: Path
) -> None:
    """As on another host: it has what is not enough, under the same path."""
    fill(writer, 5)
    copy = shutil.copytree(writer.directory, tmp_path / "copy")
    fill(writer, 5)
    fake_broker.publish(writer)
    options = query(log_dir)
    tasks = planned(options)
    shutil.rmtree(writer.directory)
    copy.rename(writer.directory)
    with pytest.raises(CorruptLog, match=r"ends before offset 100.* or an older copy of the log"):
        offsets_of(tasks, options)


def test_a_moved_partition_has_more_in_its_file_than_is_committed(
    log_dir: Path, writer: PartitionWriter, fake_broker: FakeBroker, tmp_path: Path
) -> None:
    """Another file has the bound's name, and behind the bound what may never be read."""
    fill(writer, 5)
    fake_broker.publish(writer)
    options = query(log_dir)
    tasks = planned(options)
    fill(writer, 2)
    writer.torn_tail(b"\0" * 100)
    copy = shutil.copytree(writer.directory, tmp_path / "copy")
    shutil.rmtree(writer.directory)
    copy.rename(writer.directory)
    assert offsets_of(tasks, options) == list(range(50))


def test_what_lies_behind_the_bound_is_not_looked_at(
    log_dir: Path, writer: PartitionWriter, fake_broker: FakeBroker
) -> None:
    """A batch that is being written, of which the header is there or not, and zeros of a reserved file."""
    fill(writer, 3)
    bound = writer.end
    whole = PartitionWriter(log_dir, "other", first_offset=30)
    whole.append(numbered(10))
    torn = (whole.directory / segment_name(30)).read_bytes()
    fake_broker.publish(writer, bound)
    segment = writer.directory / segment_name(0)
    size = segment.stat().st_size
    for tail in (torn, torn[:-1], torn[:70], torn[:61], torn[:60], torn[:5], b"\0" * 500, b"\xff" * 500):
        os.truncate(segment, size)
        writer.torn_tail(tail)
        assert read(log_dir) == list(range(30)), tail[:5]


def test_an_index_is_never_believed_of_another_file(
    log_dir: Path, writer: PartitionWriter, fake_broker: FakeBroker
) -> None:
    fill(writer, 40, value_bytes=200)
    fake_broker.publish(writer)
    options = query(log_dir, startingOffsets='{"t":{"0":355}}')
    tasks = planned(options)
    writer.roll()
    with (writer.directory / segment_name(0, ".index")).open("rb") as file:
        assert offset_floor(file.fileno(), 0, 355)[1] > 0
    clean(writer.directory, [0], even)
    assert offsets_of(tasks, options) == [*range(360, 370), *range(380, 390)]
