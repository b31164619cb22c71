"""Compaction: fewer files with the same rows, against appends, other compactions and other schemas."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from pyiceberg.types import LongType
from pyspark.sql import SparkSession

from spark_integration.jobs.frame import JobError
from spark_integration.tables import compaction
from spark_integration.tables.catalog import LakeSettings, open_catalog
from spark_integration.tables.compaction import FILES_MIN, Rewriting, compact, groups, try_replace
from spark_integration.tables.data_files import data_file, row_files
from spark_integration.tables.spans import covered
from tests.spark.tables.made_tables import BY_DAY, NAME, SCHEMA, append, lake, made_table, offsets

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def filled(directory: Path, files: int, day: int = 30) -> Table:
    table = made_table(lake(directory))
    for number in range(files):
        append(table, number, number + 1, day=day)
    return table


def paths(table: Table) -> list[str]:
    return sorted(task.file.file_path for task in table.refresh().scan().plan_files())


def rewritten(table: Table, urls: list[str]) -> object:
    return data_file(table, Rewriting(row_files(table)).rewrite(urls))


def test_small_files_become_one_and_a_try_that_loses_leaves_none(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(tmp_path / "lake", FILES_MIN)
    append(table, FILES_MIN, FILES_MIN + 1, day=29)
    before, there = offsets(table), paths(table)
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "try_replace", lambda *_: False)
        assert compact(spark, table) == compaction.Compacted()
    files = {path.name for path in (tmp_path / "lake" / "lake" / "orders" / "data").rglob("*.parquet")}
    assert files == {url.rpartition("/")[2] for url in there}
    done = compact(spark, table)
    assert (done.files_before, done.files_after) == (FILES_MIN, 1)
    assert offsets(table) == before
    assert len(paths(table)) == 2, "one file of another day is left alone"
    summary = table.current_snapshot().summary
    assert summary.operation.value == "replace", "readers of changes pass over it"
    assert covered(table).ends()[None, 0].end == FILES_MIN + 1
    assert compact(spark, table) == compaction.Compacted()


def test_rows_of_a_new_file_are_in_order_with_the_columns_of_now(tmp_path: Path) -> None:
    table = filled(tmp_path / "lake", 3)
    with table.update_schema() as update:
        update.add_column("new", LongType())
    urls = paths(table)
    made = rewritten(table, urls)
    with table.io.new_input(made.file_path).open() as stream:
        rows = pq.read_table(stream)
    assert rows["new"].null_count == rows["_headers"].null_count == rows.num_rows == 6
    places = list(zip(rows["_partition_index"].to_pylist(), rows["_offset"].to_pylist(), strict=True))
    assert places == sorted(places)
    assert made.partition == next(iter(table.scan().plan_files())).file.partition


def test_a_column_that_somebody_renamed_or_made_anew_is_left_alone(tmp_path: Path) -> None:
    table = filled(tmp_path / "lake", 2)
    with table.update_schema() as update:
        update.rename_column("value", "body")
    with pytest.raises(JobError, match="column value"):
        rewritten(table, paths(table))
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("body")
        update.add_column("value", LongType())
    with pytest.raises(JobError, match="column value"):
        rewritten(table, paths(table))


def test_an_append_at_the_same_time_stays(tmp_path: Path) -> None:
    table = filled(tmp_path / "lake", 3)
    old = [task.file for task in table.scan().plan_files()]
    made = rewritten(table, [one.file_path for one in old])
    append(lake(tmp_path / "lake").load_table(NAME), 3, 4)
    assert try_replace(table, old, [made])
    assert offsets(table) == [(number, offset) for number in (0, 1) for offset in range(4)]
    assert len(paths(table)) == 2


def test_of_two_compactions_of_one_file_one_counts(tmp_path: Path) -> None:
    table = filled(tmp_path / "lake", 3)
    other = lake(tmp_path / "lake").load_table(NAME)
    old = [task.file for task in table.scan().plan_files()]
    made = [rewritten(table, [one.file_path for one in old]) for _ in range(2)]
    assert try_replace(other, old, made[:1])
    assert not try_replace(table, old, made[1:])
    assert paths(table) == [made[0].file_path]


def test_what_fills_a_file_is_due_and_what_is_large_is_not(tmp_path: Path) -> None:
    table = filled(tmp_path / "lake", 7)
    size = max(task.file.file_size_in_bytes for task in table.scan().plan_files())
    first = [[int(file.lower_bounds[2][0]) for file in group] for group in groups(table, 3 * size)]
    assert first[0][:3] == [0, 1, 2], "files that follow each other in the log"
    assert all(len(group) in (3, 4) for group in first)
    assert groups(table, size) == [], "three quarters of a file are enough"
    assert groups(table, 100 * size) == [], "so few files of a day are left for later"


def test_executors_get_no_secret_of_the_catalog(tmp_path: Path) -> None:
    where = LakeSettings(
        tmp_path.as_uri(), {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "token": "pw-1234"}
    )
    catalog = open_catalog(where)
    catalog.create_namespace("lake")
    table = catalog.create_table(NAME, SCHEMA, location=where.url(NAME), partition_spec=BY_DAY)
    append(table, 0, 1)
    rewriting = Rewriting(row_files(table))
    assert b"pw-1234" not in pickle.dumps(rewriting)
    assert rewriting.rewrite(paths(table)).footer.num_rows == 2
    catalog.close()


def test_a_table_without_metrics_has_its_partitions(tmp_path: Path) -> None:
    """Else readers that choose by time would pass over its files."""
    table = made_table(lake(tmp_path / "lake"), **{"write.metadata.metrics.default": "none"})
    for day in (29, 30):
        append(table, day, day + 1, day=day)
    later = table.scan(row_filter="_timestamp >= '2026-11-30T00:00:00+00:00'").to_arrow()
    assert later["_offset"].to_pylist() == [30, 30]
    assert [len(group) for group in groups(table, 1 << 20, files_min=1)] == [1, 1]
