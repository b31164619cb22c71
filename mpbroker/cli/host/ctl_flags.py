"""The flags of `mpbroker ctl`; what its commands do is in `ctl`, `metrics` and `ready`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mpbroker.cli.app import App
from mpbroker.cli.flags import Json, ListenerName, LocalBootstrap, LogDirs, Port
from mpbroker.cli.text.numbers import INT, SECONDS

ctl_app = App(no_args_is_help=True)
listener_app = App(no_args_is_help=True, help="Listeners of a running broker.")
ctl_app.add_typer(listener_app, name="listener")


@ctl_app.callback()
def _ctl(
    context: typer.Context, log_dirs: LogDirs = None, port: Port = None, bootstrap: LocalBootstrap = None
) -> None:
    flags = {"log_dirs": log_dirs, "port": port, "bootstrap": bootstrap}
    given = {name: value for name, value in flags.items() if value is not None}
    if given and isinstance(context.command, TyperGroup):
        context.default_map = _defaults(context.command, given)


def _defaults(group: TyperGroup, given: dict[str, Any]) -> dict[str, Any]:
    """Return defaults by which each command of the group gets these flags, unless it has its own."""
    return {
        name: _defaults(command, given) if isinstance(command, TyperGroup) else given
        for name, command in group.commands.items()
    }


@ctl_app.command("status")
def ctl_status(
    log_dirs: LogDirs = None, port: Port = None, bootstrap: LocalBootstrap = None, json: Json = False
) -> None:
    """Processes, listeners and counters of the broker."""
    from mpbroker.cli.host import ctl
    from mpbroker.cli.host.local_broker import LocalBroker

    ctl.status(LocalBroker(log_dirs, port, bootstrap), as_json=json)


@ctl_app.command("ready")
def ctl_ready(
    wait: Annotated[
        float | None,
        typer.Option(
            min=0,
            callback=SECONDS,
            metavar="[SECONDS]",
            help="Wait until it is ready; 60 if no number is given.",
        ),
    ] = None,
    log_dirs: LogDirs = None,
    port: Port = None,
    bootstrap: LocalBootstrap = None,
    json: Json = False,
) -> None:
    """Say whether recovery is over and each listener answers.

    The exit code is 0 if so, and 1 if not, or if no broker runs.
    """
    from mpbroker.cli.host import ready
    from mpbroker.cli.host.local_broker import LocalBroker

    raise typer.Exit(ready.ready(LocalBroker(log_dirs, port, bootstrap), wait, as_json=json))


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
        float,
        typer.Option(
            min=0, callback=SECONDS, metavar="SECONDS", help="Sampling interval, for rates; 0: one sample."
        ),
    ] = 1.0,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The public region of a broker that is gone.", readable=False),
    ] = None,
    log_dirs: LogDirs = None,
    port: Port = None,
    bootstrap: LocalBootstrap = None,
    json: Json = False,
) -> None:
    """Kafka's metrics by their JMX names.

    They are read from shared memory: a jammed broker has them too.
    """
    from mpbroker.cli.host import metrics
    from mpbroker.cli.host.local_broker import LocalBroker

    metrics.show(LocalBroker(log_dirs, port, bootstrap), filters or [], interval, file, as_json=json)


@ctl_app.command("request-log")
def ctl_request_log(
    switch: Annotated[str | None, typer.Argument(metavar="on|off", hidden=True)] = None,
    log_dirs: LogDirs = None,
    port: Port = None,
    bootstrap: LocalBootstrap = None,
    json: Json = False,
) -> None:
    """Log every request with its times, or say whether that is on.

    As kafka.request.logger does at DEBUG.
    """
    from mpbroker.cli.host import ctl
    from mpbroker.cli.host.local_broker import LocalBroker

    ctl.request_log(LocalBroker(log_dirs, port, bootstrap), switch, as_json=json)


@ctl_app.command("log-level")
def ctl_log_level(
    logger: Annotated[str | None, typer.Argument(metavar="LOGGER", hidden=True)] = None,
    level: Annotated[str | None, typer.Argument(metavar="LEVEL", hidden=True)] = None,
    log_dirs: LogDirs = None,
    port: Port = None,
    bootstrap: LocalBootstrap = None,
    json: Json = False,
) -> None:
    """Levels of the broker's loggers; change one until it stops.

    LOGGER is root or one of the list; LEVEL is TRACE, DEBUG, INFO, WARN, ERROR, FATAL or default.
    """
    from mpbroker.cli.host import ctl
    from mpbroker.cli.host.local_broker import LocalBroker

    ctl.log_level(LocalBroker(log_dirs, port, bootstrap), logger, level, as_json=json)


@ctl_app.command("console")
def ctl_console(
    log_dirs: LogDirs = None, port: Port = None, bootstrap: LocalBootstrap = None, json: Json = False
) -> None:
    """Print the web console's address with its token.

    Reading records may need it, and changes do. Do not pass it on.
    """
    from mpbroker.cli.host import ctl
    from mpbroker.cli.host.local_broker import LocalBroker

    ctl.console(LocalBroker(log_dirs, port, bootstrap), as_json=json)


@ctl_app.command("resize")
def ctl_resize(
    handlers: Annotated[
        int | None, typer.Option(min=1, callback=INT, metavar="N", help="How many handlers.")
    ] = None,
    processors: Annotated[
        int | None, typer.Option(min=1, callback=INT, metavar="N", help="How many processors.")
    ] = None,
    log_dirs: LogDirs = None,
    port: Port = None,
    bootstrap: LocalBootstrap = None,
    json: Json = False,
) -> None:
    """Change the number of worker processes while the broker runs."""
    from mpbroker.cli.host import ctl
    from mpbroker.cli.host.local_broker import LocalBroker

    ctl.resize(LocalBroker(log_dirs, port, bootstrap), handlers, processors, as_json=json)


@ctl_app.command("reload")
def ctl_reload(
    log_dirs: LogDirs = None, port: Port = None, bootstrap: LocalBootstrap = None, json: Json = False
) -> None:
    """Read the configuration file again.

    What can change while the broker runs does so; what cannot is named.
    """
    from mpbroker.cli.host import ctl
    from mpbroker.cli.host.local_broker import LocalBroker

    ctl.reload(LocalBroker(log_dirs, port, bootstrap), as_json=json)


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
    bootstrap: LocalBootstrap = None,
    json: Json = False,
) -> None:
    """Serve one more listener until the broker stops.

    Or NAME://unix:/path. What is to last longer is written into the configuration.
    """
    from mpbroker.cli.host import ctl
    from mpbroker.cli.host.local_broker import LocalBroker

    ctl.add_listener(LocalBroker(log_dirs, port, bootstrap), listener, protocol, advertised, as_json=json)


@listener_app.command("remove")
def listener_remove(
    name: ListenerName,
    log_dirs: LogDirs = None,
    port: Port = None,
    bootstrap: LocalBootstrap = None,
    json: Json = False,
) -> None:
    """Stop serving a listener and close its connections."""
    from mpbroker.cli.host import ctl
    from mpbroker.cli.host.local_broker import LocalBroker

    ctl.remove_listener(LocalBroker(log_dirs, port, bootstrap), name, as_json=json)


@listener_app.command("list")
def listener_list(
    log_dirs: LogDirs = None, port: Port = None, bootstrap: LocalBootstrap = None, json: Json = False
) -> None:
    """Listeners, what each advertises, and what it has counted."""
    from mpbroker.cli.host import ctl
    from mpbroker.cli.host.local_broker import LocalBroker

    ctl.list_listeners(LocalBroker(log_dirs, port, bootstrap), as_json=json)
