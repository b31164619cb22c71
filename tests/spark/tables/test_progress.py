"""What the group of a table has committed: its offsets, its numbers, why it fails."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from mpbroker.protocol.table_progress import TableNote, note_of
from mpbroker.reading.options import parse_options
from spark_integration.tables import progress
from spark_integration.tables.progress import TableProgress
from spark_integration.tables.spans import OFFSETS, Covered, Span
from tests.spark.tables.made_tables import append, commit, lake, made_table, written

OPTIONS = parse_options({"subscribe": "orders", "kafka.bootstrap.servers": "127.0.0.1:9092"})


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Mock:
    made = Mock()
    monkeypatch.setattr(progress, "GroupProgress", made)
    return made


def noted(group: Mock) -> TableNote:
    found = note_of("mpbroker.table.lake.orders", group().reached.call_args.kwargs["metadata"])
    assert found is not None
    return found


def test_a_table_says_how_far_it_is_and_how_large(tmp_path: Path, group: Mock) -> None:
    table = made_table(lake(tmp_path / "lake"))
    append(table, 0, 3)
    shown = TableProgress("lake.orders", OPTIONS)
    group.assert_called_with("mpbroker.table.lake.orders", OPTIONS)
    shown.reached(table, None, 2)
    commit(table, written(table, 9, 10), {})  # another writer's
    shown.reached(table, None, 3)
    assert group().reached.call_args.args[0] == {("orders", 0): 3, ("orders", 1): 3}
    note = noted(group)
    assert (note.rows, note.files, note.error_rows) == (8, 2, 5)
    assert note.bytes > 0
    assert note.committed_ms == table.metadata.snapshots[0].timestamp_ms, "the job's own commit"


def test_a_failure_stands_beside_what_was_reached(tmp_path: Path, group: Mock) -> None:
    table = made_table(lake(tmp_path / "lake"))
    shown = TableProgress("lake.orders", OPTIONS)
    shown.failed("no such topic")
    assert not group().reached.called, "there is no offset to commit"
    append(table, 0, 3)
    shown.reached(table, None)
    shown.failed("the store does not answer")
    assert group().reached.call_args.args[0] == {("orders", 0): 3, ("orders", 1): 3}
    assert (noted(group).rows, noted(group).problem) == (6, "the store does not answer")


def test_of_a_topic_made_anew_the_present_one_counts(tmp_path: Path, group: Mock) -> None:
    table = made_table(lake(tmp_path / "lake"))
    both = Covered("orders", (Span("new", 0, 0, 2), Span("old", 0, 0, 50), Span("old", 1, 0, 50)))
    commit(table, written(table, 0, 2), {OFFSETS: both.text()})
    TableProgress("lake.orders", OPTIONS).reached(table, "new")
    assert group().reached.call_args.args[0] == {("orders", 0): 2}


def test_without_brokers_there_is_no_group(tmp_path: Path, group: Mock) -> None:
    options = parse_options({"subscribe": "orders", "log.dir": str(tmp_path)})
    table = made_table(lake(tmp_path / "lake"))
    append(table, 0, 1)
    TableProgress("lake.orders", options).reached(table, None)
    assert not group.called
