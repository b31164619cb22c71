"""What the status of tables says, and the reasons why one lacks records."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mpbroker.protocol.table_progress import TableNote
from spark_integration.tables import status
from spark_integration.tables.catalog import LakeSettings
from spark_integration.tables.settings import Settings, TableSettings
from spark_integration.tables.spans import OFFSETS, Covered, Span
from spark_integration.tables.status import Reason, TableStatus, reasons, statuses
from tests.spark.tables.made_tables import append, commit, lake, made_table, written
from tests.support.table_world import Log, Topics

NAME = "lake.orders"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made = Log(2)
    made.topic_id = None  # type: ignore[assignment]
    monkeypatch.setattr(status, "open_topics", lambda _options: Topics(made))
    monkeypatch.setattr(status, "committed_note", lambda *_: None)
    return made


def declared(directory: Path) -> Settings:
    directory.mkdir(exist_ok=True)
    table = TableSettings(topic="orders", name=NAME)
    return Settings({"log.dir": "/none"}, LakeSettings(directory.as_uri()), (table,))


def why(directory: Path) -> list[Reason]:
    found = reasons(declared(directory), NAME)
    assert found is not None
    return list(found)


def test_a_table_that_is_not_there_lacks_the_whole_topic(tmp_path: Path, log: Log) -> None:
    log.append(0, 5)
    log.append(1, 3)
    log.starts[0] = 2
    assert statuses(declared(tmp_path / "lake")) == [TableStatus(NAME, "orders", lag=6)]
    (reason,) = why(tmp_path / "lake")
    assert reason.why.startswith("no commit at all, and 6 offsets wait")


def test_a_table_has_rows_lag_and_errors(tmp_path: Path, log: Log) -> None:
    table = made_table(lake(tmp_path / "lake"))
    append(table, 0, 2)
    append(table, 2, 3, error="no JSON")
    log.append(0, 5)
    (found,) = statuses(declared(tmp_path / "lake"))
    assert (found.rows, found.lag, found.error_rows, found.files, found.snapshots) == (6, 2, 2, 2, 2)
    assert found.committed_ms == table.metadata.snapshots[-1].timestamp_ms
    (reason,) = why(tmp_path / "lake")
    assert reason.why == "2 rows could not be decoded: no JSON"
    assert "_offset = 2;" in reason.do


def test_a_job_that_stands_still_is_told_from_one_that_has_nothing_to_do(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(made_table(lake(tmp_path / "lake")), 0, 2)
    log.append(0, 2)
    later = time.time() + 600
    monkeypatch.setattr(status.time, "time", lambda: later)
    assert why(tmp_path / "lake") == []
    log.append(0, 1)
    (reason,) = why(tmp_path / "lake")
    assert reason.why.startswith("no commit for 3 intervals, and 1 offset wait")


def test_what_the_job_says_itself_and_what_was_lost(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "committed_note", lambda *_: TableNote(problem="the store does not answer"))
    table = made_table(lake(tmp_path / "lake"))
    gap = Covered("orders", (Span(None, 0, 0, 2), Span(None, 0, 7, 9), Span(None, 1, 0, 9)))
    commit(table, written(table, 0, 2), {OFFSETS: gap.text()})
    log.append(0, 9)
    first, second = why(tmp_path / "lake")
    assert first.why == "the job fails: the store does not answer"
    assert second.why.startswith("offsets 2 to 6 of partition 0 are missing")


def test_a_table_that_nobody_declared(tmp_path: Path, log: Log) -> None:
    assert log.records
    assert reasons(declared(tmp_path / "lake"), "lake.other") is None
