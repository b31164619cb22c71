"""`mpbroker ctl`: prints the supervisor's answers."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mpbroker.cli.app import App
from mpbroker.cli.broker_flags import LocalBootstrap, LogDirs, Port
from mpbroker.cli.errors import USAGE_ERROR, CliError, file_error
from mpbroker.cli.flags import Json, ListenerName
from mpbroker.cli.host.local_broker import LocalBroker
from mpbroker.cli.text.numbers import INT, SECONDS
from mpbroker.cli.text.output import print_document, print_groups, print_json
from mpbroker.cli.text.sizes import decimal_size
from mpbroker.config.listeners import page_url
from mpbroker.ipc import console_token
from mpbroker.protocol.printable import printable
from shm import procfs

ctl_app = App(no_args_is_help=True)
listener_app = App(no_args_is_help=True, help="Listeners of a running broker.")
ctl_app.add_typer(listener_app, name="listener")
# A worker that leaves waits for slow clients to take what it has for them, as long as the supervisor lets it.
RESIZE_TIMEOUT_SECONDS = 120.0
# Handlers are replaced one after the other.
RELOAD_TIMEOUT_SECONDS = 300.0


@ctl_app.callback()
def _ctl(
    context: typer.Context, log_dirs: LogDirs = None, port: Port = None, bootstrap: LocalBootstrap = None
) -> None:
    flags = {"log_dirs": log_dirs, "port": port, "bootstrap": bootstrap}
    given = {name: value for name, value in flags.items() if value is not None}
    if given and isinstance(context.command, TyperGroup):
        context.default_map = _defaults(context.command, given)


def _defaults(group: TyperGroup, given: dict[str, Any]) -> dict[str, Any]:
    """Return Click's default_map of a group, which makes `given` the defaults of each command."""
    return {
        name: _defaults(command, given) if isinstance(command, TyperGroup) else given
        for name, command in group.commands.items()
    }


@ctl_app.command("status")
def status(here: LocalBroker, *, as_json: Json = False) -> None:
    """Processes, listeners and counters of the broker."""
    reply = here.control().call("status")
    errors: list[str] = []
    if not as_json:
        processes = reply.get("processes", [])
        errors = [f"not ready: {printable(one)}" for one in reply.pop("problems", ())] + last_errors(
            processes
        )
        if dirs := reply.get("log_dirs"):
            reply["log_dirs"] = [_in_units(one) for one in dirs]
        if "records_appended" in reply:
            reply["records_appended"] = f"{reply['records_appended']:,}, with the broker's own"
        reply["processes"] = short(processes)
        if "up_s" in reply:
            reply = {"up" if name == "up_s" else name: value for name, value in reply.items()}
            reply["up"] = str(timedelta(seconds=int(reply["up"])))
        if offline := reply.get("offline_partitions"):
            reply["offline_partitions"] = f"{offline}, see the broker's log and mpbroker topic describe"
        if not reply.get("recovery"):
            reply.pop("recovery", None)
        if "scrub" in reply:
            reply["scrub"] = scrub_text(reply["scrub"])
    _show(reply, as_json=as_json)
    if errors:
        print("\n" + "\n".join(errors))


def _in_units(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with each number of bytes as text with its unit, under a name without the unit."""
    return {
        name.removesuffix("_bytes"): decimal_size(value)
        if name.endswith("_bytes") and isinstance(value, int)
        else value
        for name, value in row.items()
    }


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
    *,
    here: LocalBroker,
    json: Json = False,
) -> None:
    """Say whether recovery is over and each listener answers.

    The exit code is 0 if so, and 1 if not, or if no broker runs.
    """
    from mpbroker.cli.host import ready

    raise typer.Exit(ready.ready(here, wait, as_json=json))


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
    *,
    here: LocalBroker,
    json: Json = False,
) -> None:
    """Kafka's metrics by their JMX names.

    They are read from shared memory, which works even while the broker hangs.
    """
    from mpbroker.cli.host import metrics

    metrics.show(here, filters or [], interval, file, as_json=json)


@ctl_app.command("request-log")
def request_log(
    here: LocalBroker,
    switch: Annotated[str | None, typer.Argument(metavar="on|off", hidden=True)] = None,
    *,
    as_json: Json = False,
) -> None:
    """Log every request with its times, or say whether that is on.

    As kafka.request.logger does at DEBUG.
    """
    if switch not in (None, "on", "off"):
        raise CliError(f"the request log is on or off, not {switch!r}", USAGE_ERROR)
    wanted = {} if switch is None else {"on": switch == "on"}
    reply = here.control().call("request-log", **wanted)
    if as_json:
        print_json(reply)
    else:
        print(f"the request log is {'on' if reply['request_log'] else 'off'}")


@ctl_app.command("log-level")
def log_level(
    here: LocalBroker,
    logger: Annotated[str | None, typer.Argument(metavar="LOGGER", hidden=True)] = None,
    level: Annotated[str | None, typer.Argument(metavar="LEVEL", hidden=True)] = None,
    *,
    as_json: Json = False,
) -> None:
    """Levels of the broker's loggers; change one until it stops.

    LOGGER is root or one of the list; LEVEL is TRACE, DEBUG, INFO, WARN, ERROR, FATAL or default.
    """
    if logger is not None and level is None:
        raise CliError(f"which level shall {logger} have? Say a level, or default", USAGE_ERROR)
    wanted = {}
    if logger is not None and level is not None:
        wanted = {"logger": logger, "level": "" if level.lower() == "default" else level.upper()}
    reply = here.control().call("log-level", **wanted)
    loggers = reply["loggers"] if logger is None else {logger: reply["loggers"][logger]}
    if as_json:
        print_json({"loggers": loggers})
        return
    for name, now in loggers.items():
        print(f"{name} {now}")


@ctl_app.command("console")
def console(here: LocalBroker, *, as_json: Json = False) -> None:
    """Print the web console's address with its token.

    Changes need the token, and reading records may. Do not pass it on.
    """
    supervisor = here.control()
    address = supervisor.call("status").get("http")
    if not address:
        raise CliError("the broker serves no HTTP: start it with --http HOST:PORT, such as 127.0.0.1:9644")
    path = supervisor.checked(console_token.NAME)
    try:
        token = console_token.read(path.parent)
    except OSError as error:
        raise file_error(error, path) from error
    if not token:
        raise CliError(f"{path} is missing: restart the broker, which creates it")
    url = f"{page_url(address)}#token={token}"
    if as_json:
        print_json({"url": url})
    else:
        print(url)


@ctl_app.command("resize")
def resize(
    handlers: Annotated[
        int | None, typer.Option(min=1, callback=INT, metavar="N", help="How many handlers.")
    ] = None,
    processors: Annotated[
        int | None, typer.Option(min=1, callback=INT, metavar="N", help="How many processors.")
    ] = None,
    *,
    here: LocalBroker,
    as_json: Json = False,
) -> None:
    """Change the number of worker processes while the broker runs."""
    wanted = {"handlers": handlers, "processors": processors}
    given = {name: number for name, number in wanted.items() if number is not None}
    if not given:
        raise CliError("nothing to resize: give --handlers N, --processors N or both", USAGE_ERROR)
    supervisor = here.control()
    supervisor.timeout_seconds = RESIZE_TIMEOUT_SECONDS
    _show(supervisor.call("resize", **given), as_json=as_json)


@ctl_app.command("reload")
def reload(here: LocalBroker, *, as_json: Json = False) -> None:
    """Read the configuration file again.

    Applies settings that can change while the broker runs, and names those that cannot.
    """
    supervisor = here.control()
    supervisor.timeout_seconds = RELOAD_TIMEOUT_SECONDS
    reply = supervisor.call("reload")
    if as_json:
        print_json(reply)
        return
    lines = [f"warning: {text}" for text in reply["warnings"]]
    lines += [f"{what} {', '.join(reply[what])}" for what in ("changed", "replaced") if reply[what]]
    if not (reply["changed"] or reply["at_next_start"]):
        lines.append("the configuration is as it was")
    print("\n".join(lines))


@listener_app.command("add")
def add_listener(
    listener: Annotated[str, typer.Argument(metavar="NAME://HOST:PORT", hidden=True)],
    protocol: Annotated[
        str | None,
        typer.Option(metavar="PROTOCOL", help="Its security protocol, if its name is not mapped yet."),
    ] = None,
    advertised: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The address that its clients connect to.")
    ] = None,
    *,
    here: LocalBroker,
    as_json: Json = False,
) -> None:
    """Serve one more listener until the broker stops.

    Or NAME://unix:/path. To keep it across restarts, write it into the configuration.
    """
    wanted = {"listener": listener, "protocol": protocol, "advertised": advertised}
    given = {name: text for name, text in wanted.items() if text is not None}
    _show_listener("added", here.control().call("listener-add", **given), as_json=as_json)


@listener_app.command("remove")
def remove_listener(here: LocalBroker, name: ListenerName, *, as_json: Json = False) -> None:
    """Stop serving a listener and close its connections."""
    reply = here.control().call("listener-remove", listener=name)
    _show_listener("removed", reply, as_json=as_json)


@listener_app.command("list")
def list_listeners(here: LocalBroker, *, as_json: Json = False) -> None:
    """List the listeners, their advertised addresses and counters."""
    reply = here.control().call("listeners")
    if as_json:
        print_json(reply)
        return
    rows = [dict(row) for row in reply["listeners"]]
    print_groups((row.pop("listener"), row) for row in rows)


def scrub_text(scrub: dict[str, Any]) -> str:
    """Describe the scrubber in one line; `mpbroker log scrub --status` has the findings."""
    damaged = scrub["damaged_ranges"]
    known = (
        f"{damaged} damaged range(s), see mpbroker log scrub --status" if damaged else "no damage is known"
    )
    if not scrub["running"]:
        return known
    return f"{scrub['pass_bytes']:,} of {scrub['pass_total_bytes']:,} bytes, {known}"


def short(processes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the most important values of each process, as columns that fit into 80 characters.

    --json prints all values.
    """
    rows = []
    for process in processes:
        row = dict(process)
        row.pop("turns", None)
        row.pop("incarnation", None)
        if "restarts" in row:  # last, after what the process is and does
            row["restarts"] = row.pop("restarts")
        # A process's own status is more specific than that it runs.
        if status := row.pop("status", ""):
            row["state"] = status
        if "heartbeat_age_ms" in row:
            row["heartbeat_ms"] = row.pop("heartbeat_age_ms")
        # Resident memory would count the shared part once for each process.
        if row.pop("rss_bytes", None) is not None:
            row["pss"] = _pss_text(row["pid"])
        row.pop("last_error", None)
        rows.append(row)
    return rows


def _pss_text(pid: int) -> str | None:
    """Return the proportional set size (PSS) of a process as text; None if it is not known."""
    try:
        found = procfs.pss_bytes(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if found is None else decimal_size(found)


def last_errors(processes: list[dict[str, Any]]) -> list[str]:
    """Return a line for the last error of each process. In a table a long error would widen its column."""
    said = [(process["name"], process.get("last_error", "").strip()) for process in processes]
    return [
        f"last error of {name}: {printable(error.splitlines()[-1].strip())}" for name, error in said if error
    ]


def _show_listener(what: str, reply: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(reply)
    else:
        print(f"{what} listener {reply['listener']}")


def _show(reply: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(reply)
    else:
        print_document(reply)
