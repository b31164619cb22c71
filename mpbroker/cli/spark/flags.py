"""The commands of `mpbroker spark` and their flags.

They also run under spark-submit, which is given this package's `__main__.py` and the same words: Spark's
settings are then those of spark-submit.
"""

from pathlib import Path
from typing import Annotated

import typer

from mpbroker.cli.app import App
from mpbroker.cli.flags import Json
from mpbroker.cli.text.numbers import INT, LONG, SECONDS

spark_app = App(no_args_is_help=True)

Topics = Annotated[str | None, typer.Argument(metavar="TOPIC,…", hidden=True, show_default=False)]
Pattern = Annotated[
    str | None,
    typer.Option("--pattern", metavar="REGEX", help="Topics whose whole name matches, instead of TOPIC,…"),
]
LogDir = Annotated[
    str | None,
    typer.Option("--log-dir", metavar="DIR,…", help="The broker's log directories, to read its files."),
]
Servers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server", "-b", metavar="HOST:PORT,…", help="Brokers, to read over the network."
    ),
]
Extra = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="Any option of format mpbroker, such as kafka.security.protocol=SSL; repeatable.",
    ),
]
Loss = Annotated[
    bool,
    typer.Option(
        "--fail-on-data-loss/--no-fail-on-data-loss",
        help="Whether records that are gone before they were read are an error.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="URL", help="Of Spark; default: spark-submit's, or all cores of this host."
    ),
]


@spark_app.command("archive")
def spark_archive(
    to: Annotated[
        Path,
        typer.Option("--to", metavar="DIR", help="The archive; made if it is not there.", readable=False),
    ],
    topics: Topics = None,
    pattern: Pattern = None,
    log_dir: LogDir = None,
    bootstrap: Servers = None,
    partition_by: Annotated[
        str,
        typer.Option(
            "--partition-by",
            metavar="COLUMNS",
            help="Directories: topic; topic,date; or topic,date,hour (UTC).",
        ),
    ] = "topic,date",
    compact: Annotated[
        bool, typer.Option("--compact", help="Afterwards make few large files of many small ones.")
    ] = False,
    file_mb: Annotated[
        int,
        typer.Option("--file-mb", min=1, callback=INT, metavar="N", help="How large compacted files get."),
    ] = 128,
    form: Annotated[
        str, typer.Option("--format", metavar="parquet|iceberg", help="Directories, or a table of a catalog.")
    ] = "parquet",
    catalog: Annotated[
        str | None,
        typer.Option("--catalog", metavar="URI", help="Of Iceberg; default: sqlite:///DIR/catalog.db."),
    ] = None,
    table: Annotated[
        str, typer.Option("--table", metavar="NAMESPACE.NAME", help="Of Iceberg; made if need be.")
    ] = "mpbroker.records",
    records_per_run: Annotated[
        int,
        typer.Option(
            "--records-per-run", min=1, callback=LONG, metavar="N", help="What is committed at once."
        ),
    ] = 20_000_000,
    fail_on_data_loss: Loss = True,
    option: Extra = None,
    json: Json = False,
    master: Master = None,
) -> None:
    """Write what is new as Parquet, each record once.

    A run is seen by readers of DIR when all of it is there: spark.read.parquet("DIR/data"). What a killed
    job leaves is never seen, and the next one goes on from the last run.
    """
    from mpbroker.cli.spark import command as command

    source = command.source(topics, pattern, log_dir, bootstrap, option, fail_on_data_loss=fail_on_data_loss)
    target = command.target(form, to, catalog, table, compacts=compact)
    wanted = command.Archive(
        source, target, partition_by, records_per_run, file_mb if compact else None, json
    )
    command.archive(wanted, master)


@spark_app.command("replay")
def spark_replay(
    archive: Annotated[Path, typer.Argument(metavar="DIR", hidden=True, readable=False)],
    bootstrap: Annotated[
        str, typer.Option("--bootstrap-server", "-b", metavar="HOST:PORT,…", help="Brokers to write to.")
    ],
    topics: Annotated[
        str | None, typer.Option("--topics", metavar="TOPIC,…", help="Only these; default: all.")
    ] = None,
    to_topic: Annotated[
        str | None,
        typer.Option("--to-topic", metavar="TOPIC", help="All into this one; default: each into its own."),
    ] = None,
    keep_partitions: Annotated[
        bool, typer.Option("--keep-partitions", help="Into partitions of the same numbers; else by key.")
    ] = False,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Of this replay, by which it goes on.")
    ] = "replay",
    exactly_once: Annotated[
        bool,
        typer.Option(
            "--exactly-once", help="In transactions: who reads what is committed sees each record once."
        ),
    ] = False,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="Any option of the sink; repeatable."),
    ] = None,
    json: Json = False,
    master: Master = None,
) -> None:
    """Write an archive back into topics.

    DIR is an archive. Keys, values, headers, timestamps and the order in each partition stay. What a job of
    the same name has written is not written again; the step that it was killed in is, unless --exactly-once.
    """
    from mpbroker.cli.spark import command as command

    wanted = command.Replay(
        archive, bootstrap, topics, to_topic, name, keep_partitions, exactly_once, option, json
    )
    command.replay(wanted, master)


Checkpoint = Annotated[
    Path,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        help="How far the job is; one directory for each job, made if need be.",
        readable=False,
    ),
]
Once = Annotated[
    bool, typer.Option("--once", help="What is there now and no more; default: go on until told to stop.")
]
Every = Annotated[
    float,
    typer.Option(
        "--every-s",
        min=0.0,
        callback=SECONDS,
        metavar="S",
        help="How often, at most, to look for more.",
    ),
]
SinkOption = Annotated[
    list[str] | None,
    typer.Option("--sink-option", metavar="KEY=VALUE", help="Any option of the sink; repeatable."),
]


@spark_app.command("mirror")
def spark_mirror(
    to: Annotated[str, typer.Option("--to", metavar="HOST:PORT,…", help="Brokers to write to.")],
    checkpoint: Checkpoint,
    topics: Topics = None,
    pattern: Pattern = None,
    log_dir: LogDir = None,
    bootstrap: Servers = None,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Of this mirror; it belongs to the checkpoint.")
    ] = "mirror",
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="TEXT", help="Before the names of topics there.")
    ] = "",
    keep_partitions: Annotated[
        bool,
        typer.Option("--keep-partitions/--by-key", help="Partitions of the same numbers, or those of keys."),
    ] = True,
    exactly_once: Annotated[
        bool,
        typer.Option("--exactly-once/--at-least-once", help="In transactions, or faster and perhaps twice."),
    ] = True,
    once: Once = False,
    every_s: Every = 1.0,
    fail_on_data_loss: Loss = True,
    option: Extra = None,
    sink_option: SinkOption = None,
    json: Json = False,
    master: Master = None,
) -> None:
    """Copy topics to another cluster as they grow.

    Either side may be mpbroker or Apache Kafka. Topics that do not exist there are created as they are here.
    The headers __source.topic, __source.partition and __source.offset tell where a record was. SIGTERM and
    Ctrl-C end the job, and leave no transaction open.
    """
    from mpbroker.cli.spark import command as command

    source = command.source(topics, pattern, log_dir, bootstrap, option, fail_on_data_loss=fail_on_data_loss)
    how = command.Stream(checkpoint, once, every_s, json)
    command.mirror(
        *(source, to, how, name, prefix, sink_option, master),
        keep_partitions=keep_partitions,
        exactly_once=exactly_once,
    )


@spark_app.command("sessions")
def spark_sessions(
    checkpoint: Checkpoint,
    topics: Topics = None,
    pattern: Pattern = None,
    log_dir: LogDir = None,
    bootstrap: Servers = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Parquet files, readable with Spark.")
    ] = None,
    to_topic: Annotated[
        str | None,
        typer.Option("--to-topic", metavar="TOPIC", help="JSON in a topic of --bootstrap-server; or --to."),
    ] = None,
    gap: Annotated[
        str, typer.Option("--gap", metavar="TIME", help="Of no events, which ends a session.")
    ] = "30 minutes",
    lateness: Annotated[
        str, typer.Option("--lateness", metavar="TIME", help="How late an event may be.")
    ] = "10 minutes",
    once: Once = False,
    every_s: Every = 1.0,
    fail_on_data_loss: Loss = True,
    option: Extra = None,
    sink_option: SinkOption = None,
    json: Json = False,
    master: Master = None,
) -> None:
    """Find the sessions of each key, an example of state.

    A session is written once, when no event can belong to it any more. It has the key, when it began and
    ended, and its number of events.
    """
    from mpbroker.cli.spark import command as command

    source = command.source(topics, pattern, log_dir, bootstrap, option, fail_on_data_loss=fail_on_data_loss)
    target, options = command.sessions_target(to, to_topic, bootstrap, sink_option)
    command.sessions(
        *(source, target, options, command.Stream(checkpoint, once, every_s, json), gap, lateness, master)
    )


@spark_app.command("audit")
def spark_audit(
    topics: Topics = None,
    pattern: Pattern = None,
    log_dir: LogDir = None,
    keys: Annotated[
        bool, typer.Option("--keys", help="Count records with a key that an earlier one has, too.")
    ] = False,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Draw it, too.", readable=False)
    ] = None,
    json: Json = False,
    option: Extra = None,
    master: Master = None,
) -> None:
    """Look for gaps, duplicates and damage in whole logs.

    This runs on a host that has their files. The exit code is 1 if records are missing, twice, or damaged.
    Offsets that compaction took are told apart.
    """
    from mpbroker.cli.spark import command as command

    source = command.source(topics, pattern, log_dir, None, option, fail_on_data_loss=True)
    command.audit(source, master, with_keys=keys, svg=svg, as_json=json)
