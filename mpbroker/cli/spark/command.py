"""The commands of `mpbroker spark`.

The commands also run under spark-submit, with this package's `__main__.py` and the same arguments. Then
spark-submit decides Spark's settings.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpbroker.cli.app import App
from mpbroker.cli.errors import USAGE_ERROR, CliError, file_named
from mpbroker.cli.flags import Json, flag, option
from mpbroker.cli.spark.job import running, until_stopped
from mpbroker.cli.text.numbers import SECONDS
from mpbroker.cli.text.output import counted, print_json, print_table
from mpbroker.reading.errors import OptionError

if TYPE_CHECKING:
    from mpbroker.spark.jobs import Audit, Source

spark_app = App(no_args_is_help=True)

Topics = Annotated[str | None, typer.Argument(metavar="TOPIC,…", hidden=True, show_default=False)]
Pattern = Annotated[
    str | None, option("--pattern", "REGEX", "Topics whose whole name matches, instead of TOPIC,…")
]
LogDir = Annotated[
    str | None, option("--log-dir", "DIR,…", "The broker's log directories, to read its files.")
]
Servers = Annotated[
    str | None, option("--bootstrap-server -b", "HOST:PORT,…", "Brokers, to read over the network.")
]
Extra = Annotated[
    list[str] | None,
    option(
        "--option",
        "KEY=VALUE",
        "Any option of format mpbroker, such as kafka.security.protocol=SSL; repeatable.",
    ),
]
Loss = Annotated[
    bool,
    flag(
        "--fail-on-data-loss/--no-fail-on-data-loss",
        "Whether records that were deleted before they were read are an error.",
    ),
]
Master = Annotated[
    str | None, option("--master", "URL", "Of Spark; default: spark-submit's, or all cores of this host.")
]
Checkpoint = Annotated[
    Path,
    option(
        "--checkpoint",
        "DIR",
        "How far the job is; one directory for each job, made if need be.",
        readable=False,
    ),
]
Once = Annotated[bool, flag("--once", "Only the present records; default: run until stopped.")]
Every = Annotated[
    float, option("--every-s", "S", "The shortest interval between two reads.", min=0.0, callback=SECONDS)
]
SinkOption = Annotated[
    list[str] | None, option("--sink-option", "KEY=VALUE", "Any option of the sink; repeatable.")
]


@spark_app.command("mirror")
def spark_mirror(
    to: Annotated[str, option("--to", "HOST:PORT,…", "Brokers to write to.")],
    checkpoint: Checkpoint,
    topics: Topics = None,
    pattern: Pattern = None,
    log_dir: LogDir = None,
    bootstrap: Servers = None,
    name: Annotated[
        str, option("--name", "NAME", "Of this mirror; it belongs to the checkpoint.")
    ] = "mirror",
    prefix: Annotated[str, option("--prefix", "TEXT", "Before the names of topics there.")] = "",
    keep_partitions: Annotated[
        bool, flag("--keep-partitions/--by-key", "Partitions of the same numbers, or those of keys.")
    ] = True,
    exactly_once: Annotated[
        bool, flag("--exactly-once/--at-least-once", "In transactions, or faster and perhaps twice.")
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
    The headers __source.topic, __source.partition and __source.offset name the origin of a record. SIGTERM
    and Ctrl-C end the job, and leave no transaction open.
    """
    source = _source(topics, pattern, log_dir, bootstrap, option, fail_on_data_loss=fail_on_data_loss)
    from mpbroker.spark import jobs

    settings = jobs.MirrorSettings(
        source,
        checked_sink({**options_of(sink_option), "kafka.bootstrap.servers": to}),
        checkpoint,
        name,
        prefix,
        keep_partitions=keep_partitions,
        exactly_once=exactly_once,
        once=once,
        every_s=every_s,
    )
    with running("mirror", master, polls=True, as_json=json) as (spark, notice):
        start = partial(jobs.mirror, spark, settings, notice)
        until_stopped(start, notice, checkpoint, f"mirrored to {to}", once=once)


@spark_app.command("sessions")
def spark_sessions(
    checkpoint: Checkpoint,
    topics: Topics = None,
    pattern: Pattern = None,
    log_dir: LogDir = None,
    bootstrap: Servers = None,
    to: Annotated[Path | None, option("--to", "DIR", "Parquet files, readable with Spark.")] = None,
    to_topic: Annotated[
        str | None, option("--to-topic", "TOPIC", "JSON in a topic of --bootstrap-server; or --to.")
    ] = None,
    gap: Annotated[str, option("--gap", "TIME", "Of no events, which ends a session.")] = "30 minutes",
    lateness: Annotated[str, option("--lateness", "TIME", "How late an event may be.")] = "10 minutes",
    once: Once = False,
    every_s: Every = 1.0,
    fail_on_data_loss: Loss = True,
    option: Extra = None,
    sink_option: SinkOption = None,
    json: Json = False,
    master: Master = None,
) -> None:
    """Find the sessions of each key, an example of state.

    A session is written once, when later events cannot belong to it. It has the key, when it began and
    ended, and its number of events.
    """
    source = _source(topics, pattern, log_dir, bootstrap, option, fail_on_data_loss=fail_on_data_loss)
    target, options = _sessions_target(to, to_topic, bootstrap, sink_option)
    from mpbroker.spark import jobs

    settings = jobs.SessionSettings(
        source, checkpoint, target, options, gap, lateness, once=once, every_s=every_s
    )
    with running("sessions", master, polls=True, as_json=json) as (spark, notice):
        start = partial(jobs.sessions, spark, settings, notice)
        until_stopped(start, notice, checkpoint, "read", once=once)


@spark_app.command("audit")
def spark_audit(
    topics: Topics = None,
    pattern: Pattern = None,
    log_dir: LogDir = None,
    keys: Annotated[bool, flag("--keys", "Count records with a key that an earlier one has, too.")] = False,
    svg: Annotated[Path | None, option("--svg", "FILE", "Draw it, too.", readable=False)] = None,
    json: Json = False,
    option: Extra = None,
    master: Master = None,
) -> None:
    """Find gaps, duplicates and damage in whole logs.

    Run it on a host that has the logs' files. The exit code is 1 if records are missing, duplicated or
    damaged. Offsets that compaction removed are counted apart.
    """
    source = _source(topics, pattern, log_dir, None, option, fail_on_data_loss=True)
    from mpbroker.spark import jobs

    with running("audit", master) as (spark, notice):
        found = jobs.audit(spark, source, notice, keys=keys)
    if svg is not None:
        with file_named(str(svg)):
            svg.write_text(jobs.draw(found), encoding="utf-8")
    if json:
        print_json(found.document())
    else:
        _print_audit(found)
    if not found.is_whole:
        raise CliError("the audit found records that are missing, twice, or damaged")


def _source(
    topics: str | None,
    pattern: str | None,
    log_dir: str | None,
    bootstrap: str | None,
    extra: list[str] | None,
    *,
    fail_on_data_loss: bool,
) -> Source:
    """Return the source that the flags name. Check it before Spark's slow start. Raises CliError."""
    needs_spark()
    from mpbroker.spark.jobs import Source

    options = options_of(extra)
    made = Source(topics, pattern, log_dir, bootstrap, fail_on_data_loss, options)
    if (topics is None) == (pattern is None):
        raise CliError("name topics (orders,payments) or a --pattern, one of the two", USAGE_ERROR)
    if log_dir is None and bootstrap is None:
        raise CliError(
            "say where to read: --log-dir for the broker's files on this host, --bootstrap-server otherwise",
            USAGE_ERROR,
        )
    try:
        made.parsed()
    except OptionError as error:
        raise CliError(str(error), USAGE_ERROR) from error
    return made


def options_of(given: list[str] | None) -> dict[str, str]:
    """Parse KEY=VALUE options. Raises CliError."""
    options = {}
    for one in given or []:
        name, equals, value = one.partition("=")
        if not (name and equals):
            raise CliError(f"--option is KEY=VALUE, not '{one}'", USAGE_ERROR)
        options[name] = value
    return options


def _sessions_target(
    directory: Path | None, topic: str | None, bootstrap: str | None, extra: list[str] | None
) -> tuple[Path | str, dict[str, str]]:
    """Return a directory or a topic, and the options of the sink. Raises CliError."""
    options = options_of(extra)
    if directory is not None and topic is None:
        if options:
            raise CliError("--sink-option is for --to-topic", USAGE_ERROR)
        return directory, {}
    if topic is None or directory is not None:
        raise CliError("say where sessions go: --to for files or --to-topic, one of the two", USAGE_ERROR)
    if bootstrap is None:
        raise CliError("--to-topic needs --bootstrap-server, the brokers to write to", USAGE_ERROR)
    return topic, checked_sink({**options, "kafka.bootstrap.servers": bootstrap})


def checked_sink(options: dict[str, str]) -> dict[str, str]:
    """Check that the sink takes these options, and return them. Raises CliError."""
    from mpbroker.spark.jobs import check_sink

    try:
        check_sink(options)
    except OptionError as error:
        raise CliError(str(error), USAGE_ERROR) from error
    return options


def _print_audit(found: Audit) -> None:
    columns = (
        *("partition", "start", "end", "records", "bytes", "first time", "last time"),
        *("compacted", "missing", "twice", "damaged"),
    )
    print_table(
        columns,
        [
            (
                *(f"{one.topic}-{one.partition}", one.log_start, one.end, one.records, one.bytes),
                *(_time(one.first_time_ms), _time(one.last_time_ms)),
                *(one.compacted, one.missing, one.duplicates, one.faults),
            )
            for one in found.partitions
        ],
    )
    holes = [gap for gap in found.gaps if gap.kind == "hole"]
    for title, lines in (
        ("missing", [f"{gap.topic}-{gap.partition} offsets [{gap.start}, {gap.end})" for gap in holes]),
        (
            "twice",
            [
                f"{one.topic}-{one.partition} producer {one.producer_id}, epoch {one.producer_epoch}, "
                f"sequence {one.sequence}: {one.times} times, first at offset {one.first_offset}, last at "
                f"{one.last_offset}"
                for one in found.duplicates
            ],
        ),
        ("damaged", [f"{one.file} at byte {one.position}: {one.text}" for one in found.faults]),
    ):
        if lines:
            sys.stdout.write(f"\n{title}:\n" + "".join(f"  {line}\n" for line in lines))
    for topic, again in (found.repeated_keys or {}).items():
        sys.stdout.write(f"\n{topic}: {counted(again, 'record')} with a key that an earlier one has\n")


def _time(timestamp_ms: int | None) -> str | None:
    if timestamp_ms is None:
        return None
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(timestamp_ms / 1000))


def needs_spark() -> None:
    """Check that PySpark and PyArrow are installed. Raises CliError."""
    from importlib.util import find_spec

    from mpbroker.config.extras import pip_install

    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise CliError(
            "this command needs PySpark and PyArrow, which are not installed: "
            f"{pip_install('spark')}, or in a clone make setup-spark",
            USAGE_ERROR,
        )
