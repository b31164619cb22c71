"""`mpbroker log recover`: recovers the log directories of a stopped broker; dry runs only report."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from mpbroker.cli.errors import RUNTIME_ERROR, USAGE_ERROR, CliError
from mpbroker.cli.flags import DryRun, Json
from mpbroker.cli.text.output import counted, log_offsets, print_json
from mpbroker.cli.text.progress import progress_bar
from mpbroker.inspection import recover as recovering
from mpbroker.ipc.process import FatalError


def recover(
    paths: Annotated[list[Path], typer.Argument(metavar="DIR...", hidden=True, readable=False)],
    *,
    is_dry: DryRun = False,
    as_json: Json = False,
) -> None:
    """Recover a stopped broker's directories, as its next start would.

    DIR: all of its log.dirs. The exit code is 1 if a partition is damaged and stays as it is.
    """
    paths = [path.resolve() for path in paths]
    try:
        with _progress(paths) as say:
            reports = recovering.recover(paths, say, is_dry=is_dry)
    except recovering.CannotRecover as error:
        raise CliError(str(error), USAGE_ERROR) from error
    except FatalError as error:
        raise CliError(str(error)) from error
    except OSError as error:
        raise CliError(f"{error.filename or paths[0]}: {error.strerror}") from error
    if as_json:
        print_json({"dry_run": is_dry, "directories": reports})
    else:
        for report in reports:
            _print(report, is_dry)
        sys.stdout.write(
            "As at a start, records below the recovery points were not read; this reads all of them: "
            f"mpbroker log verify {shlex.join(map(str, paths))}\n"
        )
    if any(one.problem for report in reports for one in report.partitions):
        raise SystemExit(RUNTIME_ERROR)


def _print(report: recovering.Report, is_dry: bool) -> None:
    write = sys.stdout.write
    how = "in order" if report.was_stopped_in_order else "not in order"
    write(f"{report.path}: {counted(len(report.partitions), 'partition')}, stopped {how}\n")
    for note in report.notes:
        write(f"  {note}\n")
    # Partitions with nothing to report share one line: `__consumer_offsets` alone has dozens.
    empty: Counter[str] = Counter()
    derived: Counter[str] = Counter()
    for one in report.partitions:
        changes = [change for change in one.changes if not change.is_derived]
        if len(changes) < len(one.changes):
            derived.update(files=len(one.changes) - len(changes), partitions=1)
        if not (one.problem or changes or one.log_end):
            empty[one.topic] += 1
            continue
        if one.problem:
            write(f"  {one.topic}-{one.partition} stays as it is: {one.problem}\n")
        else:
            write(f"  {one.topic}-{one.partition}: {log_offsets(one.log_start, one.log_end)}\n")
        _print_changes(changes, "    ")
    if empty:
        counts = ", ".join(f"{count:,} of {topic}" for topic, count in empty.items())
        write(f"  without records: {counts}\n")
    if derived:
        files = counted(derived["files"], "file")
        where = counted(derived["partitions"], "partition")
        write(f"  rebuilt from the records: {files} of indexes and snapshots in {where}; --json names them\n")
    _print_changes(report.changes, "  ")
    if is_dry:
        write("Nothing was changed: this is what a recovery would do.\n")


def _print_changes(changes: list[recovering.Change], indent: str) -> None:
    for change in changes:
        sizes = f"{change.bytes_before:,} to {change.bytes_after:,} bytes"
        if change.bytes_before == change.bytes_after:
            sizes = f"{change.bytes_after:,} bytes as before"
        if change.what == "made":
            sizes = f"{change.bytes_after:,} bytes"
        elif change.what == "removed":
            sizes = f"{change.bytes_before:,} bytes"
        sys.stdout.write(f"{indent}{change.what}: {change.file}, {sizes}\n")


@contextmanager
def _progress(paths: list[Path]) -> Iterator[Callable[[str], None]]:
    """Show how many partitions are recovered. Yields a function to call with each partition's name."""
    from rich.progress import MofNCompleteColumn, TimeElapsedColumn

    names = {entry.name for path in paths if path.is_dir() for entry in path.iterdir() if entry.is_dir()}
    with progress_bar(len(names), MofNCompleteColumn(), TimeElapsedColumn()) as update:

        def say(text: str) -> None:
            update(description=text, advance=1 if text in names else 0)

        yield say
