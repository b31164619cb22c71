"""Tells how far tables are, and what is wrong with them. Needs no session of Spark."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from pyiceberg.exceptions import NoSuchTableError

from mpbroker.protocol.printable import counted, shortened
from mpbroker.reading.catalogs import open_catalog as open_topics
from mpbroker.reading.errors import SourceUnavailable
from mpbroker.reading.plan import Catalog
from spark_integration.tables.catalog import open_catalog
from spark_integration.tables.planning import id_text
from spark_integration.tables.progress import committed_note, ends_of, note_of_table
from spark_integration.tables.rows import ERROR
from spark_integration.tables.settings import Settings, TableSettings, expanded
from spark_integration.tables.spans import ERROR_ROWS, covered, newest_first, property_of

if TYPE_CHECKING:
    from pyiceberg.table import Table

# A job that did not commit for so many intervals, although there is something, does not run.
_LATE_INTERVALS: Final = 3
# Rows with an error that are looked at.
ERRORS_READ: Final = 1000
_ERROR_TEXT_MAX: Final = 200


class TableStatus(NamedTuple):
    """A table. `lag`: offsets that it has yet to get, None if the topic cannot be read.

    `error_rows`: rows with an error in its `snapshots`, which reach back to `since_ms`; `committed_ms`: when
    the job committed last, 0 if no snapshot says so. `metadata`: the file that readers without a catalog
    open.
    """

    table: str
    topic: str
    rows: int = 0
    lag: int | None = None
    error_rows: int = 0
    files: int = 0
    bytes: int = 0
    snapshots: int = 0
    since_ms: int = 0
    committed_ms: int = 0
    metadata: str = ""


class Reason(NamedTuple):
    """Something that is wrong with a table, and what to do."""

    why: str
    do: str


class Tables:
    """The tables that a file declares. Close it."""

    def __init__(self, settings: Settings) -> None:
        """Open catalog and source. Raises StoreRefused, OptionError, SourceUnavailable."""
        self._settings = settings
        self._catalog = open_catalog(settings.lake)
        self._options = settings.options()
        self._topics: Catalog = open_topics(self._options)

    def close(self) -> None:
        self._topics.close()

    def declared(self) -> list[TableSettings]:
        """Return what is declared, a table for each topic. Raises SourceUnavailable."""
        return expanded(self._settings, self._topics.topics())[0]

    def status(self, declared: TableSettings) -> TableStatus:
        """Return the status of a table. Raises JobError, StoreError, and what the catalog raises."""
        table = self._table(declared)
        found = TableStatus(declared.name, declared.topic, lag=self._lag(declared, table))
        if table is None:
            return found
        note = note_of_table(table)
        errors = (int(property_of(one, ERROR_ROWS) or 0) for one in newest_first(table.metadata))
        times = [one.timestamp_ms for one in table.metadata.snapshots]
        return found._replace(
            rows=note.rows,
            error_rows=sum(errors),
            files=note.files,
            bytes=note.bytes,
            snapshots=len(times),
            since_ms=min(times, default=0),
            committed_ms=note.committed_ms,
            metadata=table.metadata_location,
        )

    def reasons(self, declared: TableSettings) -> Iterator[Reason]:
        """Yield what is wrong with a table. Raises as `status` does."""
        status, table = self.status(declared), self._table(declared)
        if status.lag is None:
            yield Reason(
                f"topic {declared.topic} cannot be read", "create it, or correct the name in the file"
            )
        note = committed_note(declared.name, self._options)
        if note is not None and note.problem:
            yield Reason(f"the job fails: {note.problem}", "remove the cause; the job goes on by itself")
        late_ms = _LATE_INTERVALS * self._settings.job.interval_s * 1000
        if status.lag and status.committed_ms < time.time() * 1000 - late_ms:
            last = f"no commit for {_LATE_INTERVALS} intervals" if status.committed_ms else "no commit at all"
            yield Reason(
                f"{last}, and {counted(status.lag, 'offset')} wait: the job does not run, or fails",
                "start it with mpbroker tables run, or see what it says",
            )
        if table is not None:
            yield from _lost(table)
            yield from _errors(table)

    def _table(self, declared: TableSettings) -> Table | None:
        try:
            return self._catalog.load_table(declared.name)
        except NoSuchTableError:
            return None

    def _lag(self, declared: TableSettings, table: Table | None) -> int | None:
        if declared.topic not in self._topics.topics():
            return None
        wanted = [(declared.topic, number) for number in self._topics.partitions(declared.topic)]
        try:
            bounds = self._topics.bounds(wanted)
        except SourceUnavailable:
            return None
        ids = {id_text(one.topic_id) for one in bounds.values()}
        ends = {} if table is None else ends_of(table, *ids)
        return sum(max(one.end - max(ends.get(place, 0), one.log_start), 0) for place, one in bounds.items())


def _lost(table: Table) -> Iterator[Reason]:
    """Yield gaps between the spans of a log."""
    found = covered(table)
    for before, after in pairwise(() if found is None else found.spans):
        if before.key == after.key and before.end < after.start:
            yield Reason(
                f"offsets {before.end:,} to {after.start - 1:,} of partition {after.partition} are missing: "
                "the topic had removed them before the table got them",
                "let the topic keep its records for longer than the job may stand still: retention.ms",
            )


def _errors(table: Table) -> Iterator[Reason]:
    """Yield the errors of rows, the most frequent one first, with an example of each."""
    columns = ("_partition_index", "_offset", ERROR)
    scan = table.scan(row_filter=f"{ERROR} is not null", selected_fields=columns, limit=ERRORS_READ)
    rows = scan.to_arrow().to_pylist()
    first = {row[ERROR]: row for row in reversed(rows)}
    for text, count in Counter(row[ERROR] for row in rows).most_common():
        row = first[text]
        yield Reason(
            f"{counted(count, 'row')} could not be decoded: {shortened(text, _ERROR_TEXT_MAX)}",
            f"see _raw where _partition_index = {row['_partition_index']} and _offset = {row['_offset']}; "
            "correct the producer, or the declared schema: rows that are there stay as they are",
        )


def statuses(settings: Settings) -> list[TableStatus]:
    """Return the status of each table. Raises as Tables does."""
    with closing(Tables(settings)) as tables:
        return [tables.status(one) for one in tables.declared()]


def reasons(settings: Settings, name: str) -> Sequence[Reason] | None:
    """Return what is wrong with a table, None if none of this name is declared. Raises as Tables does."""
    with closing(Tables(settings)) as tables:
        for one in tables.declared():
            if one.name == name:
                return list(tables.reasons(one))
    return None
