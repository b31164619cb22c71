"""Rows become files: of one partition of the table each, sorted, and few of them wait in memory."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyiceberg.types import TimestampType

from spark_integration.tables import data_files, values
from spark_integration.tables.data_files import RowFiles, data_file, row_files
from tests.support.table_world import DAY_MS, LOCATION, World, record_batch


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(monkeypatch)
    world.life().run(once=True)
    return world


@pytest.fixture
def files(world: World) -> RowFiles:
    table = world.table()
    return row_files(table, values.plan_rows(values.value_settings({}, Path()), table.schema()).rows.of)


def test_a_file_has_a_day_and_is_sorted(world: World, files: RowFiles) -> None:
    batches = [
        record_batch("id", number, start, [(day * DAY_MS, b"x") for day in (0, 1, 0)])
        for number, start in ((1, 3), (0, 6), (1, 0), (0, 0))
    ]
    found = {one.url.split("/")[-2]: one for one in files.files(iter(batches))}
    assert list(found) == ["_timestamp_day=1970-01-01", "_timestamp_day=1970-01-02"]
    url = found["_timestamp_day=1970-01-01"].url
    rows = pq.read_table(pa.BufferReader(world.memory.get(url.removeprefix(f"{LOCATION}/"))))
    places = list(zip(rows["_partition_index"].to_pylist(), rows["_offset"].to_pylist(), strict=True))
    assert places == sorted(places)
    assert len(places) == 8
    assert rows.schema.field("_offset").metadata == {b"PARQUET:field_id": b"3"}


def test_rows_wait_in_bounded_memory(files: RowFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "WAITING_BYTES", 4000)
    batches = (
        record_batch("id", 0, start, [(day * DAY_MS, b"x" * 100) for day in range(10)])
        for start in range(0, 100, 10)
    )
    found = list(files.files(batches))
    assert len(found) > 10
    assert sum(one.footer.num_rows for one in found) == 100


def test_times_that_python_has_not(world: World, files: RowFiles) -> None:
    """A producer may send any time: microseconds for milliseconds make the year 55840."""
    times = [-(10**14), 0, 1_700_000_000_000_000]
    batch = record_batch("id", 0, 0, [(time, b"x") for time in times])
    found = list(files.files(iter([batch])))
    assert [one.url.split("/")[-2] for one in found] == [
        "_timestamp_day=null",
        "_timestamp_day=1970-01-01",
    ]
    table = world.table()
    assert [data_file(table, one).partition[0] for one in found] == [None, 0]


def test_a_column_of_such_times_has_no_bounds(world: World) -> None:
    """JSON's 9999-12-31T23:59:59-01:00 is in the year 10000 of UTC."""
    table = world.table()
    with table.update_schema() as update:
        update.add_column("at", TimestampType())
    files = row_files(table)
    late = pa.array([1_700_000_000_000_000_000], pa.timestamp("us"))
    columns = {name: pa.nulls(1, files.schema.field(name).type) for name in files.schema.names}
    batch = pa.RecordBatch.from_pydict({**columns, "at": late}, schema=files.schema)
    (written,) = files.files(iter([batch]))
    found = data_file(table, written)
    at = table.schema().find_field("at").field_id
    assert found.value_counts[at] == 1
    assert at not in found.lower_bounds
