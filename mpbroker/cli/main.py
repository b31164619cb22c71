"""Commands and their flags; what a command does stands in a module of its own, imported when it is called."""

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mpbroker.cli.errors import RUNTIME_ERROR, USAGE_ERROR, CliError
from mpbroker.cli.where import Where
from mpbroker.client.errors import ClientError, ConfigError

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

app = typer.Typer(
    name="mpbroker",
    help="A Kafka-compatible message broker, and the commands to use and steer it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
topic_app = typer.Typer(no_args_is_help=True, help="Create, list, describe and delete topics.")
user_app = typer.Typer(no_args_is_help=True, help="Add, list and delete SCRAM users.")
ctl_app = typer.Typer(no_args_is_help=True, help="Look at a running broker on this host, and steer it.")
quota_app = typer.Typer(no_args_is_help=True, help="Set, list and delete the quotas of clients.")
log_app = typer.Typer(no_args_is_help=True, help="Look into the files of log directories.")
app.add_typer(topic_app, name="topic")
app.add_typer(log_app, name="log")
app.add_typer(user_app, name="user")
app.add_typer(quota_app, name="quota")
app.add_typer(ctl_app, name="ctl")
listener_app = typer.Typer(no_args_is_help=True, help="Listeners of a running broker.")
ctl_app.add_typer(listener_app, name="listener")

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT",
        envvar="MPBROKER_BOOTSTRAP_SERVER",
        help="Where the broker is.",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="Properties of Kafka's clients: security.protocol, sasl.*, ssl.*, timeouts.",
    ),
]
Timeout = Annotated[
    float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="How long to wait for the broker.")
]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
LogDirs = Annotated[
    str | None,
    typer.Option("--log-dirs", metavar="DIR,…", help="Data directories of the broker (default: ./data)."),
]
Overrides = Annotated[
    list[str] | None, typer.Option("-o", metavar="KEY=VALUE", help="Set any key of the file; repeatable.")
]


def _version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        typer.echo(f"mpbroker {version('mpbroker')}")
    except PackageNotFoundError:
        typer.echo("mpbroker, running from its source directory")
    raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del show_version


@app.command()
def serve(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="A server.properties file.")
    ] = None,
    options: Overrides = None,
    listeners: Annotated[
        str | None,
        typer.Option(
            metavar="NAME://HOST:PORT,…", help="Addresses to listen on (default: PLAINTEXT://127.0.0.1:9092)."
        ),
    ] = None,
    log_dirs: LogDirs = None,
    processors: Annotated[
        str | None, typer.Option(metavar="N", help="Processor processes (network; default: to fit the CPUs).")
    ] = None,
    handlers: Annotated[
        str | None, typer.Option(metavar="N", help="Handler processes (requests; default: to fit the CPUs).")
    ] = None,
    log_workers: Annotated[
        str | None, typer.Option(metavar="N", help="Log processes (disk; only 1 in this version).")
    ] = None,
    check_config: Annotated[
        bool, typer.Option("--check-config", help="Check the settings and exit.")
    ] = False,
) -> None:
    """Run a broker until it is told to stop."""
    from mpbroker.cli import serve as command

    flags = {
        "--listeners": listeners,
        "--log-dirs": log_dirs,
        "--processors": processors,
        "--handlers": handlers,
        "--log-workers": log_workers,
    }
    raise typer.Exit(command.serve(config, options or [], flags, check_only=check_config))


@topic_app.command("create")
def topic_create(
    name: str,
    partitions: Annotated[int, typer.Option("--partitions", "-p", help="-1: as the broker is set.")] = -1,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", "-r", help="-1: as the broker is set.")
    ] = -1,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="Topic setting; repeatable."),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="An existing topic is fine.")
    ] = False,
    timeout: Timeout = 30.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Create a topic."""
    from mpbroker.cli import topics

    new = topics.New(name, partitions, replication_factor, config or [])
    where = Where(bootstrap, command_config)
    topics.create(where, new, timeout, if_not_exists=if_not_exists)


@topic_app.command("list")
def topic_list(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, command_config: CommandConfig = None, json: Json = False
) -> None:
    """List all topics."""
    from mpbroker.cli import topics

    topics.show_list(Where(bootstrap, command_config), as_json=json)


@topic_app.command("describe")
def topic_describe(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]…", help="Default: all.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Partitions, offsets and changed settings of topics."""
    from mpbroker.cli import topics

    topics.describe(Where(bootstrap, command_config), names or [], as_json=json)


@topic_app.command("delete")
def topic_delete(
    names: Annotated[list[str], typer.Argument(metavar="NAME…")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    timeout: Timeout = 30.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Delete topics and all their records."""
    from mpbroker.cli import topics

    topics.delete(Where(bootstrap, command_config), names, timeout, dry_run=dry_run)


@user_app.command("add")
def user_add(
    name: str,
    mechanism: Annotated[str, typer.Option(help="SCRAM-SHA-256 or SCRAM-SHA-512.")] = "SCRAM-SHA-512",
    iterations: Annotated[
        int, typer.Option(min=4096, max=16384, help="Rounds of hashing that a guess costs.")
    ] = 8192,
    password_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Its first line is the password; - is standard input."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Set a user's password; it is asked for if no file has it."""
    from mpbroker.cli import users

    users.add(Where(bootstrap, command_config), name, mechanism, iterations, password_file)


@user_app.command("list")
def user_list(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, command_config: CommandConfig = None, json: Json = False
) -> None:
    """List users and their mechanisms."""
    from mpbroker.cli import users

    users.show_list(Where(bootstrap, command_config), as_json=json)


@user_app.command("delete")
def user_delete(
    name: str,
    mechanism: Annotated[str | None, typer.Option(help="Only this one; default: all.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Delete a user's credentials."""
    from mpbroker.cli import users

    users.delete(Where(bootstrap, command_config), name, mechanism)


User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Whose: a user's.")]
ClientId = Annotated[
    str | None,
    typer.Option("--client-id", metavar="NAME", help="A client's; with --user of that user alone."),
]
Address = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="An address's.")]
Defaults = Annotated[
    list[str] | None,
    typer.Option(
        "--default",
        metavar="user|client-id|ip",
        help="Everybody's who has none of their own; repeatable, and beside --user.",
    ),
]


@quota_app.command("set")
def quota_set(
    quotas: Annotated[
        list[str],
        typer.Argument(
            metavar="QUOTA=NUMBER…",
            help="producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate; "
            "of addresses connection_creation_rate.",
        ),
    ],
    user: User = None,
    client_id: ClientId = None,
    ip: Address = None,
    default: Defaults = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Limit what clients may use."""
    from mpbroker.cli import quotas as command

    whom = command.Whom(user, client_id, ip, default or [])
    command.set_quotas(Where(bootstrap, command_config), whom, quotas)


@quota_app.command("list")
def quota_list(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, command_config: CommandConfig = None, json: Json = False
) -> None:
    """All quotas that are set."""
    from mpbroker.cli import quotas as command

    command.show_list(Where(bootstrap, command_config), as_json=json)


@quota_app.command("delete")
def quota_delete(
    quotas: Annotated[list[str], typer.Argument(metavar="QUOTA…")],
    user: User = None,
    client_id: ClientId = None,
    ip: Address = None,
    default: Defaults = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Take a limit away."""
    from mpbroker.cli import quotas as command

    whom = command.Whom(user, client_id, ip, default or [])
    command.delete_quotas(Where(bootstrap, command_config), whom, quotas)


@app.command()
def produce(
    topic: str,
    partition: Annotated[int, typer.Option("--partition", "-p", help="-1: by key, else in turn.")] = -1,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator",
            "-K",
            metavar="SEP",
            help="What stands between key and value; a line without it has no key.",
        ),
    ] = None,
    acks: Annotated[str, typer.Option(metavar="all|1|0", help="When a record counts as written.")] = "all",
    compression: Annotated[
        str, typer.Option("--compression", "-z", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    properties: Annotated[
        list[str] | None,
        typer.Option("-X", metavar="KEY=VALUE", help="acks or compression by their names in other clients."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Send each line of standard input as one record."""
    from mpbroker.cli import produce as command

    settings = command.Settings(topic, partition, key_separator, acks, compression)
    command.produce(Where(bootstrap, command_config), settings, properties or [])


@app.command()
def consume(
    topic: str,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="The same as -o beginning.")
    ] = False,
    offset: Annotated[
        str,
        typer.Option(
            "--offset", "-o", metavar="beginning|end|N|-N", help="-N: the last N of each partition."
        ),
    ] = "end",
    partition: Annotated[int, typer.Option("--partition", "-p", help="-1: all.")] = -1,
    count: Annotated[int, typer.Option("-n", metavar="N", help="Stop after N records; 0: never.")] = 0,
    exit_at_end: Annotated[bool, typer.Option("-e", help="Stop at the end of all partitions.")] = False,
    template: Annotated[
        str,
        typer.Option(
            "-f",
            metavar="FORMAT",
            help="%t topic, %p partition, %o offset, %k key, %v value, %T timestamp, %h headers, "
            "%K and %S lengths of key and value.",
        ),
    ] = "%v\\n",
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Print records of a topic as they come."""
    from mpbroker.cli import consume as command

    start = "beginning" if from_beginning else offset
    settings = command.Settings(topic, partition, start, count, exit_at_end, template, json)
    command.consume(Where(bootstrap, command_config), settings)


@ctl_app.callback()
def _ctl(context: typer.Context, log_dirs: LogDirs = None) -> None:
    if log_dirs is not None and isinstance(context.command, TyperGroup):
        context.default_map = _defaults(context.command, log_dirs)


def _defaults(group: TyperGroup, log_dirs: str) -> dict[str, Any]:
    """--log-dirs of every command below, if it has none of its own."""
    return {
        name: _defaults(command, log_dirs) if isinstance(command, TyperGroup) else {"log_dirs": log_dirs}
        for name, command in group.commands.items()
    }


@log_app.command("dump")
def log_dump(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH…", help="A partition's directory, or a file in it.")
    ],
    records: Annotated[bool, typer.Option("--records", help="The records of each batch, too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="A JSON document per line.")] = False,
) -> None:
    """Batches, index entries, producers and checkpoints, entry by entry."""
    from mpbroker.cli import logs

    logs.dump(paths, with_records=records, as_json=json)


@log_app.command("verify")
def log_verify(
    paths: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Directories of log.dirs, or of single partitions.")
    ],
    json: Json = False,
) -> None:
    """Read everything; say what is damaged, torn, or will be made anew. Exit code 1: records are damaged."""
    from mpbroker.cli import logs

    logs.verify(paths, as_json=json)


@log_app.command("repair")
def log_repair(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a partition.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Take damaged batches out of a stopped broker's partition, keep the rest and the damaged files."""
    from mpbroker.cli import logs

    logs.repair(path, is_sure=yes)


@log_app.command("scrub")
def log_scrub(
    log_dirs: LogDirs = None,
    status: Annotated[bool, typer.Option("--status", help="Begin nothing, only say how it is.")] = False,
    json: Json = False,
) -> None:
    """Have the running broker look for damage in its segments now; say what it does and has found."""
    from mpbroker.cli import scrub

    scrub.scrub(log_dirs, only_status=status, as_json=json)


@ctl_app.command("status")
def ctl_status(log_dirs: LogDirs = None, json: Json = False) -> None:
    """Processes, listeners and counters of the broker."""
    from mpbroker.cli import ctl

    ctl.status(log_dirs, as_json=json)


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
        float, typer.Option(min=0, metavar="SECONDS", help="Between two looks, for rates; 0: one look.")
    ] = 1.0,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The public region of a broker that is gone.")
    ] = None,
    log_dirs: LogDirs = None,
    json: Json = False,
) -> None:
    """Kafka's metrics by their JMX names, read from shared memory: a jammed broker has them too."""
    from mpbroker.cli import metrics

    metrics.show(log_dirs, filters or [], interval, file, as_json=json)


@ctl_app.command("request-log")
def ctl_request_log(
    switch: Annotated[str | None, typer.Argument(metavar="on|off", help="Default: say how it is.")] = None,
    log_dirs: LogDirs = None,
    json: Json = False,
) -> None:
    """Log every request with its times, as kafka.request.logger does at DEBUG."""
    from mpbroker.cli import ctl

    ctl.request_log(log_dirs, switch, as_json=json)


@ctl_app.command("resize")
def ctl_resize(
    handlers: Annotated[int | None, typer.Option(min=1, help="New number of handlers.")] = None,
    processors: Annotated[int | None, typer.Option(min=1, help="New number of processors.")] = None,
    log_dirs: LogDirs = None,
    json: Json = False,
) -> None:
    """Change the number of worker processes while the broker runs."""
    from mpbroker.cli import ctl

    ctl.resize(log_dirs, handlers, processors, as_json=json)


@ctl_app.command("reload")
def ctl_reload(log_dirs: LogDirs = None, json: Json = False) -> None:
    """Read the configuration file again, and change what can change while the broker runs."""
    from mpbroker.cli import ctl

    ctl.reload(log_dirs, as_json=json)


@listener_app.command("add")
def listener_add(
    listener: Annotated[str, typer.Argument(metavar="NAME://HOST:PORT", help="Or NAME://unix:/path.")],
    protocol: Annotated[
        str | None, typer.Option(help="Its security protocol, if its name is not mapped yet.")
    ] = None,
    advertised: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="What its clients are told to connect to.")
    ] = None,
    log_dirs: LogDirs = None,
    json: Json = False,
) -> None:
    """Serve one more listener until the broker stops; for longer write it into the configuration."""
    from mpbroker.cli import ctl

    ctl.add_listener(log_dirs, listener, protocol, advertised, as_json=json)


@listener_app.command("remove")
def listener_remove(name: str, log_dirs: LogDirs = None, json: Json = False) -> None:
    """Stop serving a listener and close its connections."""
    from mpbroker.cli import ctl

    ctl.remove_listener(log_dirs, name, as_json=json)


@listener_app.command("list")
def listener_list(log_dirs: LogDirs = None, json: Json = False) -> None:
    """Listeners, what each advertises, and what it has counted."""
    from mpbroker.cli import ctl

    ctl.list_listeners(log_dirs, as_json=json)


def main() -> None:
    """Entry point of the `mpbroker` executable."""
    try:
        app(prog_name="mpbroker")
    except CliError as error:
        for line in str(error).splitlines():
            print(f"mpbroker: {line}", file=sys.stderr)
        sys.exit(error.exit_code)
    except ClientError as error:
        print(f"mpbroker: {error}", file=sys.stderr)
        sys.exit(USAGE_ERROR if isinstance(error, ConfigError) else RUNTIME_ERROR)
    except BrokenPipeError:
        # Whoever read our output has gone (`| head`); Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(RUNTIME_ERROR)
