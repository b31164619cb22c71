"""Commits how far tables are to consumer groups, one for each table, so that tools of lag show them.

For show only: a table itself says what it has. Without brokers in the source there are no groups.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from mpbroker.client.cluster import Cluster, CoordinatorType
from mpbroker.client.committed_offsets import fetch_request, of_group
from mpbroker.client.config import ClientConfig
from mpbroker.client.errors import ClientError
from mpbroker.protocol.table_progress import TableNote, group_of, note_of
from mpbroker.reading.group_progress import TIMEOUT_MS, GroupProgress
from mpbroker.reading.options import ReadOptions, TopicPartition
from mpbroker.reading.remote_catalog import client_config, servers_of
from spark_integration.tables.spans import OFFSETS, covered, newest_first, property_of

if TYPE_CHECKING:
    from pyiceberg.table import Table


class TableProgress:
    """The group of one table."""

    def __init__(self, name: str, options: ReadOptions) -> None:
        """Open no connection yet. Raises OptionError, ClientConfigError."""
        self._group = GroupProgress(group_of(name), options) if options.bootstrap_servers else None
        self._ends: dict[TopicPartition, int] = {}
        self._note = TableNote()
        self._error_rows = 0

    def reached(self, table: Table, topic_id: str | None, error_rows: int = 0) -> None:
        """Commit what the table has of the present topic; `error_rows` are those of its newest commit."""
        self._error_rows += error_rows
        self._ends = ends_of(table, topic_id)
        self._note = note_of_table(table, self._error_rows)
        self._commit(self._note)

    def failed(self, problem: str) -> None:
        """Commit why the table gets nothing, beside what it had."""
        self._commit(msgspec.structs.replace(self._note, problem=problem))

    def _commit(self, note: TableNote) -> None:
        if self._group is not None and self._ends:
            self._group.reached(self._ends, metadata=note.text())


def ends_of(table: Table, topic_id: str | None) -> dict[TopicPartition, int]:
    """Return the offset after the last one that the table has, of each partition of the topic."""
    found = covered(table)
    if found is None:
        return {}
    ends = found.ends().items()
    return {(found.topic, number): span.end for (known, number), span in ends if known == topic_id}


def note_of_table(table: Table, error_rows: int = 0) -> TableNote:
    """Return the numbers of a table, by its snapshots."""
    now = table.current_snapshot()
    totals = {} if now is None or now.summary is None else now.summary.additional_properties
    committed = (
        one.timestamp_ms for one in newest_first(table.metadata) if property_of(one, OFFSETS) is not None
    )
    return TableNote(
        rows=int(totals.get("total-records", 0)),
        files=int(totals.get("total-data-files", 0)),
        bytes=int(totals.get("total-files-size", 0)),
        error_rows=error_rows,
        committed_ms=next(committed, 0),
    )


def committed_note(name: str, options: ReadOptions) -> TableNote | None:
    """Return the last note of the job about a table, None if there is none."""
    if not options.bootstrap_servers:
        return None
    group = group_of(name)
    try:
        with closing(
            Cluster(servers_of(options.bootstrap_servers), client_config(options, ClientConfig()))
        ) as cluster:
            node = cluster.coordinator(CoordinatorType.GROUP, group, TIMEOUT_MS)
            found = of_group(cluster.ask(node, fetch_request(group, None), TIMEOUT_MS))
    except ClientError:
        return None
    notes = (note_of(group, one.metadata or "") for topic in found.topics for one in topic.partitions)
    return next(filter(None, notes), None)
