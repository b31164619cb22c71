"""The flags of `mpbroker doctor`. The module `command` runs the checks."""

from typing import Annotated

import typer

from mpbroker.cli.app import App
from mpbroker.cli.broker_flags import LogDirs, Port
from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.flags import Json, Overrides, ServerProperties

doctor_app = App(invoke_without_command=True)


@doctor_app.callback()
def _doctor(
    context: typer.Context,
    config: ServerProperties = None,
    options: Overrides = None,
    listeners: Annotated[
        str | None, typer.Option(metavar="NAME://HOST:PORT,…", help="Addresses to listen on.")
    ] = None,
    log_dirs: LogDirs = None,
    port: Port = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server",
            "-b",
            metavar="HOST:PORT",
            help="The running broker of this host that listens there.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Say what a broker lacks on this host, and what to do.

    Checks for a broker with the settings that serve would have, or for a running broker. The exit code is 1
    if something keeps it from running.
    """
    if context.invoked_subcommand is not None:
        if json or any((config, options, listeners, log_dirs, port, bootstrap)):
            raise CliError(f"options go after {context.invoked_subcommand}", USAGE_ERROR)
        return
    from mpbroker.cli.doctor import command

    if port is not None or bootstrap is not None:
        from mpbroker.cli.host.local_broker import LocalBroker

        log_dirs = command.log_dirs_of(LocalBroker(log_dirs, port, bootstrap))
    flags = {"--listeners": listeners, "--log-dirs": log_dirs}
    command.host(config, options or [], flags, as_json=json)


@doctor_app.command("spark")
def doctor_spark(
    log_dirs: Annotated[
        str | None,
        typer.Option("--log-dirs", metavar="DIR,…", help="Can this user's Spark read the files there?"),
    ] = None,
    json: Json = False,
) -> None:
    """Say what Spark lacks here to read topics.

    The exit code is 1 if something is missing.
    """
    from mpbroker.cli.doctor import command

    command.spark(log_dirs, as_json=json)
