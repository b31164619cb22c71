"""Reads one planned range: in a bucket, in the broker's files if they are here, else by Kafka's protocol."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]

from mpbroker.reading.columns import Columns
from mpbroker.reading.errors import FilesUnavailable, warn_once
from mpbroker.reading.options import ReadOptions
from mpbroker.reading.plan import LocalFiles, TaskRange
from mpbroker.reading.read_local import is_here, read_local


def read_range(task: TaskRange, schema: pa.Schema, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the records of the range as batches with `schema`, which has fields of `columns.SCHEMA`.

    Raises DataLoss, CorruptLog, SourceUnavailable, OSError.
    """
    columns = Columns(schema, task.topic, task.partition, check_crcs=options.check_crcs)
    files = task.files
    if task.bucket is not None:
        from mpbroker.reading.read_bucket import read_bucket

        yield from read_bucket(
            task,
            task.bucket,
            columns,
            fail_on_data_loss=options.fail_on_data_loss,
            read_committed=options.read_committed,
        )
    elif files is not None and _can_read(files, options):
        yield from read_local(
            task,
            files,
            columns,
            fail_on_data_loss=options.fail_on_data_loss,
            read_committed=options.read_committed,
            fetch=partial(_fetch, columns, options) if _may_fetch(options) else None,
        )
    else:
        yield from _fetch(columns, options, task)


def _fetch(columns: Columns, options: ReadOptions, task: TaskRange) -> Iterator[pa.RecordBatch]:
    from mpbroker.reading.read_remote import read_remote

    yield from read_remote(task, columns, options)


def _may_fetch(options: ReadOptions) -> bool:
    return options.read_mode == "auto" and options.bootstrap_servers is not None


def _can_read(files: LocalFiles, options: ReadOptions) -> bool:
    """Return True if the files can be read here, False if records have to be fetched from brokers.

    Raises FilesUnavailable if neither is possible.
    """
    may_fetch = _may_fetch(options)
    log_dir = Path(files.directory).parent
    try:
        if is_here(files):
            return True
    except FilesUnavailable as error:
        if not may_fetch:
            raise
        warn_once(f"Tasks on this host fetch instead of reading files: {error}", str(log_dir))
        return False
    if may_fetch:
        return False
    raise FilesUnavailable(
        f"{log_dir} of the broker that was planned with (cluster {files.cluster_id}, node {files.node_id}) "
        "is not on this host. Give kafka.bootstrap.servers too (and readMode auto), so that tasks on other "
        "hosts can fetch"
    )
