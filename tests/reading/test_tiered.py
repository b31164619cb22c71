"""Partitions whose log starts in an object store: files give what they have, the broker the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from mpbroker.observe.at_rest import sample
from mpbroker.reading import read_remote, remote_catalog
from mpbroker.reading.columns import Columns
from mpbroker.reading.errors import CorruptLog, DataLoss, SourceUnavailable
from mpbroker.reading.options import ReadOptions, TopicPartition
from mpbroker.reading.plan import TaskRange
from mpbroker.storage.names import REMOTE_SEGMENTS, segment_name
from mpbroker.storage.remote_segments import RemoteSegment, write_remote_segments
from tests.reading.conftest import Published
from tests.support.reading_queries import OFFSETS, offsets_of, planned, query
from tests.support.spark_logs import FakeBroker, PartitionWriter, checkpoint, fill

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:1"}
T0 = 1_700_000_000_000


@pytest.fixture(autouse=True)
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The ranges that were fetched. The broker that is played has every record."""
    ranges: list[tuple[int, int]] = []

    def fetch(task: TaskRange, _columns: Columns, _options: ReadOptions) -> Iterator[pa.RecordBatch]:
        assert task.files is None
        ranges.append((task.start, task.end))
        yield pa.record_batch([pa.array(range(task.start, task.end), pa.int64())], schema=OFFSETS)

    class Brokers:
        def __init__(self, options: ReadOptions) -> None:
            assert options.bootstrap_servers

        def offsets_for_times(self, wanted: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
            return {one: time_ms - T0 for one, time_ms in wanted.items()}

        def close(self) -> None: ...

    monkeypatch.setattr(read_remote, "read_remote", fetch)
    monkeypatch.setattr(remote_catalog, "RemoteCatalog", Brokers)
    return ranges


def tier(writer: PartitionWriter, *bases: int, keeps_files: bool = False) -> None:
    """Let the store have these segments of 50 offsets, and local retention take their files."""
    segments = []
    for base in bases:
        path = writer.directory / segment_name(base)
        segments.append(
            RemoteSegment(base, base + 50, path.stat().st_size, T0 + base + 49, base.to_bytes(16, "big"))
        )
    write_remote_segments(writer.directory, segments)
    for base in () if keeps_files else bases:
        for path in writer.directory.glob(f"{base:020}.*"):
            path.unlink()


@pytest.fixture
def tiered(writer: Published) -> Published:
    """Offsets 0 to 199, of which 0 to 99 are in the store alone."""
    writer.add(20, roll_every=5)
    tier(writer, 0, 50)
    return writer


def test_each_record_comes_once(tiered: Published, fetched: list[tuple[int, int]]) -> None:
    options = query(tiered.log_dir, **SERVERS)
    tasks = planned(options)
    assert [(task.start, task.end, task.files is None) for task in tasks] == [
        (0, 100, True),
        (100, 200, False),
    ]
    assert tasks[0].topic_id == tiered.topic_id
    assert offsets_of(tasks, options) == list(range(200))
    assert fetched == [(0, 100)]


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
@pytest.mark.parametrize(("start", "end"), [(0, 200), (30, 100), (99, 101), (100, 200), (120, 130), (0, 1)])
def test_any_range_in_any_parts(
    tiered: Published, fetched: list[tuple[int, int]], start: int, end: int, parts: int
) -> None:
    limits = {
        "startingOffsets": f'{{"t": {{"0": {start}}}}}',
        "endingOffsets": f'{{"t": {{"0": {end}}}}}',
        "minPartitions": parts,
    }
    options = query(tiered.log_dir, **SERVERS, **limits)
    tasks = planned(options)
    assert len(tasks) <= max(parts, 2)
    assert offsets_of(tasks, options) == list(range(start, end))
    assert sum(end - start for start, end in fetched) == max(min(end, 100) - start, 0)


def test_nobody_can_be_asked(tiered: Published) -> None:
    text = r"offsets 0 to 99 of t-0 are in the object store and not in .*servers.*, or begin at offset 100"
    for options in (
        query(tiered.log_dir),
        query(tiered.log_dir, failOnDataLoss="false"),
        query(tiered.log_dir, readMode="local", **SERVERS),
    ):
        with pytest.raises(SourceUnavailable, match=text):
            planned(options)
    options = query(tiered.log_dir, startingOffsets='{"t": {"0": 100}}')
    assert offsets_of(planned(options), options) == list(range(100, 200))


def test_times_are_looked_up_where_the_records_are(tiered: Published) -> None:
    for wanted in (0, 99, 100, 150):
        options = query(tiered.log_dir, startingTimestamp=T0 + wanted, **SERVERS)
        assert offsets_of(planned(options), options) == list(range(wanted, 200))
    with pytest.raises(SourceUnavailable, match="t-0: records of 1700000000099 ms or later are in"):
        planned(query(tiered.log_dir, startingTimestamp=T0 + 99))
    options = query(tiered.log_dir, startingTimestamp=T0 + 100)
    assert offsets_of(planned(options), options) == list(range(100, 200))


@pytest.mark.parametrize("fail", ["true", "false"])
def test_files_that_go_after_the_plan(writer: Published, fetched: list[tuple[int, int]], fail: str) -> None:
    writer.add(20, roll_every=5)
    options = query(writer.log_dir, failOnDataLoss=fail, **SERVERS)
    tasks = planned(options)
    alone = query(writer.log_dir, failOnDataLoss=fail)
    tier(writer, 0, 50)
    assert offsets_of(tasks, options) == list(range(200))
    assert fetched == [(0, 100)]
    with pytest.raises(SourceUnavailable, match=r"t-0 offsets \[0, 100\) are in the broker's object store"):
        offsets_of(tasks, alone)


def test_what_is_lost_is_reported_as_ever(writer: Published) -> None:
    writer.add(20, roll_every=5)
    options = query(writer.log_dir, **SERVERS)
    tasks = planned(options)
    tier(writer, 0, 50)
    write_remote_segments(writer.directory, [])
    with pytest.raises(DataLoss, match="Cannot read offsets 0 to 99"):
        offsets_of(tasks, options)


def at_rest(log_dir: Path, start: int | None = None) -> PartitionWriter:
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 20, roll_every=5)
    tier(writer, 0, 50)
    checkpoint(log_dir, {("t", 0): 200}, {} if start is None else {("t", 0): start})
    return writer


@pytest.mark.parametrize(("checkpointed", "start"), [(None, 0), (0, 0), (60, 60), (100, 100), (120, 120)])
def test_the_log_starts_in_the_store_without_a_broker_too(
    log_dir: Path, checkpointed: int | None, start: int
) -> None:
    at_rest(log_dir, checkpointed)
    options = query(log_dir, **SERVERS)
    assert offsets_of(planned(options), options) == list(range(start, 200))
    seen, _ = sample([str(log_dir)])
    assert [(one.log_start_offset, one.log_end_offset) for one in seen.partitions] == [(start, 200)]
    if start < 100:
        with pytest.raises(SourceUnavailable, match=f"offsets {start} to 99 of t-0 are in the object store"):
            planned(query(log_dir))
    else:
        options = query(log_dir)
        assert offsets_of(planned(options), options) == list(range(start, 200))


def test_a_damaged_file_is_named(log_dir: Path) -> None:
    writer = at_rest(log_dir)
    (writer.directory / REMOTE_SEGMENTS).write_bytes(b"x" * 100)
    with pytest.raises(CorruptLog, match=r"t-0 is damaged: .*mpbroker\.remote is damaged"):
        planned(query(log_dir))


def test_partitions_that_are_not_tiered_have_no_store(writer: Published, fake_broker: FakeBroker) -> None:
    writer.add(4)
    options = query(writer.log_dir, **SERVERS)
    assert [task.files is None for task in planned(options)] == [False]
    assert fake_broker is writer.broker
