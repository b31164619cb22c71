"""The flags of `mpbroker log`; what its commands do is in `log_files`, `recover` and `scrub`."""

from pathlib import Path
from typing import Annotated

import typer

from mpbroker.cli.app import App
from mpbroker.cli.flags import DryRun, Json, LocalBootstrap, LogDirs, Port

log_app = App(no_args_is_help=True)


@log_app.command("dump")
def log_dump(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", hidden=True, readable=False)],
    records: Annotated[bool, typer.Option("--records", help="The records of each batch, too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="A JSON document per line.")] = False,
) -> None:
    """Batches, index entries, producers and checkpoints, one by one.

    PATH is the directory of a partition, or a file in it.
    """
    from mpbroker.cli.host import log_files

    log_files.dump(paths, with_records=records, as_json=json)


@log_app.command("verify")
def log_verify(
    paths: Annotated[list[Path], typer.Argument(metavar="DIR...", hidden=True, readable=False)],
    json: Json = False,
) -> None:
    """Read everything; say what is damaged, torn, or will be made anew.

    DIR is a directory of log.dirs, or of one partition. The exit code is 1 if records are damaged.
    """
    from mpbroker.cli.host import log_files

    log_files.verify(paths, as_json=json)


@log_app.command("repair")
def log_repair(
    path: Annotated[Path, typer.Argument(metavar="DIR", hidden=True, readable=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; scripts have to say it.")] = False,
    json: Json = False,
) -> None:
    """Take damaged batches out of the partition in DIR.

    The broker has to be stopped. Whole batches stay, and the damaged files are kept beside the new ones.
    """
    from mpbroker.cli.host import log_files

    log_files.repair(path, is_sure=yes, as_json=json)


@log_app.command("recover")
def log_recover(
    paths: Annotated[list[Path], typer.Argument(metavar="DIR...", hidden=True, readable=False)],
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Do to a stopped broker's directories what its next start would.

    DIR: all of its log.dirs. The exit code is 1 if a partition is damaged and stays as it is.
    """
    from mpbroker.cli.host import recover

    recover.recover(paths, is_dry=dry_run, as_json=json)


@log_app.command("scrub")
def log_scrub(
    log_dirs: LogDirs = None,
    port: Port = None,
    bootstrap: LocalBootstrap = None,
    status: Annotated[bool, typer.Option("--status", help="Begin nothing, only say how it is.")] = False,
    json: Json = False,
) -> None:
    """Have the running broker look for damage in its segments now.

    In those that are sealed; the last one of a partition is still written.
    Says what the scrubber does and what it has found.
    """
    from mpbroker.cli.host import scrub
    from mpbroker.cli.host.local_broker import LocalBroker

    scrub.scrub(LocalBroker(log_dirs, port, bootstrap), only_status=status, as_json=json)
