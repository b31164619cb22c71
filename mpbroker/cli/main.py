"""Commands and their flags; what a command does stands in a module of its own, imported when it is called."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mpbroker.cli.app import App
from mpbroker.cli.errors import RUNTIME_ERROR, USAGE_ERROR, CliError
from mpbroker.cli.flags import (
    DEFAULT_BOOTSTRAP,
    Address,
    Bootstrap,
    ClientId,
    CommandConfig,
    Defaults,
    GroupNames,
    Json,
    ListenerName,
    LogDirs,
    Overrides,
    Timeout,
    TopicName,
    User,
    UserName,
)
from mpbroker.cli.where import Where
from mpbroker.client.errors import ClientError, ConfigError

app = App(
    name="mpbroker",
    help="A Kafka-compatible message broker, and the commands to use and steer it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
topic_app = App(no_args_is_help=True, help="Create, list, describe and delete topics.")
group_app = App(no_args_is_help=True, help="List, describe and delete consumer groups.")
user_app = App(no_args_is_help=True, help="Add, list and delete SCRAM users.")
ctl_app = App(no_args_is_help=True, help="Look at a running broker on this host, and steer it.")
quota_app = App(no_args_is_help=True, help="Set, list and delete the quotas of clients.")
log_app = App(no_args_is_help=True, help="Look into the files of log directories.")
app.add_typer(topic_app, name="topic")
app.add_typer(group_app, name="group")
app.add_typer(log_app, name="log")
app.add_typer(user_app, name="user")
app.add_typer(quota_app, name="quota")
app.add_typer(ctl_app, name="ctl")
listener_app = App(no_args_is_help=True, help="Listeners of a running broker.")
ctl_app.add_typer(listener_app, name="listener")


def _version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

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
        str | None, typer.Option(metavar="N", help="Log processes (disk; default: 1).")
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
    name: TopicName,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", metavar="N", help="-1: as the broker is set.")
    ] = -1,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", "-r", metavar="N", help="-1: as the broker is set.")
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
    names: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", hidden=True)] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Partitions, offsets and changed settings of topics. Default: of all."""
    from mpbroker.cli import topics

    topics.describe(Where(bootstrap, command_config), names or [], as_json=json)


@topic_app.command("delete")
def topic_delete(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC", hidden=True)],
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
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Members, committed offsets, and how far behind they are."""
    from mpbroker.cli import groups

    groups.describe(Where(bootstrap, command_config), names, as_json=json)


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
        int, typer.Option(min=4096, max=16384, metavar="N", help="Rounds of hashing that a guess costs.")
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
        typer.Argument(metavar="QUOTA=NUMBER", hidden=True),
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
    quotas: Annotated[list[str], typer.Argument(metavar="QUOTA", hidden=True)],
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
    topic: TopicName,
    partition: Annotated[
        int, typer.Option("--partition", "-p", metavar="N", help="-1: by key, else in turn.")
    ] = -1,
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
        str, typer.Option("--compression", "-z", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd.")
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
    topic: TopicName,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="The same as -o beginning.")
    ] = False,
    offset: Annotated[
        str,
        typer.Option(
            "--offset", "-o", metavar="beginning|end|N|-N", help="-N: the last N of each partition."
        ),
    ] = "end",
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
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", hidden=True)],
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
    paths: Annotated[list[Path], typer.Argument(metavar="DIR", hidden=True)],
    json: Json = False,
) -> None:
    """Read everything; say what is damaged, torn, or will be made anew.

    DIR is a directory of log.dirs, or of one partition. The exit code is 1 if records are damaged.
    """
    from mpbroker.cli import logs

    logs.verify(paths, as_json=json)


@log_app.command("repair")
def log_repair(
    path: Annotated[Path, typer.Argument(metavar="DIR", hidden=True)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Take damaged batches out of the partition in DIR.

    The broker has to be stopped. Whole batches stay, and the damaged files are kept beside the new ones.
    """
    from mpbroker.cli import logs

    logs.repair(path, is_sure=yes)


@log_app.command("recover")
def log_recover(
    paths: Annotated[list[Path], typer.Argument(metavar="DIR", hidden=True)],
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
    status: Annotated[bool, typer.Option("--status", help="Begin nothing, only say how it is.")] = False,
    json: Json = False,
) -> None:
    """Have the running broker look for damage in its segments now.

    Says what the scrubber does and what it has found.
    """
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
    """Kafka's metrics by their JMX names.

    They are read from shared memory: a jammed broker has them too.
    """
    from mpbroker.cli import metrics

    metrics.show(log_dirs, filters or [], interval, file, as_json=json)


@ctl_app.command("request-log")
def ctl_request_log(
    switch: Annotated[str | None, typer.Argument(metavar="on|off", hidden=True)] = None,
    log_dirs: LogDirs = None,
    json: Json = False,
) -> None:
    """Log every request with its times, or say whether that is on.

    As kafka.request.logger does at DEBUG.
    """
    from mpbroker.cli import ctl

    ctl.request_log(log_dirs, switch, as_json=json)


@ctl_app.command("resize")
def ctl_resize(
    handlers: Annotated[int | None, typer.Option(min=1, metavar="N", help="How many handlers.")] = None,
    processors: Annotated[int | None, typer.Option(min=1, metavar="N", help="How many processors.")] = None,
    log_dirs: LogDirs = None,
    json: Json = False,
) -> None:
    """Change the number of worker processes while the broker runs."""
    from mpbroker.cli import ctl

    ctl.resize(log_dirs, handlers, processors, as_json=json)


@ctl_app.command("reload")
def ctl_reload(log_dirs: LogDirs = None, json: Json = False) -> None:
    """Read the configuration file again.

    What can change while the broker runs does so; what cannot is named.
    """
    from mpbroker.cli import ctl

    ctl.reload(log_dirs, as_json=json)


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
    json: Json = False,
) -> None:
    """Serve one more listener until the broker stops.

    Or NAME://unix:/path. What is to last longer is written into the configuration.
    """
    from mpbroker.cli import ctl

    ctl.add_listener(log_dirs, listener, protocol, advertised, as_json=json)


@listener_app.command("remove")
def listener_remove(name: ListenerName, log_dirs: LogDirs = None, json: Json = False) -> None:
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
        app.only(sys.argv[1:2])(prog_name="mpbroker")
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
