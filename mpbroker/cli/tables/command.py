"""The commands of `mpbroker tables`."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpbroker.cli.app import App
from mpbroker.cli.errors import USAGE_ERROR, CliError, file_named
from mpbroker.cli.flags import Json, flag, option
from mpbroker.cli.spark.command import Extra, Master, Once, checked_sink, needs_spark, options_of
from mpbroker.cli.spark.job import measured, rate, running
from mpbroker.cli.text.output import counted, print_json, print_rows
from mpbroker.cli.text.sizes import binary_size
from mpbroker.protocol.printable import printable

if TYPE_CHECKING:
    from mpbroker.spark.tables import Settings

tables_app = App(no_args_is_help=True)

TablesFile = Annotated[
    Path, option("--tables", "FILE", "Which topics become which tables, in TOML (docs: TABLES).", exists=True)
]
TableName = Annotated[str, typer.Argument(metavar="NAMESPACE.NAME", show_default=False)]


@tables_app.command("run")
def tables_run(tables: TablesFile, once: Once = False, json: Json = False, master: Master = None) -> None:
    """Bring Iceberg tables up to their topics, each record once.

    Each table that lacks records gets one commit an interval, several tables at once. The tables are the only
    state: the same command continues where they are, after any kill. SIGTERM and Ctrl-C end it.
    """
    settings = _settings(tables)
    from mpbroker.spark.tables import TablesJob

    # Tasks of several tables take turns.
    fair = {"spark.scheduler.mode": "FAIR"}
    with running("tables", master, polls=True, as_json=json, config=fair) as (spark, notice):
        began = time.monotonic()  # Spark's start is no part of the rate
        job = TablesJob(spark, settings, notice)
        job.run(lambda: bool(notice.signals), once=once)
        done = job.done
        name = signal.Signals(notice.signals[0]).name if notice.signals else None
        errors = f", {counted(done.error_rows, 'error row')}" if done.error_rows else ""
        notice.end(
            f"{f'stopped by {name}: ' if name else ''}{counted(done.rows, 'row')} in "
            f"{counted(done.commits, 'commit')}{errors}, {rate(done.rows, began)}; run it again to continue",
            {
                **measured(done.rows, began),
                "commits": done.commits,
                "error_rows": done.error_rows,
                "stopped_by": name,
            },
        )


@tables_app.command("status")
def tables_status(tables: TablesFile, json: Json = False) -> None:
    """Print how far each table is, with its size and errors."""
    settings = _settings(tables)
    from mpbroker.spark.tables import statuses

    with _in_a_sentence():
        found = statuses(settings)
    if json:
        print_json([one._asdict() for one in found])
        return
    now_ms = int(time.time() * 1000)
    rows = [
        {
            "table": one.table,
            "topic": one.topic,
            "rows": one.rows,
            "lag": "?" if one.lag is None else one.lag,
            "error_rows": one.error_rows,
            "files": one.files,
            "size": binary_size(one.bytes),
            "committed": f"{(now_ms - one.committed_ms) // 1000:,} s ago" if one.committed_ms else "never",
        }
        for one in found
    ]
    print_rows(rows, as_json=False, nothing="no topic matches a pattern of the file")


@tables_app.command("why")
def tables_why(table: TableName, tables: TablesFile, json: Json = False) -> None:
    """Print why a table is behind or incomplete, and what to do.

    A job that fails or does not run, offsets that were lost, rows with an error.
    """
    settings = _settings(tables)
    from mpbroker.spark.tables import reasons

    with _in_a_sentence():
        found = reasons(settings, table)
    if found is None:
        raise CliError(f"{tables} declares no table {table}", USAGE_ERROR)
    if json:
        print_json([one._asdict() for one in found])
        return
    for one in found:
        print(printable(one.why))
        print(printable(f"  {one.do}"))
    if not found:
        print(printable(f"{table}: nothing is wrong"))


@tables_app.command("replay")
def tables_replay(
    table: TableName,
    tables: TablesFile,
    bootstrap: Annotated[str, option("--bootstrap-server -b", "HOST:PORT,…", "Brokers to write to.")],
    to_topic: Annotated[
        str | None, option("--to-topic", "TOPIC", "Into this one; default: the table's own.")
    ] = None,
    keep_partitions: Annotated[
        bool, flag("--keep-partitions", "Into partitions of the same numbers; else by key.")
    ] = False,
    name: Annotated[
        str, option("--name", "NAME", "Of this replay; its progress is kept under it.")
    ] = "replay",
    exactly_once: Annotated[
        bool, flag("--exactly-once", "In transactions: readers of committed records see each record once.")
    ] = False,
    option: Extra = None,
    json: Json = False,
    master: Master = None,
) -> None:
    """Write the records of a table of format raw back into a topic.

    Keys, values, headers, times and the order in each partition stay. Records that a job of the same name has
    written are skipped, except those of the step in which it was killed; --exactly-once skips these, too.
    """
    settings = _settings(tables)
    from mpbroker.spark.tables import ReplaySettings, checked_replay, replay

    sink = checked_sink({**options_of(option), "kafka.bootstrap.servers": bootstrap})
    what = ReplaySettings(table, sink, name, to_topic, keep_partitions, exactly_once)
    with _in_a_sentence():
        # Says what cannot be before Spark's slow start.
        checked_replay(settings, what)
    with running("replay", master, as_json=json) as (spark, notice), _in_a_sentence():
        began = time.monotonic()
        done = replay(spark, settings, what, notice)
        notice.end(
            f"{counted(done.records, 'record')} written to {done.topic} of {bootstrap} in "
            f"{counted(done.steps, 'step')}, {rate(done.records, began)}",
            {**measured(done.records, began), "steps": done.steps, "topic": done.topic},
        )


@contextmanager
def _in_a_sentence() -> Iterator[None]:
    """Turn the errors of catalogs, stores and sources into CliError."""
    from pyiceberg.exceptions import RESTError

    from mpbroker.reading.errors import CorruptLog, DataLoss, OptionError, SourceUnavailable
    from mpbroker.remote.store.object_store import StoreError
    from mpbroker.remote.store.opening import StoreRefused
    from mpbroker.spark.jobs import JobError

    of_source = (CorruptLog, DataLoss, OptionError, SourceUnavailable)
    try:
        yield
    except (JobError, OSError, RESTError, StoreError, StoreRefused, *of_source) as error:
        raise CliError(str(error)) from error


def _settings(path: Path) -> Settings:
    """Read and check the file before Spark's slow start. Raises CliError."""
    from importlib.util import find_spec

    from mpbroker.config.extras import pip_install

    needs_spark()
    if find_spec("pyiceberg") is None:
        raise CliError(f"tables need pyiceberg: {pip_install('iceberg')}", USAGE_ERROR)
    from mpbroker.spark.jobs import JobError
    from mpbroker.spark.tables import read_settings

    with file_named(str(path)):
        try:
            return read_settings(path)
        except JobError as error:
            raise CliError(str(error), USAGE_ERROR) from error
