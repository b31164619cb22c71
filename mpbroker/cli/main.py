"""Commands and their flags. What a command does is in a module of its own, imported when it is called."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from mpbroker.cli import standard_output
from mpbroker.cli.acl import acl_app
from mpbroker.cli.app import App
from mpbroker.cli.errors import RUNTIME_ERROR, USAGE_ERROR, CliError, needing_openssl, of_file
from mpbroker.cli.flags import (
    DEFAULT_BOOTSTRAP,
    Address,
    Bootstrap,
    ClientId,
    CommandConfig,
    Defaults,
    GroupNames,
    Json,
    LogDirs,
    Overrides,
    Timeout,
    TopicName,
    User,
    UserName,
)
from mpbroker.cli.on_host import ctl_app, log_app
from mpbroker.cli.spark import spark_app
from mpbroker.cli.token import token_app
from mpbroker.cli.where import Where
from mpbroker.client.errors import ClientError, ConfigError
from mpbroker.config.version import VERSION
from mpbroker.protocol.printable import printable

app = App(
    name="mpbroker",
    help="A Kafka-compatible message broker, and the commands to use and manage it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
topic_app = App(no_args_is_help=True, help="Create, list, describe, alter and delete topics.")
group_app = App(no_args_is_help=True, help="List, describe and delete consumer groups.")
user_app = App(no_args_is_help=True, help="Add, list and delete SCRAM users.")
quota_app = App(no_args_is_help=True, help="Set, list and delete the quotas of clients.")
doctor_app = App(invoke_without_command=True)
app.add_typer(topic_app, name="topic")
app.add_typer(group_app, name="group")
app.add_typer(log_app, name="log")
app.add_typer(user_app, name="user")
app.add_typer(quota_app, name="quota")
app.add_typer(acl_app, name="acl")
app.add_typer(token_app, name="token")
app.add_typer(ctl_app, name="ctl")
app.add_typer(spark_app, name="spark")
app.add_typer(doctor_app, name="doctor")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mpbroker {VERSION}")
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
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="A server.properties file.", readable=False),
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
        str | None, typer.Option(metavar="N", help="Log processes (disk; default: 1).")
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(
            "--log-format",
            metavar="text|json",
            help="Lines of the broker's log (default: $MPBROKER_LOG_FORMAT, or text).",
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve metrics and health over HTTP, such as 127.0.0.1:9644."),
    ] = None,
    check_config: Annotated[
        bool, typer.Option("--check-config", help="Check the settings and exit.")
    ] = False,
) -> None:
    """Run a broker until it is told to stop."""
    with needing_openssl():
        from mpbroker.cli import serve as command

    flags = {
        "--listeners": listeners,
        "--log-dirs": log_dirs,
        "--processors": processors,
        "--handlers": handlers,
        "--log-workers": log_workers,
        "--http": http,
    }
    code = command.serve(config, options or [], flags, log_format=log_format, check_only=check_config)
    raise typer.Exit(code)


LogDirectories = Annotated[list[Path], typer.Argument(metavar="DIR...", hidden=True, readable=False)]


@app.command("export")
def export(
    paths: LogDirectories,
    controller: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Where Kafka's controller is to listen."),
    ] = "localhost:9093",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    json: Json = False,
) -> None:
    """Turn a broker's directories into Apache Kafka's.

    The broker is stopped. Name all of log.dirs. mpbroker goes on with them too, until Kafka has been started.
    """
    from mpbroker.cli import migration

    migration.export(paths, controller, is_dry=dry_run, as_json=json)


@app.command("import")
def import_(
    paths: LogDirectories,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    json: Json = False,
) -> None:
    """Take over the directories of a stopped Apache Kafka 4 node.

    Name all of log.dirs, and metadata.log.dir.
    """
    from mpbroker.cli import migration

    migration.import_(paths, is_dry=dry_run, as_json=json)


@topic_app.command("create")
def topic_create(
    name: TopicName,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", metavar="N", help="-1: the broker's default.")
    ] = -1,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", "-r", metavar="N", help="-1: the broker's default.")
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
    names: Annotated[list[str] | None, typer.Argument(metavar="TOPIC...", hidden=True)] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Partitions, offsets and changed settings of topics. Default: of all."""
    from mpbroker.cli import topics

    topics.describe(Where(bootstrap, command_config), names or [], as_json=json)


@topic_app.command("alter")
def topic_alter(
    name: TopicName,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="Set it for the topic; repeatable."),
    ] = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", metavar="KEY", help="Reset it to the broker's default; repeatable."),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, metavar="N", help="How many in all; never fewer."),
    ] = None,
    timeout: Timeout = 30.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Change settings of a topic, or give it more partitions."""
    from mpbroker.cli import topic_changes

    changes = topic_changes.Changes(config or [], delete_config or [], partitions)
    topic_changes.alter(Where(bootstrap, command_config), name, changes, timeout)


@topic_app.command("delete-records")
def topic_delete_records(
    name: TopicName,
    before: Annotated[
        str,
        typer.Option("--before", metavar="OFFSET|latest", help="The first that stays; latest: none does."),
    ],
    partition: Annotated[int, typer.Option("--partition", metavar="N", help="-1: all.")] = -1,
    timeout: Timeout = 30.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Delete the records of a topic below an offset."""
    from mpbroker.cli import topic_changes

    where = Where(bootstrap, command_config)
    topic_changes.delete_records(where, name, partition, before, timeout)


@topic_app.command("delete")
def topic_delete(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...", hidden=True)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    timeout: Timeout = 30.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Delete topics and all their records."""
    from mpbroker.cli import topics

    topics.delete(Where(bootstrap, command_config), names, timeout, dry_run=dry_run)


@group_app.command("list")
def group_list(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, command_config: CommandConfig = None, json: Json = False
) -> None:
    """List all groups."""
    from mpbroker.cli import groups

    groups.show_list(Where(bootstrap, command_config), as_json=json)


@group_app.command("describe")
def group_describe(
    names: GroupNames,
    members: Annotated[
        bool, typer.Option("--members", help="Who they are, and which partitions each has.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Committed offsets, how far behind they are, and who reads there."""
    from mpbroker.cli import groups

    groups.describe(Where(bootstrap, command_config), names, with_members=members, as_json=json)


@group_app.command("delete")
def group_delete(
    names: GroupNames, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, command_config: CommandConfig = None
) -> None:
    """Delete groups without members, and their offsets."""
    from mpbroker.cli import groups

    groups.delete(Where(bootstrap, command_config), names)


@user_app.command("add")
def user_add(
    name: UserName,
    mechanism: Annotated[
        str, typer.Option(metavar="NAME", help="SCRAM-SHA-256 or SCRAM-SHA-512.")
    ] = "SCRAM-SHA-512",
    iterations: Annotated[
        int,
        typer.Option(min=4096, max=16384, metavar="N", help="Iterations of PBKDF2 for the SCRAM credential."),
    ] = 8192,
    password_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Its first line is the password; - is standard input.", readable=False
        ),
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
    name: UserName,
    mechanism: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this one; default: all.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Delete a user's credentials."""
    from mpbroker.cli import users

    users.delete(Where(bootstrap, command_config), name, mechanism)


@quota_app.command("set")
def quota_set(
    quotas: Annotated[
        list[str],
        typer.Argument(metavar="QUOTA=NUMBER...", hidden=True),
    ],
    user: User = None,
    client_id: ClientId = None,
    ip: Address = None,
    default: Defaults = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Limit what clients may use.

    QUOTA is producer_byte_rate, consumer_byte_rate, request_percentage or controller_mutation_rate, of
    addresses connection_creation_rate.
    """
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
    quotas: Annotated[list[str], typer.Argument(metavar="QUOTA...", hidden=True)],
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


@app.command()
def top(
    log_dirs: LogDirs = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server",
            "-b",
            metavar="HOST:PORT",
            help="Find the broker by its port, and ask it for its groups there.",
        ),
    ] = None,
    command_config: CommandConfig = None,
    view: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="processes, requests, memory, partitions or groups."),
    ] = None,
    interval: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Time between looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print tables of now and exit.")] = False,
    json: Annotated[bool, typer.Option("--json", help="With or without --once: JSON of now.")] = False,
) -> None:
    """Watch a broker on this host, live.

    Of a broker that does not run it shows what the log directories have.
    """
    from mpbroker.cli.top import command
    from mpbroker.cli.top.watch import Wanted

    command.run(Wanted(log_dirs, bootstrap, command_config), interval, view, once=once, as_json=json)


@app.command()
def produce(
    topic: TopicName,
    partition: Annotated[
        int,
        typer.Option(
            "--partition",
            "-p",
            metavar="N",
            help="-1: by key; lines without one in turn, as many at a time as one read brings.",
        ),
    ] = -1,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator",
            "-K",
            metavar="SEP",
            help="Separator between key and value (also \\t, \\xHH …); a line without it has no key.",
        ),
    ] = None,
    acks: Annotated[str, typer.Option(metavar="all|1|0", help="When a record counts as written.")] = "all",
    compression: Annotated[
        str, typer.Option("--compression", "-z", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    headers: Annotated[
        list[str] | None,
        typer.Option(
            "-H",
            metavar="NAME=VALUE",
            help="A header of every record; NAME alone: with a null value; repeatable.",
        ),
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("-X", metavar="KEY=VALUE", help="acks or compression by their names in other clients."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Send each line of standard input as one record."""
    from mpbroker.cli import produce as command

    named = command.parse_headers(headers or [])
    settings = command.Settings(topic, partition, key_separator, acks, compression, named)
    command.produce(Where(bootstrap, command_config), settings, properties or [])


ColumnFile = Annotated[
    Path | None,
    typer.Option(
        "--to", metavar="FILE", help="What is committed now, into a .parquet or .arrow file.", readable=False
    ),
]


@app.command()
def consume(
    topic: TopicName,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="The same as -o beginning.")
    ] = False,
    offset: Annotated[
        str | None,
        typer.Option(
            "--offset",
            "-o",
            metavar="beginning|end|N|-N",
            help="-N: the last N of each partition; default: end, with --to beginning.",
        ),
    ] = None,
    partition: Annotated[int, typer.Option("--partition", "-p", metavar="N", help="-1: all.")] = -1,
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
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="One JSON object a line; what is not UTF-8 in base64, as key_base64 and value_base64.",
        ),
    ] = False,
    to: ColumnFile = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of --to.")] = False,
    log_dirs: Annotated[
        str | None,
        typer.Option(
            "--log-dirs", metavar="DIR,…", help="With --to: read the files there, if they are here."
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Print records of a topic as they come.

    They include records of open and aborted transactions. --to writes the committed records of now to a file,
    atomically.
    """
    where = Where(bootstrap, command_config)
    if to is not None:
        from mpbroker.cli import to_file

        if json or template != "%v\\n":
            raise CliError("--to writes columns: -f and --json are for printing", USAGE_ERROR)
        start = "beginning" if from_beginning else offset or "beginning"
        to_file.write(where, to_file.Settings(topic, partition, start, count, to, overwrite, log_dirs))
        return
    if overwrite or log_dirs is not None:
        raise CliError("--overwrite and --log-dirs go with --to", USAGE_ERROR)
    from mpbroker.cli import consume as command

    start = "beginning" if from_beginning else offset or "end"
    settings = command.Settings(topic, partition, start, count, exit_at_end, template, json)
    command.consume(where, settings)


def main() -> None:
    """Run the `mpbroker` command."""
    standard_output.name_failures()
    code = _exit_code(lambda: app.only(sys.argv[1:2])(prog_name="mpbroker"))
    sys.exit(_exit_code(standard_output.flush) or code)


def _exit_code(call: Callable[[], object]) -> int:
    """Run a command and return its exit code.

    A failure is printed as a line that says what and where; a bug stays a traceback.
    """
    try:
        call()
    except SystemExit as ended:
        return int(ended.code or 0)
    except CliError as error:
        return _say(str(error), error.exit_code)
    except ClientError as error:
        return _say(str(error), USAGE_ERROR if isinstance(error, ConfigError) else RUNTIME_ERROR)
    except BrokenPipeError:
        # The reader of our output has gone (`| head`).
        standard_output.give_up()
        return RUNTIME_ERROR
    except OSError as error:
        if error.filename is None or error.strerror is None:
            raise
        if error.filename == standard_output.NAME:
            standard_output.give_up()
        return _say(str(of_file(error)), RUNTIME_ERROR)
    return 0


def _say(text: str, code: int) -> int:
    for line in text.splitlines():
        print(f"mpbroker: {printable(line)}", file=sys.stderr)
    return code
