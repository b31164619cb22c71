"""A query without Spark: options, plan, tasks, rows."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Any

from mpbroker.reading.catalogs import open_catalog
from mpbroker.reading.columns import SCHEMA
from mpbroker.reading.options import ReadOptions, parse_options
from mpbroker.reading.plan import TaskRange, plan
from mpbroker.reading.read import read_range


def planned(**given: object) -> tuple[list[TaskRange], ReadOptions]:
    """The tasks of a batch query, and the options that they are read with."""
    options = parse_options({name: str(value) for name, value in given.items()})
    with closing(open_catalog(options)) as catalog:
        return plan(catalog, options), options


def rows_of(tasks: Iterable[TaskRange], options: ReadOptions) -> list[dict[str, Any]]:
    """Return the rows that the tasks read, with all columns."""
    return [row for task in tasks for batch in read_range(task, SCHEMA, options) for row in batch.to_pylist()]


def rows_with(**given: object) -> list[dict[str, Any]]:
    return rows_of(*planned(**given))
