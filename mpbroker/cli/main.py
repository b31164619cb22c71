"""The `mpbroker` command. Each command is in a module of its own, imported when it is called."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from mpbroker.cli.app import App, Part
from mpbroker.cli.broker_flags import LocalBootstrap, LogDirs, Port
from mpbroker.cli.ending import end, exit_code, say
from mpbroker.cli.errors import USAGE_ERROR, explaining_openssl
from mpbroker.cli.flags import (
    ClusterAddress,
    IsolationLevel,
    Json,
    Overrides,
    ServerProperties,
    TopicName,
)
from mpbroker.cli.registry_flags import RegistryAddress, WrittenSchemas, encoders
from mpbroker.cli.text import standard_output
from mpbroker.cli.text.numbers import INT, LONG, PARTITION_OR_ALL
from mpbroker.config.version import VERSION

app = App(
    name="mpbroker",
    help="A Kafka-compatible message broker, and the commands to use and manage it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS = (
    ("export", "host.migration", "Turn a broker's directories into Apache Kafka's."),
    ("import", "host.migration", "Take over the directories of a stopped Apache Kafka 4 node."),
    ("top", "top.command", "Watch a broker on this host, or show a stopped one."),
    ("offsets", "cluster.offsets", "Print where partitions begin and end, or an offset by time."),
    ("cluster", "cluster.cluster", "Print the cluster's id, controller, brokers and features."),
    ("log-dirs", "cluster.log_dirs", "Print log directories and sizes of partitions, or move some."),
    ("completion", "completion", "Print the script that completes this command in a shell."),
    ("docs", "pages", "Print a page of the docs; without PAGE, list them."),
    ("why", "host.why", "Print what holds up a topic or group, and what to do."),
)
_GROUPS = (
    ("topic", "cluster.topic", "Create, list, describe, alter and delete topics."),
    ("group", "cluster.group_offsets", "List, describe and delete consumer groups; set offsets."),
    ("txn", "cluster.txn", "List, describe and abort transactions."),
    ("config", "cluster.config", "Get, set and unset settings of topics, groups and the broker."),
    ("user", "cluster.user", "Add, list and delete SCRAM users."),
    ("quota", "cluster.quota", "Set, list and delete the quotas of clients."),
    ("acl", "cluster.acl", "List, add and remove ACLs (access control lists)."),
    ("token", "cluster.token", "Create, list, renew and expire delegation tokens."),
    ("log", "host.log_files", "Print, check and repair the files of log directories."),
    ("ctl", "host.ctl", "Look at a running broker on this host, and steer it."),
    ("remote", "remote.command", "The object store of tiered storage: state, checks, moves."),
    ("service", "host.service", "Make this installation a service of systemd."),
    ("spark", "spark.command", "Jobs on Spark: mirrors, audits, sessions."),
    ("tables", "tables.command", "Topics as Apache Iceberg tables, and tables back into topics."),
    ("doctor", "doctor.flags", "Say what is missing on this host, and what to do."),
)
_RUN = "Run a command with a broker of its own, which ends with it."
app.add_part(Part("run", "mpbroker.cli.host.run", "run", _RUN, {"allow_interspersed_args": False}))
for _name, _module, _help in _COMMANDS:
    _function = {"log-dirs": "log_dirs", "import": "import_"}.get(_name, _name)
    app.add_part(Part(_name, f"mpbroker.cli.{_module}", _function, _help))
for _name, _module, _help in _GROUPS:
    app.add_part(Part(_name, f"mpbroker.cli.{_module}", f"{_name}_app", _help))


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
    config: ServerProperties = None,
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
    standby: Annotated[
        bool,
        typer.Option(
            "--standby", help="Follow the owner of the object store, and take over when it is gone."
        ),
    ] = False,
    read_only: Annotated[
        bool,
        typer.Option("--read-only", help="With --standby: serve reads, and never take over."),
    ] = False,
    follow: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run a broker until it is told to stop."""
    with explaining_openssl():
        from mpbroker.cli.host import serve as command

    flags = {
        "--listeners": listeners,
        "--log-dirs": log_dirs,
        "--processors": processors,
        "--handlers": handlers,
        "--log-workers": log_workers,
        "--http": http,
    }
    code = command.serve(
        *(config, options or [], flags),
        log_format=log_format,
        check_only=check_config,
        follow=follow,
        standby=standby,
        read_only=read_only,
    )
    raise typer.Exit(code)


BackupDirectory = Annotated[Path, typer.Argument(metavar="DIR", hidden=True, readable=False)]


@app.command()
def backup(
    target: BackupDirectory,
    check: Annotated[bool, typer.Option("--check", help="Only read the newest copy in DIR.")] = False,
    keep: Annotated[
        int | None,
        typer.Option(
            min=1,
            callback=INT,
            metavar="N",
            help="How many whole copies stay in DIR (default: as for the copy before; at first 1).",
        ),
    ] = None,
    log_dirs: LogDirs = None,
    port: Port = None,
    bootstrap: LocalBootstrap = None,
    json: Json = False,
) -> None:
    """Copy a broker's directories into DIR while it serves.

    The copy is as of one instant. A later call copies only what has changed, and finishes a copy that was
    interrupted. --log-dirs may be those of a stopped broker.
    """
    from mpbroker.cli.host import backup as command
    from mpbroker.cli.host.local_broker import LocalBroker

    if check:
        command.check(target, as_json=json)
    else:
        command.backup(LocalBroker(log_dirs, port, bootstrap), target, keep=keep, as_json=json)


@app.command()
def restore(
    source: Annotated[
        str,
        typer.Option(
            "--from", metavar="DIR|URL", help="What mpbroker backup has filled, or mpbroker.remote.url."
        ),
    ],
    log_dirs: Annotated[
        str | None,
        typer.Option("--log-dirs", metavar="DIR,…", help="New or empty: one for each of the broker."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Of a URL: read all that is needed, and write nothing.")
    ] = False,
    before: Annotated[
        str | None, typer.Option("--before", metavar="TIME", help="Of a URL: the newest cut up to this time.")
    ] = None,
    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Of a URL: own what is there, in place of the broker that did."),
    ] = False,
    fork: Annotated[
        bool, typer.Option("--fork", help="With a URL: make a new cluster, which only reads there.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Take over from a broker that wrote a moment ago.")
    ] = False,
    json: Json = False,
) -> None:
    """Make log directories of the newest copy in DIR, or cut at URL."""
    from mpbroker.cli.host import backup, bucket_restore

    named = [Path(name.strip()) for name in (log_dirs or "").split(",") if name.strip()]
    if not named and not verify:
        raise typer.BadParameter("name the directories to make", param_hint="--log-dirs")
    if not bucket_restore.is_url(source):
        if verify or before is not None or take_over or fork or force:
            raise typer.BadParameter(
                "--verify, --before, --take-over, --fork and --force are for a URL", param_hint="--from"
            )
        backup.restore(Path(source), named, as_json=json)
    elif fork and take_over:
        raise typer.BadParameter("a fork owns nothing there: leave --take-over out", param_hint="--fork")
    elif verify:
        bucket_restore.verify(source, before=before, as_json=json)
    else:
        kind = bucket_restore.kind_of(takes_over=take_over, forks=fork)
        bucket_restore.restore(source, named, kind, before=before, forced=force, as_json=json)


@app.command()
def produce(
    topic: TopicName,
    partition: Annotated[
        int,
        typer.Option(
            "--partition",
            "-p",
            callback=PARTITION_OR_ALL,
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
    null: Annotated[
        str | None,
        typer.Option(
            "--null", metavar="TEXT", help="Keys and values that are this text are null; '' as kcat's -Z."
        ),
    ] = None,
    json: Annotated[
        bool,
        typer.Option("--json", help="Each line is an object as consume --json prints it; null: a tombstone."),
    ] = False,
    ignore_partition: Annotated[
        bool,
        typer.Option(
            "--ignore-partition", help="With --json: lines go by their keys, not to the partition they name."
        ),
    ] = False,
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
    *,
    schemas: WrittenSchemas,
    registry: RegistryAddress,
    where: ClusterAddress,
) -> None:
    """Send each line of standard input as one record."""
    from mpbroker.cli.records import produce as command
    from mpbroker.cli.records.line_records import Format

    given = command.parse_headers(headers or [])
    form = Format(key_separator, null, json, given, ignore_partition, encoders(registry, schemas))
    settings = command.Settings(topic, partition, acks, compression, form)
    command.produce(where, settings, properties or [])


StartPlace = Annotated[
    str | None,
    typer.Option(
        "--offset",
        "-o",
        metavar="PLACE",
        help="beginning, end, an offset, -N (the last N of each partition), +N or @TIME; default: end, "
        "with --to beginning, with --group where that is.",
    ),
]
Template = Annotated[
    str,
    typer.Option(
        "-f",
        metavar="FORMAT",
        help="%t topic, %p partition, %o offset, %k key, %v value, %T timestamp, %h headers, "
        "%K and %S lengths of key and value.",
    ),
]
JsonLines = Annotated[
    bool,
    typer.Option(
        "--json",
        help="One JSON object a line; what is not UTF-8 in base64, as key_base64 and value_base64.",
    ),
]
ColumnFile = Annotated[
    Path | None,
    typer.Option(
        "--to",
        metavar="FILE",
        help="What is committed now, into a .parquet or .arrow file.",
        readable=False,
    ),
]


@app.command()
def consume(
    topic: TopicName,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="The same as -o beginning.")
    ] = False,
    offset: StartPlace = None,
    from_time: Annotated[
        str | None,
        typer.Option(
            "--from-time", metavar="TIME", help="Begin at 2026-01-31T12:00:00, or -2h: as -o @TIME."
        ),
    ] = None,
    until_time: Annotated[
        str | None,
        typer.Option("--until-time", metavar="TIME", help="Stop before the first record from then on."),
    ] = None,
    partition: Annotated[
        int, typer.Option("--partition", "-p", callback=PARTITION_OR_ALL, metavar="N", help="-1: all.")
    ] = -1,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", metavar="NAME", help="Join it, and commit what was printed; -o where it is new."
        ),
    ] = None,
    group_protocol: Annotated[
        str | None,
        typer.Option(
            "--group-protocol",
            metavar="NAME",
            help="How to join: classic (the default) or consumer (KIP-848).",
        ),
    ] = None,
    isolation_level: IsolationLevel = "read_uncommitted",
    count: Annotated[
        int,
        typer.Option(
            "--count", "-n", min=0, callback=LONG, metavar="N", help="Stop after N records; 0: never."
        ),
    ] = 0,
    exit_at_end: Annotated[
        bool, typer.Option("--exit-at-end", "-e", help="Stop at the end of all partitions.")
    ] = False,
    template: Template = "%v\\n",
    json: JsonLines = False,
    to: ColumnFile = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of --to.")] = False,
    log_dirs: Annotated[
        str | None,
        typer.Option(
            "--log-dirs", metavar="DIR,…", help="With --to: read the files there, if they are here."
        ),
    ] = None,
    *,
    registry: RegistryAddress,
    where: ClusterAddress,
) -> None:
    """Print records of a topic as they come.

    They include records of open and aborted transactions, unless the isolation level is read_committed. --to
    writes the records committed so far to a file, atomically.
    """
    from mpbroker.cli.records import consume_flags

    what = consume_flags.ConsumeFlags(
        topic, partition, count, exit_at_end, isolation_level, group, group_protocol
    )
    place = consume_flags.StartFlags(from_beginning, offset, from_time, until_time)
    into = consume_flags.OutputFlags(template, json, to, overwrite, log_dirs, registry)
    consume_flags.consume(where, what, place, into)


@app.command()
def man() -> None:
    """Print the manual page: mpbroker man > mpbroker.1."""
    from mpbroker.cli import manual

    print(manual.page(app), end="")


# Commands of `mpbroker topic` that people try without it.
_OF_TOPICS = ("create", "delete", "describe", "list", "alter")


def main() -> NoReturn:
    """Run the `mpbroker` command."""
    standard_output.name_failures()
    if "_MPBROKER_COMPLETE" in os.environ:
        from mpbroker.cli.completion import typed_words

        app.only(typed_words())(prog_name="mpbroker")
    end(run(sys.argv[1:]))


def run(words: Sequence[str]) -> int:
    """Run the command with these words, and return its exit code."""
    if words and words[0] in _OF_TOPICS:
        text = f"no such command {words[0]}; did you mean mpbroker topic {words[0]}?"
        return say(text, USAGE_ERROR)
    return exit_code(lambda: app.only(words)(words, prog_name="mpbroker"))
