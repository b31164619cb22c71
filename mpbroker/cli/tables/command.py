"""The commands of `mpbroker tables`."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mpbroker.cli.app import App
from mpbroker.cli.errors import USAGE_ERROR, CliError, file_named
from mpbroker.cli.flags import Json, option
from mpbroker.cli.spark.command import Master, Once, needs_spark
from mpbroker.cli.spark.job import measured, rate, running
from mpbroker.cli.text.output import counted

if TYPE_CHECKING:
    from mpbroker.spark.tables import Settings

tables_app = App(no_args_is_help=True)

Declared = Annotated[
    Path, option("--tables", "FILE", "Which topics become which tables, in TOML (docs: TABLES).", exists=True)
]


@tables_app.command("run")
def tables_run(tables: Declared, once: Once = False, json: Json = False, master: Master = None) -> None:
    """Bring Iceberg tables up to their topics, each record once.

    Each interval one commit to each table that has something to get. The tables are all that it keeps: the
    same command continues where they are, after any kill. SIGTERM and Ctrl-C end it.
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
            f"{counted(done.commits, 'commit')}{errors}, {rate(done.rows, began)}; the same command continues",
            {
                **measured(done.rows, began),
                "commits": done.commits,
                "error_rows": done.error_rows,
                "stopped_by": name,
            },
        )


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
