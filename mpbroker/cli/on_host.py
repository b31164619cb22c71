"""The flags of commands of the broker's host, which need no client: `mpbroker ctl`, `log` and `doctor`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mpbroker.cli.app import App
from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.flags import Json, ListenerName, LogDirs, Overrides, Port

ctl_app = App(no_args_is_help=True)
log_app = App(no_args_is_help=True)
doctor_app = App(invoke_without_command=True)
listener_app = App(no_args_is_help=True, help="Listeners of a running broker.")
ctl_app.add_typer(listener_app, name="listener")


@ctl_app.callback()
def _ctl(context: typer.Context, log_dirs: LogDirs = None, port: Port = None) -> None:
    given = {name: value for name, value in (("log_dirs", log_dirs), ("port", port)) if value is not None}
    if given and isinstance(context.command, TyperGroup):
        context.default_map = _defaults(context.command, given)


def _defaults(group: TyperGroup, given: dict[str, Any]) -> dict[str, Any]:
    """Return defaults that pass these flags to every command below that is given none of its own."""
    return {
        name: _defaults(command, given) if isinstance(command, TyperGroup) else given
        for name, command in group.commands.items()
    }


@log_app.command("dump")
def log_dump(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", hidden=True, readable=False)],
    records: Annotated[bool, typer.Option("--records", help="The records of each batch, too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="A JSON document per line.")] = False,
) -> None:
    """Batches, index entries, producers and checkpoints, one by one.

    PATH is the directory of a partition, or a file in it.
    """
    from mpbroker.cli import logs

    logs.dump(paths, with_records=records, as_json=json)


@log_app.command("verify")
def log_verify(
    paths: Annotated[list[Path], typer.Argument(metavar="DIR...", hidden=True, readable=False)],
    json: Json = False,
) -> None:
    """Read everything; say what is damaged, torn, or will be made anew.

    DIR is a directory of log.dirs, or of one partition. The exit code is 1 if records are damaged.
    """
    from mpbroker.cli import logs

    logs.verify(paths, as_json=json)


@log_app.command("repair")
def log_repair(
    path: Annotated[Path, typer.Argument(metavar="DIR", hidden=True, readable=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Take damaged batches out of the partition in DIR.

    The broker has to be stopped. Whole batches stay, and the damaged files are kept beside the new ones.
    """
    from mpbroker.cli import logs

    logs.repair(path, is_sure=yes)


@log_app.command("recover")
def log_recover(
    paths: Annotated[list[Path], typer.Argument(metavar="DIR...", hidden=True, readable=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    json: Json = False,
) -> None:
    """Do to a stopped broker's directories what its next start would.

    DIR: all of its log.dirs. The exit code is 1 if a partition is damaged and stays as it is.
    """
    from mpbroker.cli import recover

    recover.recover(paths, is_dry=dry_run, as_json=json)


@log_app.command("scrub")
def log_scrub(
    log_dirs: LogDirs = None,
    port: Port = None,
    status: Annotated[bool, typer.Option("--status", help="Begin nothing, only say how it is.")] = False,
    json: Json = False,
) -> None:
    """Have the running broker look for damage in its segments now.

    In those that are sealed; the last one of a partition is still written.
    Says what the scrubber does and what it has found.
    """
    from mpbroker.cli import scrub
    from mpbroker.cli.here import Here

    scrub.scrub(Here(log_dirs, port), only_status=status, as_json=json)


@ctl_app.command("status")
def ctl_status(log_dirs: LogDirs = None, port: Port = None, json: Json = False) -> None:
    """Processes, listeners and counters of the broker."""
    from mpbroker.cli import ctl
    from mpbroker.cli.here import Here

    ctl.status(Here(log_dirs, port), as_json=json)


@ctl_app.command("ready")
def ctl_ready(
    wait: Annotated[
        float | None,
        typer.Option(min=0, metavar="[SECONDS]", help="Wait until it is ready; 60 if no number is given."),
    ] = None,
    log_dirs: LogDirs = None,
    port: Port = None,
    json: Json = False,
) -> None:
    """Say whether recovery is over and each listener answers.

    The exit code is 0 if so, and 1 if not, or if no broker runs.
    """
    from mpbroker.cli import ready
    from mpbroker.cli.here import Here

    raise typer.Exit(ready.ready(Here(log_dirs, port), wait, as_json=json))


@ctl_app.command("metrics")
def ctl_metrics(
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            "-f",
            metavar="TEXT",
            help="Metrics or attributes with this text, or of this pattern (* and ?).",
        ),
    ] = None,
    interval: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Sampling interval, for rates; 0: one sample.")
    ] = 1.0,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The public region of a broker that is gone.", readable=False),
    ] = None,
    log_dirs: LogDirs = None,
    port: Port = None,
    json: Json = False,
) -> None:
    """Kafka's metrics by their JMX names.

    They are read from shared memory: a jammed broker has them too.
    """
    from mpbroker.cli import metrics
    from mpbroker.cli.here import Here

    metrics.show(Here(log_dirs, port), filters or [], interval, file, as_json=json)


@ctl_app.command("request-log")
def ctl_request_log(
    switch: Annotated[str | None, typer.Argument(metavar="on|off", hidden=True)] = None,
    log_dirs: LogDirs = None,
    port: Port = None,
    json: Json = False,
) -> None:
    """Log every request with its times, or say whether that is on.

    As kafka.request.logger does at DEBUG.
    """
    from mpbroker.cli import ctl
    from mpbroker.cli.here import Here

    ctl.request_log(Here(log_dirs, port), switch, as_json=json)


@ctl_app.command("log-level")
def ctl_log_level(
    logger: Annotated[str | None, typer.Argument(metavar="LOGGER", hidden=True)] = None,
    level: Annotated[str | None, typer.Argument(metavar="LEVEL", hidden=True)] = None,
    log_dirs: LogDirs = None,
    port: Port = None,
    json: Json = False,
) -> None:
    """Levels of the broker's loggers; change one until it stops.

    LOGGER is root or one of the list; LEVEL is TRACE, DEBUG, INFO, WARN, ERROR, FATAL or default.
    """
    from mpbroker.cli import ctl
    from mpbroker.cli.here import Here

    ctl.log_level(Here(log_dirs, port), logger, level, as_json=json)


@ctl_app.command("resize")
def ctl_resize(
    handlers: Annotated[int | None, typer.Option(min=1, metavar="N", help="How many handlers.")] = None,
    processors: Annotated[int | None, typer.Option(min=1, metavar="N", help="How many processors.")] = None,
    log_dirs: LogDirs = None,
    port: Port = None,
    json: Json = False,
) -> None:
    """Change the number of worker processes while the broker runs."""
    from mpbroker.cli import ctl
    from mpbroker.cli.here import Here

    ctl.resize(Here(log_dirs, port), handlers, processors, as_json=json)


@ctl_app.command("reload")
def ctl_reload(log_dirs: LogDirs = None, port: Port = None, json: Json = False) -> None:
    """Read the configuration file again.

    What can change while the broker runs does so; what cannot is named.
    """
    from mpbroker.cli import ctl
    from mpbroker.cli.here import Here

    ctl.reload(Here(log_dirs, port), as_json=json)


@listener_app.command("add")
def listener_add(
    listener: Annotated[str, typer.Argument(metavar="NAME://HOST:PORT", hidden=True)],
    protocol: Annotated[
        str | None,
        typer.Option(metavar="PROTOCOL", help="Its security protocol, if its name is not mapped yet."),
    ] = None,
    advertised: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="What its clients are told to connect to.")
    ] = None,
    log_dirs: LogDirs = None,
    port: Port = None,
    json: Json = False,
) -> None:
    """Serve one more listener until the broker stops.

    Or NAME://unix:/path. What is to last longer is written into the configuration.
    """
    from mpbroker.cli import ctl
    from mpbroker.cli.here import Here

    ctl.add_listener(Here(log_dirs, port), listener, protocol, advertised, as_json=json)


@listener_app.command("remove")
def listener_remove(
    name: ListenerName, log_dirs: LogDirs = None, port: Port = None, json: Json = False
) -> None:
    """Stop serving a listener and close its connections."""
    from mpbroker.cli import ctl
    from mpbroker.cli.here import Here

    ctl.remove_listener(Here(log_dirs, port), name, as_json=json)


@listener_app.command("list")
def listener_list(log_dirs: LogDirs = None, port: Port = None, json: Json = False) -> None:
    """Listeners, what each advertises, and what it has counted."""
    from mpbroker.cli import ctl
    from mpbroker.cli.here import Here

    ctl.list_listeners(Here(log_dirs, port), as_json=json)


@doctor_app.callback()
def _doctor(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="A server.properties file.", readable=False),
    ] = None,
    options: Overrides = None,
    listeners: Annotated[
        str | None, typer.Option(metavar="NAME://HOST:PORT,…", help="Addresses to listen on.")
    ] = None,
    log_dirs: LogDirs = None,
    json: Json = False,
) -> None:
    """Say what a broker lacks on this host, and what to do.

    With the settings that serve would have. The exit code is 1 if something keeps it from running.
    """
    if context.invoked_subcommand is not None:
        if json or any((config, options, listeners, log_dirs)):
            raise CliError(f"options go behind {context.invoked_subcommand}", USAGE_ERROR)
        return
    from mpbroker.cli import doctor

    flags = {"--listeners": listeners, "--log-dirs": log_dirs}
    doctor.host(config, options or [], flags, as_json=json)


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
    from mpbroker.cli import doctor

    doctor.spark(log_dirs, as_json=json)
