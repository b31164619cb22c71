"""When upkeep is due, and that its failures end nothing."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession

from mpbroker.remote.store.object_store import StoreError
from spark_integration.tables import upkeep
from spark_integration.tables.compaction import FILES_MIN, Compacted
from spark_integration.tables.upkeep import Upkeep
from tests.spark.tables.made_tables import append, lake, made_table


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """What upkeep calls, with the order of calls."""
    calls = Mock()
    calls.compact.return_value = Compacted(5, 1, 100)
    calls.remove_orphans.return_value = 2
    for name in ("compact", "expire", "remove_orphans"):
        monkeypatch.setattr(upkeep, name, getattr(calls, name))
    return calls


def named(calls: Mock) -> list[str]:
    return [name for name, _, _ in calls.mock_calls]


def test_it_is_due_at_the_first_commit_and_then_now_and_then(tmp_path: Path, done: Mock) -> None:
    table, notice = made_table(lake(tmp_path / "lake")), Mock()
    kept = Upkeep(Mock(spec=SparkSession), notice)
    for _ in range(FILES_MIN):
        kept.committed(table)
    assert named(done) == ["compact", "expire", "remove_orphans"]
    kept.committed(table)
    assert named(done)[3:] == ["compact", "expire"], "orphans go once a day"
    said = [call.args[0] for call in notice.say.call_args_list]
    assert said[0] == "lake.orders: compacted 5 files to 1"
    assert said[1] == "lake.orders: deleted 2 files that no snapshot has"


def test_a_failure_is_said_and_the_next_time_comes(tmp_path: Path, done: Mock) -> None:
    table, notice = made_table(lake(tmp_path / "lake")), Mock()
    append(table, 0, 1)
    kept = Upkeep(Mock(spec=SparkSession), notice)
    done.compact.side_effect = StoreError("the store does not answer")
    for _ in range(FILES_MIN + 1):
        kept.committed(table)
    assert named(done) == ["compact", "expire", "remove_orphans", "compact", "expire"]
    notice.say.assert_called_with("upkeep of lake.orders, to be tried again: the store does not answer")
