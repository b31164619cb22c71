"""Reads topics as a stream of Arrow batches (`mpbroker.read`), for pandas, Polars, DuckDB and others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from os import PathLike, fspath
from typing import Any

from mpbroker.config.extras import pip_install

try:
    import pyarrow as pa  # type: ignore[import-untyped]
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"mpbroker.read needs PyArrow. Install the extra: {pip_install('arrow')}",
        name=error.name,
    ) from error

from mpbroker.protocol.printable import spelt
from mpbroker.reading.catalogs import open_catalog
from mpbroker.reading.columns import SCHEMA
from mpbroker.reading.errors import OptionError
from mpbroker.reading.options import ReadOptions, chosen_columns, parse_options
from mpbroker.reading.plan import TaskRange, plan
from mpbroker.reading.read import read_range

Directory = str | PathLike[str]
Offsets = str | Mapping[int, int] | Mapping[str, Mapping[int, int]]
Time = datetime | int


def read(
    topics: str | Sequence[str],
    *,
    log_dir: Directory | Sequence[Directory] | None = None,
    bootstrap_servers: str | Sequence[str] | None = None,
    bucket: str | None = None,
    columns: Sequence[str] | None = None,
    partitions: Sequence[int] | None = None,
    starting_offsets: Offsets | None = None,
    ending_offsets: Offsets | None = None,
    starting_timestamp: Time | None = None,
    ending_timestamp: Time | None = None,
    isolation_level: str = "read_committed",
    options: Mapping[str, Any] | None = None,
) -> pa.RecordBatchReader:
    """Read the present records of topics: from the broker's files, its object store, or by Kafka's protocol.

    The range of offsets is fixed when this function returns; later records are not read. The reader reads a
    batch when its caller asks for the next one, partition by partition, each in the order of offsets. A
    caller that keeps no batches needs little memory.

    `log_dir` names the broker's log directories, `bootstrap_servers` its `host:port`, `bucket` the URL of its
    object store, such as `s3://bucket/prefix`; one of them is needed. Files that are here go first.
    `columns` are names of `mpbroker.reading.columns.SCHEMA`; the default is all but `headers`. `partitions`
    are partition numbers, the same for every topic; the default is all partitions.

    Offsets are "earliest", "latest", or an offset by partition: `{0: 23, 1: 5}`, for several topics
    `{"a": {0: 23}, "b": {0: 0}}`. They must name all partitions that are read. Ending offsets are exclusive.
    A timestamp, an aware `datetime` or milliseconds since 1970, means the first record of that time or later.
    If no record is that late, an ending timestamp means the partition's end, and a starting one is an error.

    `isolation_level` is read_committed or read_uncommitted. `options` has any other options of the Spark
    source, by their names there, such as `{"failOnDataLoss": False, "kafka.security.protocol": "SSL"}`.

    Raises OptionError (a ValueError), SourceUnavailable, DataLoss, CorruptLog. Reading batches from the
    reader may raise these errors, too.
    """
    given = {name: spelt(value) for name, value in (options or {}).items()}
    named = {
        "log.dir": _joined(log_dir),
        "kafka.bootstrap.servers": _joined(bootstrap_servers),
        "mpbroker.bucket": bucket,
        "columns": _joined(columns),
        "kafka.isolation.level": isolation_level,
        "startingTimestamp": _milliseconds(starting_timestamp, "starting_timestamp"),
        "endingTimestamp": _milliseconds(ending_timestamp, "ending_timestamp"),
    }
    names = [topics] if isinstance(topics, str) else list(topics)
    if partitions is None:
        named["subscribe"] = ",".join(names)
    else:
        named["assign"] = json.dumps({name: list(partitions) for name in names})
    named["startingOffsets"] = _offsets(starting_offsets, names, "starting_offsets")
    named["endingOffsets"] = _offsets(ending_offsets, names, "ending_offsets")
    return open_reader({**given, **{name: value for name, value in named.items() if value is not None}})


def open_reader(given: Mapping[str, str]) -> pa.RecordBatchReader:
    """Return a reader for a query with the options of the Spark source. Raises the same errors as `read`."""
    if any(name.lower() == "valueformat" for name in given):
        raise OptionError(
            "valueFormat is an option of Spark queries. Leave it out and decode the column value, binary here"
        )
    schema = arrow_schema(given)
    options = parse_options(given)
    with closing(open_catalog(options)) as catalog:
        tasks = plan(catalog, options)
    return pa.RecordBatchReader.from_batches(schema, _batches(tasks, schema, options))


def arrow_schema(given: Mapping[str, str]) -> pa.Schema:
    """Return the schema of the columns that the options choose. Raises OptionError."""
    return pa.schema([SCHEMA.field(name) for name in chosen_columns(given, SCHEMA.names)])


def _batches(tasks: Sequence[TaskRange], schema: pa.Schema, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    for task in tasks:
        yield from read_range(task, schema, options)


def _joined(values: Directory | Sequence[Directory] | None) -> str | None:
    if values is None:
        return None
    listed = [values] if isinstance(values, (str, PathLike)) else values
    return ",".join(fspath(value) for value in listed)


def _milliseconds(time: Time | None, name: str) -> str | None:
    if time is None:
        return None
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise OptionError(
                f"{name}: {time.isoformat()} has no time zone. Add one, such as tzinfo=datetime.UTC"
            )
        # Records have whole milliseconds, so the time is rounded up to the next one.
        return str(-((datetime.fromtimestamp(0, UTC) - time) // timedelta(milliseconds=1)))
    return str(time)


def _offsets(offsets: Offsets | None, topics: Sequence[str], name: str) -> str | None:
    """Return offsets as Kafka's JSON, `{"topic":{"0":23}}`. A mapping for one topic may omit its name."""
    if offsets is None or isinstance(offsets, str):
        return offsets
    if not isinstance(offsets, Mapping):
        raise OptionError(f"{name}: expected earliest, latest or offsets by partition, got {offsets!r}")
    if all(isinstance(key, int) for key in offsets):
        if len(topics) != 1:
            raise OptionError(f"{name}: of several topics name each, such as {{'{topics[0]}': {{0: 23}}}}")
        return json.dumps({topics[0]: offsets})
    return json.dumps(offsets)
