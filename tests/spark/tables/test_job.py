"""The job on Spark: from log directories into tables that others read."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import duckdb
import polars as pl
import pytest
from pyspark.sql import DataFrame, SparkSession

from mpbroker.storage.checkpoints import write_epochs
from spark_integration.jobs.frame import JobError
from spark_integration.tables import job, store_io
from spark_integration.tables.job import TablesJob
from spark_integration.tables.settings import read_settings
from tests.support.polling import until
from tests.support.spark_here import Here
from tests.support.spark_logs import FakeBroker, PartitionWriter, fill

pytestmark = pytest.mark.filterwarnings("ignore:Iceberg scan planning:polars.exceptions.PerformanceWarning")
DECLARED = """
[source]
"log.dir" = "{log_dir}"
[lake]
location = "file://{lake}"
[job]
offsets_per_commit = 60
[[tables]]
topic = "orders"
name = "shop.orders"
[[tables]]
pattern = "visit.*"
name = "shop.{{topic}}"
partition_by = "none"
format = "json"
schema = "id bigint"
"""


@pytest.fixture
def declared(tmp_path: Path, log_dir: Path) -> Path:
    (tmp_path / "lake").mkdir()
    store_io.store_of.cache_clear()
    file = tmp_path / "tables.toml"
    file.write_text(DECLARED.format(log_dir=log_dir, lake=tmp_path / "lake"))
    return file


@pytest.fixture
def writers(log_dir: Path, fake_broker: FakeBroker) -> list[PartitionWriter]:
    writers = [PartitionWriter(log_dir, "orders", number, topic_id=b"o" * 16) for number in range(2)]
    for writer in writers:
        fill(writer, 4)
        fake_broker.publish(writer)
    return writers


def newest(lake: Path, name: str) -> str:
    metadata = lake / "shop" / name / "metadata"
    return str(metadata / f"v{(metadata / 'version-hint.text').read_text()}.metadata.json")


def places(lake: Path, name: str = "orders") -> Counter[tuple[int, int]]:
    """What DuckDB finds in what Polars reads from the files alone."""
    frame = pl.scan_iceberg(newest(lake, name)).collect()  # noqa: F841 - DuckDB finds it by its name
    return Counter(duckdb.sql("select _partition_index, _offset from frame").fetchall())


def written(writers: list[PartitionWriter]) -> Counter[tuple[int, int]]:
    return Counter((one.partition, offset) for one in writers for offset in range(one.next_offset))


def test_topics_become_tables(
    here: Here,
    declared: Path,
    log_dir: Path,
    writers: list[PartitionWriter],
    fake_broker: FakeBroker,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the command, twice; a value that is no JSON is a row with its error."""
    visits = PartitionWriter(log_dir, "visits")
    fill(visits, 1)
    fake_broker.publish(visits)
    assert here("run", "--tables", str(declared), "--once", "--json", group="tables") == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["records"], summary["commits"], summary["error_rows"]) == (90, 3, 10)
    lake = declared.parent / "lake"
    assert places(lake) == written(writers)
    found = pl.scan_iceberg(newest(lake, "visits")).collect()
    assert found["id"].null_count() == found["_raw"].len() == 10
    fill(writers[0], 1)
    fake_broker.publish(writers[0])
    assert here("run", "--tables", str(declared), "--once", "--json", group="tables") == 0
    assert places(lake) == written(writers)


def test_a_log_that_was_restored(
    spark: SparkSession, declared: Path, writers: list[PartitionWriter], fake_broker: FakeBroker
) -> None:
    """A partition goes back to offset 15, as its leader epochs say, and on to 45."""
    TablesJob(spark, read_settings(declared)).run(once=True)
    write_epochs(writers[0].directory, [(0, 0), (1, 15)])
    writers[0].next_offset = 40
    fill(writers[0], 1, per_batch=5)
    fake_broker.publish(writers[0])
    TablesJob(spark, read_settings(declared)).run(once=True)
    lake = declared.parent / "lake"
    assert places(lake) == written(writers)
    metadata = json.loads(Path(newest(lake, "orders")).read_text())
    operations = [one["summary"]["operation"] for one in metadata["snapshots"]]
    assert operations == ["append", "append", "overwrite"]


def test_a_failure_of_one_table_leaves_the_others(
    spark: SparkSession, declared: Path, writers: list[PartitionWriter]
) -> None:
    declared.write_text(f'{declared.read_text()}\n[[tables]]\ntopic = "missing"\nname = "a.missing"\n')
    with pytest.raises(JobError, match=r"a\.missing: topic missing is not in the log directory"):
        TablesJob(spark, read_settings(declared)).run(once=True)
    assert places(declared.parent / "lake") == written(writers)


def test_catalogs_of_topics_are_lent_until_topics_are_looked_up_again(
    declared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Mock] = []
    monkeypatch.setattr(job, "open_topics", lambda _: opened.append(Mock()) or opened[-1])
    topics = job._Topics(read_settings(declared))
    with topics.catalog() as first:
        with topics.catalog() as other:
            assert first is not other
        with topics.catalog() as again:
            assert again is other
        topics.renew()
    with topics.catalog() as new:
        assert new not in (first, other)
    assert [one.close.call_count for one in opened] == [1, 1, 0]
    topics.close()
    assert new.close.call_count == 1


def test_a_slow_table_holds_up_no_other(
    spark: SparkSession,
    declared: Path,
    log_dir: Path,
    writers: list[PartitionWriter],
    fake_broker: FakeBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rows of one are decoded when the other has its commit."""
    visits = PartitionWriter(log_dir, "visits")
    fill(visits, 1)
    fake_broker.publish(visits)
    commit = declared.parent / "lake" / "shop" / "visits" / "metadata" / "v2.metadata.json"
    write = job.write

    def slow(frame: DataFrame, table: Any, decode: Any) -> Any:
        def late(batch: Any) -> Any:
            until(commit.exists, "the other table has its commit")
            return decode(batch)

        return write(frame, table, late if table.name()[-1] == "orders" else decode)

    monkeypatch.setattr(job, "write", slow)
    found = TablesJob(spark, read_settings(declared))
    found.run(once=True)
    assert places(declared.parent / "lake") == written(writers)
    assert (found.done.commits, found.done.rows) == (3, 90)
