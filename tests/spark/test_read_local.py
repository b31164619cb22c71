"""The source over log directories: what comes out is what was written, and never more than was published.

Planner and tasks are called as Spark calls them, without Spark, which costs seconds; see test_queries.py.
"""

from __future__ import annotations

import mmap
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StringType, StructField, StructType

from mpbroker.ipc.table import PartitionFlag
from mpbroker.reading import read_local
from mpbroker.reading.errors import DataLoss, OptionError, SourceUnavailable
from mpbroker.reading.local_catalog import bound_at
from mpbroker.records.compression import Codec
from mpbroker.storage.reader import Bound, SegmentGone
from spark_integration.jobs.frame import Source
from spark_integration.source import MpbrokerDataSource
from tests.support.spark_logs import FakeBroker, PartitionWriter, checkpoint, fill, numbered

Read = Callable[..., list[dict[str, Any]]]


def source(log_dir: Path, topic: str = "t", **options: object) -> MpbrokerDataSource:
    texts = {name: str(value) for name, value in options.items()} | {"log.dir": str(log_dir)}
    if not {"assign", "subscribePattern"} & set(texts):
        texts["subscribe"] = topic
    return MpbrokerDataSource(texts)


@pytest.fixture
def read(log_dir: Path) -> Read:
    """The rows of a query, as Spark would get them from its tasks."""

    def rows(topic: str = "t", **options: object) -> list[dict[str, Any]]:
        return rows_of(source(log_dir, topic, **options))

    return rows


def rows_of(found: MpbrokerDataSource) -> list[dict[str, Any]]:
    reader = found.reader(found.schema())
    # Spark pickles both on their way to a task, and calls with a bare InputPartition if there is none.
    partitions = pickle.loads(pickle.dumps(reader.partitions())) or [InputPartition(None)]
    task = pickle.loads(pickle.dumps(reader))
    return [row for partition in partitions for batch in task.read(partition) for row in batch.to_pylist()]


def offsets(rows: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


@pytest.mark.parametrize(
    "option", [{"minPartitions": 7}, {"maxBytesPerTask": 9000}, {"maxRecordsPerPartition": 300}]
)
def test_splits_lose_and_double_nothing(
    read: Read, log_dir: Path, fake_broker: FakeBroker, option: dict[str, int]
) -> None:
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 200, 10, roll_every=70)
    fake_broker.publish(writer)
    found = source(log_dir, **option)
    partitions = [task.range for task in found.reader(found.schema()).partitions()]
    assert len(partitions) == 7 or "minPartitions" not in option
    assert len(partitions) > 5
    sizes = [one.end - one.start for one in partitions]
    assert max(sizes) < 2 * min(sizes) or "maxRecordsPerPartition" in option
    assert max(sizes) <= 350
    assert offsets(read(**option)) == list(range(2000))


def test_ranges_of_offsets(read: Read, log_dir: Path, fake_broker: FakeBroker) -> None:
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 30, 10, roll_every=11, codecs=[Codec.NONE, Codec.ZSTD])
    fake_broker.publish(writer, log_start=23)
    assert offsets(read()) == list(range(23, 300))
    assert offsets(read(startingOffsets='{"t":{"0":105}}', endingOffsets='{"t":{"0":113}}')) == list(
        range(105, 113)
    )
    assert offsets(read(startingOffsets='{"t":{"0":-2}}', endingOffsets='{"t":{"0":30}}')) == list(
        range(23, 30)
    )
    assert offsets(read(startingOffsets='{"t":{"0":300}}')) == []
    with pytest.raises(OptionError, match="start offset 200 is greater than the end offset 100"):
        read(startingOffsets='{"t":{"0":200}}', endingOffsets='{"t":{"0":100}}')
    with pytest.raises(DataLoss, match=r"log starts at 23.*failOnDataLoss"):
        read(startingOffsets='{"t":{"0":5}}')
    assert offsets(read(startingOffsets='{"t":{"0":5}}', failOnDataLoss=False)) == list(range(23, 300))
    cut = source(log_dir, endingOffsets='{"t":{"0":301}}', failOnDataLoss=False)
    (task,) = cut.reader(cut.schema()).partitions()
    assert (task.range.start, task.range.end) == (23, 300)


def test_ranges_of_time(read: Read, log_dir: Path, fake_broker: FakeBroker) -> None:
    for number in range(2):
        writer = PartitionWriter(log_dir, "t", number)
        fill(writer, 50, 10, value_bytes=100, roll_every=20, codecs=[Codec.NONE, Codec.LZ4])
        fake_broker.publish(writer)
    at = 1_700_000_000_000
    by_partition = f'{{"t":{{"0":{at + 490},"1":{at + 495}}}}}'
    assert offsets(read(startingOffsetsByTimestamp=by_partition)) == [*range(490, 500), *range(495, 500)]


def test_without_a_broker_the_checkpoint_is_the_bound(read: Read, log_dir: Path) -> None:
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 40, 10, roll_every=15)
    end = writer.next_offset
    writer.append(numbered(10, first=end))
    segment = next(iter(sorted(writer.directory.glob("*.log"), reverse=True)))
    segment.write_bytes(segment.read_bytes()[:-7])
    for high_watermark, seen in [(0, 0), (155, 155), (150, 150), (400, 400), (405, 400), (9999, 400)]:
        checkpoint(log_dir, {("t", 0): high_watermark}, {("t", 0): min(high_watermark, 12)})
        assert offsets(read()) == list(range(min(high_watermark, 12), seen)), high_watermark
    checkpoint(log_dir, {})
    assert offsets(read()) == []


def test_directories_that_wait_for_deletion(read: Read, log_dir: Path, fake_broker: FakeBroker) -> None:
    old, writer = PartitionWriter(log_dir, "old"), PartitionWriter(log_dir, "t")
    for each in (old, writer):
        fill(each, 3, 10)
        fake_broker.publish(each)
    old.directory.rename(log_dir / "old-0.0123456789abcdef0123456789abcdef-delete")
    (log_dir / "lost+found").mkdir()
    assert offsets(read()) == list(range(30))
    with pytest.raises(SourceUnavailable, match="topic old is not in the log directory"):
        read("old")


def test_where_a_checkpointed_offset_is(log_dir: Path) -> None:
    writer = PartitionWriter(log_dir, "t")
    ends = {}
    for _ in range(30):
        ends[writer.next_offset] = writer.end
        fill(writer, 1, 10, value_bytes=100)
    writer.roll()
    ends[writer.next_offset] = writer.end
    fill(writer, 1, 10)
    assert {offset: bound_at(writer.directory, [0, 300], offset) for offset in ends} == ends
    assert bound_at(writer.directory, [0, 300], 155) == Bound(155, 0, ends[160].position)


def test_choosing_topics(read: Read, log_dir: Path, fake_broker: FakeBroker) -> None:
    for topic, partitions in (
        *(("a-1", 2), ("a-2", 1), ("b", 1)),
        *(("__consumer_offsets", 1), ("__mpbroker_sinks", 1)),
    ):
        for number in range(partitions):
            writer = PartitionWriter(log_dir, topic, number)
            fill(writer, 1, 3)
            fake_broker.publish(writer)

    def seen(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
        return list(dict.fromkeys((row["topic"], row["partition"]) for row in rows))

    assert seen(read("a-1, b")) == [("a-1", 0), ("a-1", 1), ("b", 0)]
    assert seen(read(subscribePattern="a-.")) == [("a-1", 0), ("a-1", 1), ("a-2", 0)]
    assert seen(read(subscribePattern=".*")) == [("a-1", 0), ("a-1", 1), ("a-2", 0), ("b", 0)]
    # As in Spark's Kafka source the pattern is looked for; jobs have it match the whole name.
    assert seen(read(subscribePattern="-2")) == [("a-2", 0)]
    for pattern, whole in (("a-2|b", ["a-2", "b"]), ("a", []), ("(?i)B|a", ["b"])):
        found = read(subscribePattern=Source(pattern=pattern).options()["subscribePattern"])
        assert [topic for topic, _ in seen(found)] == whole
    assert seen(read(assign='{"a-1":[1],"b":[0]}')) == [("a-1", 1), ("b", 0)]
    with pytest.raises(SourceUnavailable, match="topic missing is not in the log directory"):
        read("missing")
    with pytest.raises(OptionError, match="topic b has no partition 7"):
        read(assign='{"b":[7]}')


def test_a_topic_that_the_broker_does_not_serve(read: Read, log_dir: Path, fake_broker: FakeBroker) -> None:
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 1)
    with pytest.raises(SourceUnavailable, match="t-0 cannot be read: the running broker does not serve it"):
        read()
    fake_broker.publish(writer, flags=PartitionFlag.PARTITION_LIVE | PartitionFlag.PARTITION_OFFLINE)
    with pytest.raises(SourceUnavailable, match="t-0 cannot be read: it is offline"):
        read()


def test_a_schema_with_another_column(log_dir: Path) -> None:
    with pytest.raises(OptionError, match="'x' does not exist"):
        source(log_dir).reader(StructType([StructField("x", StringType())]))


@pytest.mark.parametrize("fail", [True, False])
def test_a_segment_that_goes_while_it_is_the_next(log_dir: Path, fake_broker: FakeBroker, fail: bool) -> None:
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 30, 10, roll_every=10)
    fake_broker.publish(writer)
    found = source(log_dir, failOnDataLoss=fail)
    reader = found.reader(found.schema())
    batches = reader.read(reader.partitions()[0])
    rows = next(batches).to_pylist()
    (writer.directory / "00000000000000000000.log").unlink()
    (writer.directory / "00000000000000000100.log").unlink()
    if fail:
        with pytest.raises(DataLoss, match=r"Cannot read offsets 100 to 199"):
            list(batches)
    else:
        rows += [row for batch in batches for row in batch.to_pylist()]
        assert offsets(rows) == [*range(100), *range(200, 300)]


def test_small_windows_and_batches_larger_than_one(
    log_dir: Path, read: Read, fake_broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped: list[int] = []

    class Recording(mmap.mmap):
        def __new__(cls, fd: int, length: int, **how: int) -> Recording:
            # The public region is mapped too, without an offset.
            if "offset" in how:
                mapped.append(length)
            return super().__new__(cls, fd, length, **how)

    monkeypatch.setattr(mmap, "mmap", Recording)
    monkeypatch.setattr(read_local, "WINDOW_BYTES", 10_000)
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 50, 10, roll_every=30)
    fill(writer, 2, 10, value_bytes=5000)
    fill(writer, 50, 10)
    fake_broker.publish(writer)
    assert offsets(read()) == list(range(1020))
    largest_batch = 10 * 5100
    assert len(mapped) > 5
    assert max(mapped) < largest_batch + mmap.ALLOCATIONGRANULARITY
    for path in writer.directory.glob("*.index"):
        path.unlink()
    assert offsets(read(minPartitions=5)) == list(range(1020))


def test_what_cannot_be_read_is_an_error_and_not_the_end_of_the_process(
    read: Read, log_dir: Path, fake_broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a bad sector, there is nothing behind a page of the mapping."""
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 50, 10)
    fake_broker.publish(writer)
    (segment,) = writer.directory.glob("*.log")

    class Shortened(mmap.mmap):
        def __new__(cls, fd: int, length: int, **how: int) -> Shortened:
            mapped = super().__new__(cls, fd, length, **how)
            if "offset" in how:
                os.truncate(segment, mmap.PAGESIZE)
            return mapped

    size = segment.stat().st_size
    monkeypatch.setattr(mmap, "mmap", Shortened)
    with pytest.raises(OSError, match=rf"bytes 0 to {size} cannot be read, in .*t.*: the disk") as raised:
        read()
    assert raised.value.filename == str(segment)


def test_a_partition_that_has_moved_to_another_log_directory_is_read_there(
    log_dir: Path, tmp_path: Path, fake_broker: FakeBroker
) -> None:
    """Planned in one, and before its tasks run, or between two pieces of one, it is in the other."""
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(log_dir / "meta.properties", other)
    writer = PartitionWriter(log_dir, "t", 0)
    fill(writer, 60, 20, roll_every=25)
    fake_broker.publish(writer)
    both = source(Path(f"{log_dir},{other}"))
    reader = both.reader(both.schema())
    (partition,) = reader.partitions()
    shutil.move(log_dir / "t-0", other)
    rows = [row for batch in reader.read(partition) for row in batch.to_pylist()]
    assert offsets(rows) == list(range(1200))
    found = reader.read(partition)
    rows = next(found).to_pylist()
    shutil.move(other / "t-0", log_dir)
    rows += [row for batch in found for row in batch.to_pylist()]
    assert offsets(rows) == list(range(1200))


def test_a_partition_that_is_always_somewhere_else_is_not_looked_for_for_ever(
    log_dir: Path, tmp_path: Path, fake_broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(log_dir / "meta.properties", other)
    writer = PartitionWriter(log_dir, "t", 0)
    fill(writer, 3)
    fake_broker.publish(writer)
    both = source(Path(f"{log_dir},{other}"))
    reader = both.reader(both.schema())
    (partition,) = reader.partitions()
    moves: list[Path] = []

    def leaves(directory: Path, *_: object) -> None:
        assert len(moves) < 1000
        moves.append(directory)
        shutil.move(directory, other if directory.parent == log_dir else log_dir)
        raise SegmentGone(f"{directory} is gone")

    monkeypatch.setattr(read_local, "segment_ranges", leaves)
    with pytest.raises(DataLoss, match=r"in another log directory than .* again and again"):
        list(reader.read(partition))
    assert len(moves) == read_local.TRIES + 1
