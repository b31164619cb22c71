"""`mpbroker export` and `mpbroker import`: hand log directories over to Kafka, or take over Kafka's."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from mpbroker.cli.errors import USAGE_ERROR, CliError, file_error
from mpbroker.cli.flags import DryRun, Json, flag, option
from mpbroker.cli.text.output import counted, print_json
from mpbroker.config.listeners import parse_host_port
from mpbroker.ipc.process import FatalError
from mpbroker.migration import from_kafka, to_kafka
from mpbroker.migration.errors import CannotMove
from mpbroker.migration.moved import Moved

LogDirectories = Annotated[list[Path], typer.Argument(metavar="DIR...", hidden=True, readable=False)]


def export(
    paths: LogDirectories,
    controller: Annotated[
        str, option("--controller", "HOST:PORT", "Where Kafka's controller is to listen.")
    ] = "localhost:9093",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Turn a broker's directories into Apache Kafka's.

    Stop the broker first. Name all of log.dirs. The broker can still use them until Kafka has been started.
    """
    with _refusals(paths):
        done = to_kafka.export(paths, _controller(controller), is_dry=dry_run)
    if json:
        print_json({"dry_run": dry_run, **_members(done)})
        return
    _print_counts(done, "would be exported" if dry_run else "exported")
    _print_lines("would be written:" if dry_run else "written:", done.files)
    _print_lines("note:", done.notes)
    _print_lines("settings of Apache Kafka's server.properties:", done.settings)
    if not dry_run:
        sys.stdout.write("Start Kafka with them: kafka-server-start.sh server.properties\n")
    _print_dry(is_dry=dry_run)


def _controller(text: str) -> tuple[str, int]:
    try:
        host, port = parse_host_port(text)
    except ValueError:
        host, port = "", 0
    if not host or not port:
        raise CliError(f"--controller {text}: write HOST:PORT", USAGE_ERROR)
    return host, port


def import_(
    paths: LogDirectories,
    dry_run: DryRun = False,
    set_aside_strays: Annotated[
        bool, flag("--set-aside-strays", "Accept partitions of unknown topics; a start sets them aside.")
    ] = False,
    json: Json = False,
) -> None:
    """Take over the directories of a stopped Apache Kafka 4 node.

    Name all of log.dirs, and metadata.log.dir.
    """
    with _refusals(paths):
        done = from_kafka.import_(paths, is_dry=dry_run, sets_strays_aside=set_aside_strays)
    if json:
        print_json({"dry_run": dry_run, **_members(done)})
        return
    _print_counts(done, "would be imported" if dry_run else "imported")
    _print_lines("not taken over:", done.left)
    if not dry_run:
        sys.stdout.write(f"Kafka's metadata are kept in {done.kept}\n")
        log_dirs, node_id = ",".join(done.log_dirs), f"node.id={done.node_id}"
        command = ["mpbroker", "serve", "--log-dirs", log_dirs, "-o", node_id]
        sys.stdout.write(f"Start mpbroker with Kafka's server.properties (-c), or: {shlex.join(command)}\n")
    _print_dry(is_dry=dry_run)


@contextmanager
def _refusals(paths: list[Path]) -> Iterator[None]:
    try:
        yield
    except (CannotMove, FatalError) as error:
        raise CliError(f"{error}. Nothing was changed") from error
    except OSError as error:
        raise file_error(error, paths[0]) from error


def _members(done: Moved) -> dict[str, object]:
    return {name: getattr(done, name) for name in done.__struct_fields__}


def _print_counts(done: Moved, what: str) -> None:
    parts = [
        counted(done.topics, "topic") + f" with {counted(done.partitions, 'partition')}",
        counted(done.users, "SCRAM user"),
        counted(done.acls, "ACL"),
        counted(done.quotas, "quota"),
        counted(done.tokens, "delegation token"),
    ]
    sys.stdout.write(f"cluster {done.cluster_id}, node {done.node_id}\n{what}: {', '.join(parts)}\n")


def _print_lines(title: str, lines: list[str]) -> None:
    if lines:
        sys.stdout.write(f"{title}\n")
        sys.stdout.writelines(f"  {line}\n" for line in lines)


def _print_dry(*, is_dry: bool) -> None:
    if is_dry:
        sys.stdout.write("Nothing was changed.\n")
