"""An audit's view of segment files that are replaced between its plan and its tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mpbroker.reading.headers import headers, readable_logs
from mpbroker.storage.names import segment_name
from mpbroker.storage.scan import batches
from tests.reading.conftest import Published
from tests.support.reading_queries import query
from tests.support.spark_logs import fill


@pytest.fixture(autouse=True)
def _filled(writer: Published) -> None:
    writer.add(10)


def rows(
    log_dir: Path, after_the_plan: Callable[[], None] = lambda: None
) -> list[tuple[int | None, str | None]]:
    """Return the first offset and the fault of each row."""
    (log,) = readable_logs(query(log_dir))
    after_the_plan()
    return [
        (row["firstOffset"], row["fault"])
        for segment in log.segments
        for batch in headers(segment)
        for row in batch.to_pylist()
    ]


def whole(*offsets: int) -> list[tuple[int | None, str | None]]:
    return [(offset, None) for offset in offsets]


def test_nothing_behind_the_bound_is_read(writer: Published) -> None:
    writer.torn_tail(b"\xff" * 100)
    assert rows(writer.log_dir) == whole(*range(0, 100, 10))


def test_a_file_shorter_than_what_was_published(writer: Published) -> None:
    path = writer.directory / segment_name(0)
    size, left = path.stat().st_size, len(b"".join(contents(path)[:9]))
    os.truncate(path, left)
    fault = (None, f"the file has {left} bytes, {size} were published as readable")
    assert rows(writer.log_dir) == [*whole(*range(0, 90, 10)), fault]


def test_a_batch_that_is_cut_off(writer: Published) -> None:
    path = writer.directory / segment_name(0)
    os.truncate(path, path.stat().st_size - 1)
    found = rows(writer.log_dir)
    assert found[:9] == whole(*range(0, 90, 10))
    assert "the file ends within a batch" in str(found[9][1])


def contents(path: Path) -> list[bytes]:
    """Return the batches of a segment."""
    data = path.read_bytes()
    with path.open("rb") as file:
        return [data[one.position :][: one.length] for one in batches(file.fileno(), 0, len(data))]


@pytest.mark.parametrize("kept", [(0, 40, 70), range(0, 130, 10), range(20, 130, 10)])
def test_the_segment_of_the_bound_is_cleaned_and_merged_after_the_plan(
    writer: Published, kept: Sequence[int]
) -> None:
    """The bound's position means nothing in the new file, whatever its inode number."""

    def clean() -> None:
        fill(writer, 3)
        writer.roll()
        path = writer.directory / segment_name(0)
        old = contents(path)
        path.write_bytes(b"".join(old[offset // 10] for offset in kept))

    assert rows(writer.log_dir, clean) == whole(*(offset for offset in kept if offset < 100))
