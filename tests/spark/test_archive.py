"""The archive: each record once, whatever befalls topics, jobs and files; readers see whole runs only."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.dataset as ds  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from mpbroker.reading.errors import DataLoss
from spark_integration.jobs import archive as job
from spark_integration.jobs import lake
from spark_integration.jobs.archive import ArchiveSettings, Slice, archive, cut, where_to_begin, without
from spark_integration.jobs.compact import compact
from spark_integration.jobs.frame import JobError, Silent, Source, sentence_of
from spark_integration.jobs.lake import Span
from tests.support.spark_logs import FakeBroker, PartitionWriter, fill

HOUR_MS = 3_600_000


class Heard(Silent):
    """A notice that keeps what it hears."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def settings(log_dir: Path, tmp_path: Path) -> ArchiveSettings:
    return ArchiveSettings(Source("a,b", log_dir=str(log_dir)), tmp_path / "lake")


@pytest.fixture
def writers(log_dir: Path, fake_broker: FakeBroker) -> list[PartitionWriter]:
    """Two partitions of topic a, one of b."""
    made = [
        PartitionWriter(log_dir, topic, number, topic_id=topic.encode() * 16)
        for topic, number in (("a", 0), ("a", 1), ("b", 0))
    ]
    append(made, fake_broker, 3)
    return made


def append(writers: list[PartitionWriter], broker: FakeBroker, batches: int) -> None:
    for writer in writers:
        fill(writer, batches)
        broker.publish(writer)


def rows(spark: SparkSession, target: Path) -> list[tuple[str, int, int]]:
    frame = spark.read.parquet(str(target))
    return sorted((row.topic, row.partition, row.offset) for row in frame.collect())


def once(writers: list[PartitionWriter]) -> list[tuple[str, int, int]]:
    return [(w.topic, w.partition, offset) for w in writers for offset in range(w.next_offset)]


def test_each_record_is_archived_once(
    spark: SparkSession,
    settings: ArchiveSettings,
    writers: list[PartitionWriter],
    fake_broker: FakeBroker,
) -> None:
    assert archive(spark, settings).records == 90
    append(writers[1:], fake_broker, 2)
    assert archive(spark, settings).records == 40
    assert archive(spark, settings).runs == 0
    target = settings.target
    assert rows(spark, target) == rows(spark, target / "data") == once(writers)
    days = ds.dataset(target / "data", partitioning="hive").to_table()
    assert set(days["date"].to_pylist()) == {"2023-11-14"}
    assert {len(topic_id) for topic_id in days["topicId"].to_pylist()} == {22}
    row = spark.read.parquet(str(target)).where("topic = 'b' and offset = 7").first()
    assert row is not None
    assert (bytes(row.key), bytes(row.value).rstrip(b"."), row.timestampType) == (b"k7", b"v7", 0)


def test_a_long_way_is_cut_into_runs(
    spark: SparkSession, settings: ArchiveSettings, writers: list[PartitionWriter]
) -> None:
    short = ArchiveSettings(settings.source, settings.target, ("topic",), records_per_run=50)
    assert archive(spark, short).runs == 2
    assert rows(spark, settings.target) == once(writers)


def test_a_topic_made_anew_goes_on_from_its_start(
    spark: SparkSession,
    settings: ArchiveSettings,
    writers: list[PartitionWriter],
    log_dir: Path,
    fake_broker: FakeBroker,
) -> None:
    archive(spark, settings)
    shutil.rmtree(writers[2].directory)
    anew = PartitionWriter(log_dir, "b", 0, topic_id=b"B" * 16)
    append([anew], fake_broker, 1)
    heard = Heard()
    assert archive(spark, settings, heard).records == 10
    assert heard.said == ["topic b was recreated: its archive continues with the new one"]
    found = spark.read.parquet(str(settings.target)).where("topic = 'b'").groupBy("topicId").count()
    assert sorted(row["count"] for row in found.collect()) == [10, 30]
    assert archive(spark, settings, heard).records == 0
    assert len(heard.said) == 1


def test_a_topic_made_anew_during_a_run(
    spark: SparkSession,
    settings: ArchiveSettings,
    writers: list[PartitionWriter],
    log_dir: Path,
    fake_broker: FakeBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the look at its bounds and Spark's plan: with as many records, nothing else would tell."""
    write = job._Archiving._write

    def made_anew(self: object, frame: DataFrame, place: Path) -> None:
        shutil.rmtree(writers[2].directory)
        append([PartitionWriter(log_dir, "b", 0, topic_id=b"B" * 16)], fake_broker, 3)
        write(self, frame, place)  # type: ignore[arg-type]

    monkeypatch.setattr(job._Archiving, "_write", made_anew)
    with pytest.raises(JobError, match=r"topic b was deleted or recreated.*Run the job again"):
        archive(spark, settings)
    assert list((settings.target / "data").iterdir()) == []
    monkeypatch.undo()
    assert archive(spark, settings).records == 90


def test_records_that_are_lost(
    spark: SparkSession,
    settings: ArchiveSettings,
    writers: list[PartitionWriter],
    fake_broker: FakeBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without failOnDataLoss the state never passes over what was not written: it may come back."""
    tolerant = replace(settings, source=replace(settings.source, fail_on_data_loss=False))
    write = job._Archiving._write

    def skips(self: job._Archiving, frame: DataFrame, place: Path) -> None:
        write(self, frame.where("topic = 'a'"), place)

    with monkeypatch.context() as patch:
        patch.setattr(job._Archiving, "_write", skips)
        assert archive(spark, tolerant).records == 60
    assert archive(spark, tolerant).records == 30
    append(writers[:1], fake_broker, 1)
    fake_broker.publish(writers[0], log_start=35)
    with pytest.raises(PySparkException) as raised:
        archive(spark, settings)
    assert re.match(r"Cannot read offsets 30 to 34 of a-0.*failOnDataLoss", sentence_of(raised.value))
    assert archive(spark, tolerant).records == 5
    assert archive(spark, tolerant).runs == 0


def test_a_log_that_ends_before_its_archive(
    spark: SparkSession,
    settings: ArchiveSettings,
    writers: list[PartitionWriter],
    fake_broker: FakeBroker,
) -> None:
    archive(spark, settings)
    fake_broker.publish(writers[0], writers[0].end._replace(offset=20))
    with pytest.raises(DataLoss, match="a-0 is archived up to offset 30, but may be read up to 20 only"):
        archive(spark, settings)


def test_two_at_once(settings: ArchiveSettings) -> None:
    refused = pytest.raises(JobError, match=rf"process {os.getpid()} on ")
    with lake.opened(settings.target), refused, lake.opened(settings.target):
        pytest.fail("two jobs have the archive")
    with lake.opened(settings.target):
        assert (settings.target / "_lock").exists()


def test_directories_that_are_something_else(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JobError, match="has files, but is not an archive"), lake.opened(tmp_path):
        pytest.fail("an archive between somebody's files")
    with pytest.raises(JobError, match="is not a directory"), lake.opened(tmp_path / "file"):
        pytest.fail("a file for an archive")


def test_compaction(
    spark: SparkSession,
    settings: ArchiveSettings,
    writers: list[PartitionWriter],
    fake_broker: FakeBroker,
) -> None:
    for _ in range(3):
        archive(spark, settings)
        append(writers, fake_broker, 1)
    target = settings.target
    before = rows(spark, target)
    pinned = spark.read.parquet(str((target / "data").resolve()))
    done = compact(spark, target)
    assert (done.runs, done.records, done.files_after) == (3, len(before), 2)
    assert rows(spark, target) == before
    assert pinned.count() == len(before)
    assert compact(spark, target).runs == 0
    assert archive(spark, settings).records == 30
    assert rows(spark, target) == once(writers)
    # What is large enough stays the very file.
    sizes = {file: file.stat().st_ino for file in (target / "data").rglob("*.parquet")}
    kept = compact(spark, target, file_bytes=1)
    assert kept.runs == 0
    assert {file: file.stat().st_ino for file in (target / "data").rglob("*.parquet")} == sizes


@pytest.mark.usefixtures("writers")
def test_files_that_somebody_changed_are_not_compacted(
    spark: SparkSession, settings: ArchiveSettings
) -> None:
    archive(spark, settings)
    next((settings.target / "data").rglob("topic=b/**/*.parquet")).unlink()
    with pytest.raises(JobError, match="The archive is unchanged"):
        compact(spark, settings.target)


# ---- killed anywhere


def write_run(place: Path, start: int, end: int) -> None:
    (place / "topic=t").mkdir(parents=True)
    pq.write_table(pa.table({"offset": range(start, end)}), place / "topic=t" / f"part-{start}.parquet")


def add_run(path: Path, records: int = 10) -> None:
    """What the job does around Spark's writing."""
    with lake.opened(path) as opened:
        start = opened.ends().get(("t", "id", 0), 0)
        place = opened.new_place()
        write_run(place, start, start + records)
        opened.commit(place, [Span("t", "id", 0, start, start + records, records)])


def compact_runs(path: Path) -> None:
    with lake.opened(path) as opened:
        old = opened.runs()[-2:]
        spans = [span for run in old for span in run.state.spans]
        place = opened.new_place()
        write_run(place, min(span.start for span in spans), max(span.end for span in spans))
        opened.replace(old, place)


def killed_at(step: int, work: Callable[[], None]) -> bool:
    """Runs the work in a process of its own; whether SIGKILL ended it before the step-th change on disk."""
    child = os.fork()
    if child == 0:
        left = iter(range(step, -1, -1))

        def counted(change: Callable[..., object]) -> Callable[..., object]:
            def made(*args: object, **how: object) -> object:
                if next(left) == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return change(*args, **how)

            return made

        for name in ("rename", "mkdir", "symlink", "link", "fsync", "unlink", "rmdir"):
            setattr(os, name, counted(getattr(os, name)))
        try:
            work()
        except BaseException:  # noqa: BLE001 - the fork exits in any case
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def offsets(path: Path) -> list[int]:
    """What a reader of the directory gets; nothing where no run was ever committed."""
    found = ds.dataset(path / "data", partitioning="hive") if (path / "data").exists() else None
    return sorted(found.to_table(columns=["offset"])["offset"].to_pylist()) if found and found.files else []


@pytest.mark.parametrize("runs_before", [0, 2])
def test_a_run_that_is_killed_between_any_two_steps(tmp_path: Path, runs_before: int) -> None:
    step = 0
    while True:
        path = tmp_path / str(step)
        for _ in range(runs_before):
            add_run(path)
        whole = list(range(runs_before * 10))
        killed = killed_at(step, lambda path=path: add_run(path))
        seen = offsets(path)
        assert seen in (whole, [*whole, *range(len(whole), len(whole) + 10)])
        add_run(path)
        assert offsets(path) == list(range(len(seen) + 10))
        if not killed:
            break
        step += 1
    assert step > 8


def test_a_compaction_that_is_killed_between_any_two_steps(tmp_path: Path) -> None:
    step = 0
    while True:
        path = tmp_path / str(step)
        for _ in range(3):
            add_run(path)
        killed = killed_at(step, lambda path=path: compact_runs(path))
        assert offsets(path) == list(range(30))
        compact_runs(path)
        add_run(path)
        assert offsets(path) == list(range(40))
        assert len(list((path / "_generations").iterdir())) == 2
        if not killed:
            break
        step += 1
    assert step > 15


def test_an_archive_that_has_lost_its_link_is_not_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    add_run(path)
    add_run(path)
    compact_runs(path)
    generation = (path / "data").readlink()
    (path / "data").unlink()
    with pytest.raises(JobError, match=f"ln -s {generation} {path}/data"), lake.opened(path):
        pass
    (path / "data").symlink_to(generation)
    add_run(path)
    assert offsets(path) == list(range(30))


def test_the_lock_of_a_killed_job_is_free(tmp_path: Path) -> None:
    assert killed_at(5, lambda: add_run(tmp_path / "lake"))
    with (tmp_path / "lake" / "_lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


# ---- arithmetic of offsets


def test_slices() -> None:
    whole = Slice({("t", 0): (0, 100), ("t", 1): (50, 60), ("u", 0): (7, 8)}, {"t": "x", "u": None})
    assert cut(whole, 111) == whole
    seen: dict[tuple[str, int], list[int]] = {one: [] for one in whole.spans}
    left = whole
    while left.offsets:
        now = cut(left, 10)
        assert 0 < now.offsets <= 12
        for one, (start, end) in now.spans.items():
            seen[one] += range(start, end)
        left = without(left, now)
    assert seen == {one: list(range(*span)) for one, span in whole.spans.items()}
    edges = whole.edges()
    assert json.loads(edges["assign"]) == {"t": [0, 1], "u": [0]}
    assert json.loads(edges["endingOffsets"]) == {"t": {"0": 100, "1": 60}, "u": {"0": 8}}


@pytest.mark.parametrize(
    ("reached", "topic_id", "begins", "is_new"),
    [
        ({}, "x", 3, False),
        ({("t", "x", 0): 9}, "x", 9, False),
        # A new partition of a known topic.
        ({("t", "x", 1): 9}, "x", 3, False),
        ({("t", "x", 0): 9}, "y", 3, True),
        ({("t", "x", 0): 9, ("t", "y", 1): 4}, "y", 3, False),
        # Who was asked knows of no ids, now or then.
        ({("t", "x", 0): 9}, None, 9, False),
        ({("t", None, 0): 9}, "x", 9, False),
    ],
)
def test_where_a_log_goes_on(
    reached: dict[lake.Log, int], topic_id: str | None, begins: int, is_new: bool
) -> None:
    assert where_to_begin(reached, ("t", topic_id, 0), 3) == (begins, is_new)
