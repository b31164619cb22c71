"""`mpbroker ctl`: prints the supervisor's answers."""

from datetime import timedelta
from typing import Any

from mpbroker.cli.errors import USAGE_ERROR, CliError, file_error
from mpbroker.cli.host.local_broker import LocalBroker
from mpbroker.cli.text.output import print_document, print_groups, print_json
from mpbroker.cli.text.sizes import decimal_size
from mpbroker.config.listeners import page_url
from mpbroker.ipc import console_token
from mpbroker.protocol.printable import printable
from shm import procfs

# A worker that leaves waits for slow clients to take what it has for them, as long as the supervisor lets it.
RESIZE_TIMEOUT_SECONDS = 120.0
# Handlers are replaced one after the other.
RELOAD_TIMEOUT_SECONDS = 300.0


def status(here: LocalBroker, *, as_json: bool) -> None:
    """Print the supervisor's report of itself and its processes."""
    reply = here.control().call("status")
    errors: list[str] = []
    if not as_json:
        processes = reply.get("processes", [])
        errors = [f"not ready: {printable(one)}" for one in reply.pop("problems", ())] + last_errors(
            processes
        )
        reply = {name: _in_units(name, value) for name, value in reply.items()}
        if dirs := reply.get("log_dirs"):
            reply["log_dirs"] = [
                {name: _in_units(name, value) for name, value in one.items()} for one in dirs
            ]
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


def _in_units(name: str, value: Any) -> Any:
    """Return a number of bytes as people read it."""
    return decimal_size(value) if name.endswith("_bytes") and isinstance(value, int) else value


def request_log(here: LocalBroker, switch: str | None, *, as_json: bool) -> None:
    """Turn the log of requests on or off, or print its state. Raises CliError."""
    if switch not in (None, "on", "off"):
        raise CliError(f"the request log is on or off, not {switch!r}", USAGE_ERROR)
    wanted = {} if switch is None else {"on": switch == "on"}
    reply = here.control().call("request-log", **wanted)
    if as_json:
        print_json(reply)
    else:
        print(f"the request log is {'on' if reply['request_log'] else 'off'}")


def log_level(here: LocalBroker, logger: str | None, level: str | None, *, as_json: bool) -> None:
    """Print the levels of all loggers, or set that of one; "default" is the one at start. Raises CliError."""
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


def console(here: LocalBroker, *, as_json: bool) -> None:
    """Print the URL of the web console with its token. Raises CliError."""
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


def resize(here: LocalBroker, handlers: int | None, processors: int | None, *, as_json: bool) -> None:
    """Ask for other numbers of workers; None keeps a number. Raises CliError."""
    wanted = {"handlers": handlers, "processors": processors}
    given = {name: number for name, number in wanted.items() if number is not None}
    if not given:
        raise CliError("nothing to resize: give --handlers N, --processors N or both", USAGE_ERROR)
    supervisor = here.control()
    supervisor.timeout_seconds = RESIZE_TIMEOUT_SECONDS
    _show(supervisor.call("resize", **given), as_json=as_json)


def reload(here: LocalBroker, *, as_json: bool) -> None:
    """Have the configuration file read again. Return when everything that can change has changed."""
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


def add_listener(
    here: LocalBroker, listener: str, protocol: str | None, advertised: str | None, *, as_json: bool
) -> None:
    """Begin to serve one more listener. Return when it accepts."""
    wanted = {"listener": listener, "protocol": protocol, "advertised": advertised}
    given = {name: text for name, text in wanted.items() if text is not None}
    _show_listener("added", here.control().call("listener-add", **given), as_json=as_json)


def remove_listener(here: LocalBroker, name: str, *, as_json: bool) -> None:
    """Remove a listener and close its connections."""
    reply = here.control().call("listener-remove", listener=name)
    _show_listener("removed", reply, as_json=as_json)


def list_listeners(here: LocalBroker, *, as_json: bool) -> None:
    """Print where the broker listens, and the addresses advertised to clients."""
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

    --json has everything.
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
    """Return the memory of a process, with shared pages divided among those who share; None: not known."""
    try:
        found = procfs.pss_bytes(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if found is None else decimal_size(found)


def last_errors(processes: list[dict[str, Any]]) -> list[str]:
    """Return a line for each process that has had an error; a table would be as wide as the longest."""
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
