"""Commits a batch to a table: data files, removed rows and the offsets of all, in one snapshot.

The commit asserts the snapshot that it was planned on. If another writer was faster, it is made again as long
as the offsets in the table are the same. The job recognises its own commits by run and number, so a commit
whose outcome nobody knows is never made twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from mpbroker.remote.store.object_store import StoreError
from spark_integration.jobs.frame import JobError
from spark_integration.tables.data_files import Written, data_file, row_files
from spark_integration.tables.snapshots import append, try_once
from spark_integration.tables.spans import (
    BATCH,
    ERROR_ROWS,
    OFFSETS,
    RUN,
    Covered,
    Span,
    TopicIdPartition,
    covered,
    has_batch,
)

if TYPE_CHECKING:
    from pyiceberg.table import Table, Transaction

TRIES: Final = 6
PAUSE_S: Final = 1.0


class Overtaken(Exception):
    """Another job has written offsets since this batch was planned: plan again."""


@dataclass(frozen=True)
class Batch:
    """A batch: the rows and offsets of one commit.

    `before`: the offsets in the table on which it was planned. `cut`: logs whose rows from an offset on are
    removed, since a restore has replaced them.
    """

    run: str
    number: int
    before: Covered
    spans: Sequence[Span] = ()
    files: Sequence[Written] = ()
    cut: Mapping[TopicIdPartition, int] = field(default_factory=dict)

    def after(self) -> Covered:
        """Return the offsets in the table after the commit. Raises JobError if spans do not join."""
        return self.before.cut(self.cut).with_spans(self.spans)


def commit(load: Callable[[], Table], batch: Batch) -> Table:
    """Commit a batch, and return the table with it. `load` loads the table as it is now.

    Raises Overtaken; JobError if spans do not join, or if the outcome stays unknown.
    """
    after = batch.after()
    error: Exception | None = None
    for number in range(TRIES):
        if number:
            time.sleep(PAUSE_S * 2 ** (number - 1))
        try:
            table = load()
            if has_batch(table, batch.run, batch.number):
                return table
            if (covered(table) or Covered(after.topic)) != batch.before:
                raise Overtaken(f"{'.'.join(table.name())}: another job has written since")
            _attempt(table, batch, after)
        except (CommitFailedException, CommitStateUnknownException, StoreError, OSError) as failed:
            error = failed
        else:
            return table
    raise JobError(
        f"a commit of {after.topic} could not be made, or its outcome is unknown: {error}. Its files "
        "stay, and the next one begins where the table is"
    ) from error


def _attempt(table: Table, batch: Batch, after: Covered) -> None:
    try_once(table)
    errors = sum(one.error_rows for one in batch.files)
    properties = {
        OFFSETS: after.text(),
        RUN: batch.run,
        BATCH: str(batch.number),
        **({ERROR_ROWS: str(errors)} if errors else {}),
    }
    with table.transaction() as transaction:
        transaction.set_properties({OFFSETS: properties[OFFSETS]})
        if batch.cut:
            _replace(table, transaction, batch, properties)
            return
        append(transaction, [data_file(table, one) for one in batch.files], properties)


def _replace(table: Table, transaction: Transaction, batch: Batch, properties: dict[str, str]) -> None:
    """Write files anew without the rows that the batch cuts, in one snapshot with those that it adds."""
    files = row_files(table)
    with transaction.update_snapshot(properties).overwrite() as replacing:
        for task in table.scan(row_filter=_of_cut(batch.cut)).plan_files():
            if task.delete_files:
                raise JobError(
                    f"another writer has deleted rows of {task.file.file_path} by files of deletes, and a "
                    "restore has to remove others there: rewrite the table's data files (Iceberg's "
                    "rewrite_data_files), then the job goes on"
                )
            with table.io.new_input(task.file.file_path).open() as stream:
                rows = pq.read_table(stream)
            kept = rows.filter(pc.invert(_is_cut(rows, batch.cut)))
            if kept.num_rows == rows.num_rows:
                continue
            replacing.delete_data_file(task.file)
            if kept.num_rows:
                partition = task.file.file_path.rpartition("/")[0].rpartition("=")[2]
                replacing.append_data_file(data_file(table, files.write(kept, partition)))
        for one in batch.files:
            replacing.append_data_file(data_file(table, one))


def _of_cut(cut: Mapping[TopicIdPartition, int]) -> str:
    """Return Iceberg's filter of the files that may have rows to cut; ids have no quotes."""
    found = []
    for (topic_id, partition), at in cut.items():
        of_topic = "_topic_id is null" if topic_id is None else f"_topic_id = '{topic_id}'"
        found.append(f"({of_topic} and _partition_index = {partition} and _offset >= {at})")
    return " or ".join(found)


def _is_cut(rows: pa.Table, cut: Mapping[TopicIdPartition, int]) -> pa.ChunkedArray:
    found = [
        pc.and_(
            pc.and_(_is_topic(rows, topic_id), pc.equal(rows["_partition_index"], partition)),
            pc.greater_equal(rows["_offset"], at),
        )
        for (topic_id, partition), at in cut.items()
    ]
    return reduce(pc.or_, found)


def _is_topic(rows: pa.Table, topic_id: str | None) -> pa.ChunkedArray:
    ids = rows["_topic_id"]
    return pc.is_null(ids) if topic_id is None else pc.fill_null(pc.equal(ids, topic_id), fill_value=False)
