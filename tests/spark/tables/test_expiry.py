"""Which snapshots expire, and that the job still knows where it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.exceptions import CommitFailedException

from spark_integration.tables import expiry
from spark_integration.tables.expiry import MAX_AGE, MIN_SNAPSHOTS, expire, expired
from spark_integration.tables.spans import covered
from tests.spark.tables.made_tables import NAME, append, commit, lake, made_table, offsets, written

AT_ONCE = {MAX_AGE: "0", MIN_SNAPSHOTS: "1"}
FAR = 1 << 44


def test_old_snapshots_go_and_the_rows_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made_table(lake(tmp_path / "lake"), **AT_ONCE)
    for number in range(4):
        append(table, number, number + 1)
    before = offsets(table)
    monkeypatch.setattr(expiry.time, "time_ns", lambda: FAR * 1_000_000)
    assert expire(table) == 3
    assert len(table.refresh().metadata.snapshots) == 1
    assert offsets(table) == before
    assert expire(table) == 0


def test_the_newest_offsets_and_the_way_to_them_stay(tmp_path: Path) -> None:
    table = made_table(lake(tmp_path / "lake"), **AT_ONCE)
    for number in range(2):
        append(table, number, number + 1)
    with_offsets = table.current_snapshot()
    for _ in range(2):
        commit(table, written(table, 9, 10), {})
    assert covered(table) is not None
    (first, second, *others) = [one.snapshot_id for one in table.metadata.snapshots]
    assert second == with_offsets.snapshot_id
    assert len(others) == 2
    assert expired(table.metadata, FAR) == [first]


def test_tags_young_ones_and_the_newest_few_stay(tmp_path: Path) -> None:
    table = made_table(lake(tmp_path / "lake"), **{MAX_AGE: "3600000", MIN_SNAPSHOTS: "2"})
    for number in range(5):
        append(table, number, number + 1)
    ids = [one.snapshot_id for one in table.metadata.snapshots]
    table.manage_snapshots().create_tag(ids[0], "audit").commit()
    newest_ms = table.metadata.snapshots[-1].timestamp_ms
    assert sorted(expired(table.metadata, FAR)) == sorted(ids[1:3])
    assert expired(table.metadata, newest_ms) == [], "none is older than an hour"


def test_an_append_at_the_same_time_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made_table(lake(tmp_path / "lake"), **AT_ONCE)
    append(table, 0, 1)
    append(table, 1, 2)
    append(lake(tmp_path / "lake").load_table(NAME), 2, 3)
    monkeypatch.setattr(expiry.time, "time_ns", lambda: FAR * 1_000_000)
    with pytest.raises(CommitFailedException):
        expire(table)
    assert len(table.refresh().metadata.snapshots) == 3
