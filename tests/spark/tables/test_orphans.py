"""Which files of a table are deleted: none that a snapshot has, none that is young, none that is foreign."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from spark_integration.tables import expiry
from spark_integration.tables.expiry import MAX_AGE, MIN_SNAPSHOTS, expire
from spark_integration.tables.orphans import ORPHAN_MS, remove_orphans
from tests.spark.tables.made_tables import append, lake, made_table, offsets, written

DIRECTORY = "lake/orders"


def age(directory: Path) -> None:
    """Make all files of the table old."""
    then = time.time() - ORPHAN_MS / 1000 - 60
    for path in (directory / DIRECTORY).rglob("*"):
        os.utime(path, (then, then))


def names(directory: Path) -> set[str]:
    root = directory / DIRECTORY
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_old_files_without_a_snapshot_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "lake"
    table = made_table(lake(directory), **{MAX_AGE: "0", MIN_SNAPSHOTS: "1"})
    append(table, 0, 1)
    append(table, 1, 2)
    table.delete("_offset = 0")
    append(table, 2, 3)
    monkeypatch.setattr(expiry.time, "time_ns", lambda: 1 << 62)
    expire(table)
    written(table, 3, 4)  # its commit never came
    foreign = directory / DIRECTORY / "data" / "notes.txt"
    foreign.write_text("mine")
    there, rows = names(directory), offsets(table)
    age(directory)
    append(table, 5, 6)
    young = written(table, 6, 7)
    remove_orphans(table)
    left = names(directory)
    gone = there - left
    assert sum(name.endswith(".parquet") for name in gone) == 2, "the deleted one, and that without a commit"
    assert any(name.startswith("metadata/snap-") for name in gone)
    assert foreign.exists()
    assert any(young.url.endswith(name) for name in left)
    assert offsets(table) == sorted([*rows, (0, 5), (1, 5)])


def test_nothing_goes_if_a_manifest_cannot_be_read(tmp_path: Path) -> None:
    directory = tmp_path / "lake"
    table = made_table(lake(directory))
    append(table, 0, 1)
    written(table, 2, 3)
    age(directory)
    lost = Path(table.current_snapshot().manifests(table.io)[0].manifest_path.removeprefix("file://"))
    lost.unlink()
    before = names(directory)
    with pytest.raises(FileNotFoundError):
        remove_orphans(lake(directory).load_table(table.name()))
    assert names(directory) - {"metadata/clock"} == before
