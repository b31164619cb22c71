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
from mpbroker.cli.flags import Json, option
from mpbroker.cli.spark.command import Master, Once, needs_spark
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


@tables_app.command("run")
def tables_run(tables: TablesFile, once: Once = False, json: Json = False, master: Master = None) -> None:
    """Bring Iceberg tables up to their topics, each record once.

    Each table that lacks records gets one commit an interval. The tables are the only state: the same command
    continues where they are, after any kill. SIGTERM and Ctrl-C end it.
    """
    settings = _settings(tables)
    from mpbroker.spark.tables import TablesJob

    began = time.monotonic()
    with running("tables", master, polls=True, as_json=json) as (spark, notice):
        job = TablesJob(spark, settings, notice)
        job.run(lambda: bool(notice.signals), once=once)
        done = job.done
        name = signal.Signals(notice.signals[0]).name if notice.signals else None
        errors = f", {counted(done.error_rows, 'error row')}" if done.error_rows else ""
        notice.end(
            f"{f'stopped by {name}: ' if name else ''}{counted(done.rows, 'row')} in "
            f"{counted(done.commits, 'commit')}{errors}, {rate(done.rows, began)}; the same command goes on",
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
def tables_why(
    table: Annotated[str, typer.Argument(metavar="NAMESPACE.NAME", show_default=False)],
    tables: TablesFile,
    json: Json = False,
) -> None:
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
