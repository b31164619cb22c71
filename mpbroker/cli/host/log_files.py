"""`mpbroker log`: prints the files of a log directory, checks whether they are whole, and repairs them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO

import msgspec
import typer

from mpbroker.cli.app import App
from mpbroker.cli.errors import RUNTIME_ERROR, USAGE_ERROR, CliError, file_named
from mpbroker.cli.flags import Json, flag
from mpbroker.cli.host.recover import recover
from mpbroker.cli.host.scrub import scrub
from mpbroker.cli.text.confirm import confirm
from mpbroker.cli.text.output import counted, log_offsets, print_json
from mpbroker.cli.text.progress import progress_bar
from mpbroker.inspection import dump as dumping
from mpbroker.inspection import repair as repairing
from mpbroker.inspection.directory import (
    InspectedDirectory,
    NotALogDirectory,
    check_against_each_other,
    open_directory,
)
from mpbroker.inspection.findings import Finding, Severity
from mpbroker.inspection.partition import Partition, check, log_bytes
from mpbroker.inspection.segment import Seen
from mpbroker.ipc.process import FatalError
from mpbroker.protocol.printable import printable
from mpbroker.storage.strict_stat import is_there

log_app = App(no_args_is_help=True)


@log_app.command("dump")
def dump(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", hidden=True, readable=False)],
    *,
    with_records: Annotated[bool, flag("--records", "The records of each batch, too.")] = False,
    as_json: Annotated[bool, flag("--json", "A JSON document per line.")] = False,
) -> None:
    """Print batches, index entries, producers and checkpoints.

    PATH is the directory of a partition, or a file in it.
    """
    for path in paths:
        if not is_there(path):
            raise CliError(f"{path}: no such file or directory", USAGE_ERROR)
        files = dumping.files_of(path)
        if not files:
            raise CliError(
                f"{path} has no segments. Name a file, or the directory of a partition (<topic>-<number>)",
                USAGE_ERROR,
            )
        for file in files:
            with file_named(str(file)):
                _dump_file(file, with_records, as_json)


def _dump_file(file: Path, with_records: bool, as_json: bool) -> None:
    try:
        entries = dumping.entries(file, with_records=with_records)
        if not as_json:
            sys.stdout.write(f"{file}\n")
        for entry in entries:
            if as_json:
                sys.stdout.buffer.write(msgspec.json.encode({"file": str(file), **entry}) + b"\n")
            else:
                sys.stdout.write(
                    "  " + "  ".join(f"{k}: {printable(str(v))}" for k, v in entry.items()) + "\n"
                )
    except dumping.Unreadable as error:
        raise CliError(str(error)) from error
    except dumping.NotAFile as error:
        raise CliError(str(error), USAGE_ERROR) from error


@log_app.command("verify")
def log_verify(
    paths: Annotated[list[Path], typer.Argument(metavar="DIR...", hidden=True, readable=False)],
    json: Json = False,
) -> None:
    """Read everything; list damaged, torn and derived files.

    DIR is a directory of log.dirs, or of one partition. The exit code is 1 if records are damaged.
    """
    verify(paths, as_json=json)


def verify(paths: list[Path], *, as_json: bool, damaged: str | None = None) -> None:
    """Check and report on directories. On damage, print `damaged` and exit with 1. Raises OSError."""
    try:
        directories = [open_directory(path) for path in paths]
    except NotALogDirectory as error:
        raise CliError(
            f"{error}. Name a directory of log.dirs, or one of a partition", USAGE_ERROR
        ) from error
    checked([partition for directory in directories for partition in directory.partitions])
    common = check_against_each_other(directories)
    findings = [*_all_findings(directories), *common]
    if as_json:
        print_json(_document(directories, findings))
    else:
        _print_report(directories, findings, damaged)
    if any(one.severity is Severity.DAMAGE for one in findings):
        raise SystemExit(RUNTIME_ERROR)


def checked(partitions: list[Partition]) -> None:
    """Check partitions, and show a progress bar. Raises OSError."""
    with _progress(partitions) as progress:
        for partition in partitions:
            with progress(partition) as seen, file_named(str(partition.path)):
                check(partition, seen)


@log_app.command("repair")
def repair(
    path: Annotated[Path, typer.Argument(metavar="DIR", hidden=True, readable=False)],
    *,
    is_sure: Annotated[bool, flag("--yes -y", "Do not ask; scripts need it.")] = False,
    as_json: Json = False,
) -> None:
    """Take damaged batches out of the partition in DIR.

    The broker has to be stopped. Whole batches stay, and the damaged files are kept under other names.
    """
    path = path.resolve()
    try:
        with repairing.locked(path):
            plan = repairing.plan(path)
            kept = _carried_out(plan, is_sure=is_sure, as_json=as_json)
    except repairing.CannotRepair as error:
        raise CliError(str(error), USAGE_ERROR) from error
    except FatalError as error:
        raise CliError(str(error)) from error
    if as_json:
        print_json(_repair_document(plan, kept))
    elif plan.is_empty:
        sys.stdout.write(f"{path}: nothing is damaged\n")
    else:
        sys.stdout.writelines(f"kept the damaged file as {one}\n" for one in kept)
        sys.stdout.write("repaired; the next start of the broker checks it and rebuilds its indexes\n")


log_app.command("recover")(recover)
log_app.command("scrub")(scrub)


def _carried_out(plan: repairing.Plan, *, is_sure: bool, as_json: bool) -> list[Path]:
    """Print the plan, ask, and carry it out; return the damaged files that are kept. Raises CliError."""
    if plan.is_empty:
        return []
    if not as_json:
        _print_plan(plan, sys.stdout)
    elif not is_sure:
        _print_plan(plan, sys.stderr)
    confirm("take this out and keep the rest?", is_sure=is_sure, scripts_need_yes=True)
    return list(repairing.carry_out(plan))


def _repair_document(plan: repairing.Plan, kept: list[Path]) -> dict[str, Any]:
    """Return the repairs as a document. Offsets `first` to `last` are lost; a null `last` is unknown."""
    durable = plan.partition.durable
    return {
        "path": str(plan.partition.path),
        "repaired": not plan.is_empty,
        "segments": [
            {
                "file": str(cut.segment.path),
                "bytes": cut.segment.size,
                "lost_bytes": cut.lost_bytes,
                "lost": [
                    {"first": first, "last": after - 1 if after >= 0 else None} for first, after in cut.lost
                ],
                "corrected_epochs": len(cut.segment.odd_epochs),
            }
            for cut in plan.cuts
        ],
        "lowered": None if plan.lowered is None else {"from": durable, "to": plan.lowered},
        "kept": [str(one) for one in kept],
    }


def _print_plan(plan: repairing.Plan, to: TextIO) -> None:
    for cut in plan.cuts:
        to.write(f"{cut.segment.path}: {cut.lost_bytes:,} of {cut.segment.size:,} bytes are no batches\n")
        for first, after in cut.lost:
            until = f"to {after - 1:,}" if after >= 0 else "and all after it"
            to.write(f"  lost: offset {first:,} {until}\n")
        if odd := len(cut.segment.odd_epochs):
            to.write(f"  {odd:,} batches get the leader epoch of their offsets\n")
    if plan.lowered is not None and plan.partition.durable is not None:
        lost = f"acknowledged offsets from {plan.lowered:,} to {plan.partition.durable - 1:,}"
        to.write(f"{plan.partition.path}: {lost} are lost and will be given to other records\n")


def _all_findings(directories: Iterable[InspectedDirectory]) -> Iterator[Finding]:
    for directory in directories:
        yield from directory.findings
        for partition in directory.partitions:
            yield from partition.all_findings


def _document(directories: list[InspectedDirectory], findings: list[Finding]) -> dict[str, Any]:
    return {
        "directories": [
            {
                "path": str(directory.path),
                "is_live": directory.is_live,
                "was_stopped_in_order": directory.is_clean,
                "partitions": [_summary(partition) for partition in directory.partitions],
            }
            for directory in directories
        ],
        "findings": findings,
    }


def _summary(partition: Partition) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "segments": len(partition.segments),
        "bytes": partition.size,
        "batches": sum(segment.batches for segment in partition.segments),
        "records": sum(segment.records for segment in partition.segments),
        "start_offset": partition.start_offset,
        "end_offset": partition.end_offset,
    }


def _print_report(
    directories: list[InspectedDirectory], findings: list[Finding], damaged: str | None
) -> None:
    write = sys.stdout.write
    for directory in directories:
        state = "in use by a broker" if directory.is_live else "not in use"
        write(f"{directory.path}: {counted(len(directory.partitions), 'partition')}, {state}\n")
        _print_partitions(directory.partitions)
    for one in findings:
        write(f"{one}\n")
    for directory in directories if damaged is None else ():
        broker = "stop the broker and " if directory.is_live else ""
        for partition in filter(repairing.helps, directory.partitions):
            write(f"To keep the whole batches: {broker}mpbroker log repair {partition.path}\n")
    if directories and any(directory.is_live for directory in directories):
        write("A broker is writing there: torn and derived files may be its work of this moment.\n")
    worst = max((_RANK[one.severity] for one in findings), default=0)
    write((damaged if damaged and worst == _RANK[Severity.DAMAGE] else _VERDICTS[worst]) + "\n")


def _print_partitions(partitions: list[Partition]) -> None:
    """Print a row per partition with records, and one line for all others, which may be dozens."""
    empty: Counter[str] = Counter()
    for partition in partitions:
        row = _summary(partition)
        if len(partitions) > 1 and not row["batches"] and not partition.all_findings:
            empty[partition.topic] += 1
            continue
        sys.stdout.write(
            f"  {partition.path.name}: {counted(row['records'], 'record')} in "
            f"{counted(row['batches'], 'batch', 'batches')}, {counted(row['segments'], 'segment')}, "
            f"{row['bytes']:,} bytes, {log_offsets(row['start_offset'], row['end_offset'])}\n"
        )
    if empty:
        counts = ", ".join(f"{count:,} of {topic}" for topic, count in empty.items())
        sys.stdout.write(f"  without records: {counts}\n")


_RANK = {Severity.NOTE: 0, Severity.DERIVED: 1, Severity.TORN: 2, Severity.DAMAGE: 3}
_VERDICTS = (
    "All records are whole.",
    "All records are whole; the next start rebuilds the derived files.",
    "The next start cuts off torn ends; nothing of them was acknowledged as durable.",
    "Records are damaged: see above. Restore the files from a copy, repair them, or delete the topic.",
)


@contextmanager
def _progress(partitions: list[Partition]) -> Iterator[Any]:
    """Show how many bytes of the logs are read. Bytes that a broker appends meanwhile are not counted."""
    from rich.progress import DownloadColumn, TimeRemainingColumn

    sizes = {one.path: log_bytes(one) for one in partitions}
    with progress_bar(sum(sizes.values()), DownloadColumn(), TimeRemainingColumn()) as update:

        @contextmanager
        def reading(partition: Partition) -> Iterator[Seen]:
            update(description=partition.path.name)
            left = sizes[partition.path]

            def seen(count: int) -> None:
                nonlocal left
                advance = min(count, left)
                left -= advance
                update(advance=advance)

            yield seen
            update(advance=left)

        yield reading
