"""The commands of `mpbroker spark …`: a session, a job, its progress, and one sentence where it fails."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from mpbroker.cli.errors import INTERRUPTED, USAGE_ERROR, CliError, file_named
from mpbroker.cli.text.output import counted, print_json, print_table
from mpbroker.reading.errors import CorruptLog, DataLoss, OptionError, SourceUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mpbroker.spark.jobs import Audit, IcebergTarget, Notice, Running, Source

TERMINATED = 128 + signal.SIGTERM
CANCEL_EVERY_S = 0.1
CONTINUES = "Committed records stay; run the same command again to continue from there"


@dataclass(frozen=True)
class Archive:
    """Flags of `archive`. `compact_mb` is None if it must not compact."""

    source: Source
    target: Path | IcebergTarget
    partition_by: str
    records_per_run: int
    compact_mb: int | None
    as_json: bool


@dataclass(frozen=True)
class Replay:
    """Flags of `replay`."""

    directory: Path
    bootstrap: str
    topics: str | None
    to_topic: str | None
    name: str
    keep_partitions: bool
    exactly_once: bool
    extra: list[str] | None
    as_json: bool


def source(
    topics: str | None,
    pattern: str | None,
    log_dir: str | None,
    bootstrap: str | None,
    extra: list[str] | None,
    *,
    fail_on_data_loss: bool,
) -> Source:
    """Check the flags of a source before Spark is started, which takes seconds. Raises CliError."""
    _needs_spark()
    from mpbroker.spark.jobs import Source

    options = _options(extra)
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


def _options(given: list[str] | None) -> dict[str, str]:
    """Parse KEY=VALUE options. Raises CliError."""
    options = {}
    for one in given or []:
        name, equals, value = one.partition("=")
        if not (name and equals):
            raise CliError(f"--option is KEY=VALUE, not '{one}'", USAGE_ERROR)
        options[name] = value
    return options


def target(
    form: str, directory: Path, catalog: str | None, table: str, *, compacts: bool
) -> Path | IcebergTarget:
    """Return the target that the flags describe. Raises CliError."""
    if form == "parquet":
        if catalog is not None:
            raise CliError("--catalog is for --format iceberg", USAGE_ERROR)
        return directory
    if form != "iceberg":
        raise CliError(f"--format is parquet or iceberg, not '{form}'", USAGE_ERROR)
    if compacts:
        raise CliError(
            "--compact is for --format parquet: an Iceberg table's own tools compact it", USAGE_ERROR
        )
    if "." not in table:
        raise CliError(f"--table is NAMESPACE.NAME, not '{table}'", USAGE_ERROR)
    from mpbroker.spark.jobs import IcebergTarget

    uri = catalog or f"sqlite:///{(directory / 'catalog.db').absolute()}"
    return IcebergTarget(uri, directory, table)


def archive(wanted: Archive, master: str | None) -> None:
    """Run the archive job. Raises CliError."""
    from mpbroker.spark import jobs

    try:
        columns = tuple(jobs.partitioning(wanted.partition_by))
    except jobs.JobError as error:
        raise CliError(str(error), USAGE_ERROR) from error
    settings = jobs.ArchiveSettings(wanted.source, wanted.target, columns, wanted.records_per_run)
    began = time.monotonic()
    with running("archive", master, as_json=wanted.as_json) as (spark, notice):
        done = jobs.archive(spark, settings, notice)
        topics = f" of {counted(len(done.topics), 'topic')}" if done.topics else ""
        where = _shown(wanted.target)
        notice.end(
            f"{counted(done.records, 'record')}{topics} archived in {counted(done.runs, 'run')}, "
            f"{_rate(done.records, began)}; readers find them in {where}",
            {
                **_measured(done.records, began),
                "topics": sorted(done.topics),
                "runs": done.runs,
                "target": where,
                "compacted": None,
            },
        )
        if wanted.compact_mb is not None and isinstance(wanted.target, Path):
            made = jobs.compact(spark, wanted.target, wanted.compact_mb << 20, notice)
            notice.end(
                f"{counted(made.files_before, 'file')} of {counted(made.runs, 'run')} compacted to "
                f"{counted(made.files_after, 'file')}"
                if made.runs
                else "nothing to compact",
                {"compacted": asdict(made)},
            )


def _shown(target: Path | IcebergTarget) -> str:
    return str(target / "data") if isinstance(target, Path) else f"table {target.table} of {target.uri}"


def audit(source: Source, master: str | None, *, with_keys: bool, svg: Path | None, as_json: bool) -> None:
    """Audit logs and print the findings. Raises CliError, also if a log is not whole."""
    from mpbroker.spark import jobs

    with running("audit", master) as (spark, notice):
        found = jobs.audit(spark, source, notice, keys=with_keys)
    if svg is not None:
        with file_named(str(svg)):
            svg.write_text(jobs.draw(found), encoding="utf-8")
    if as_json:
        print_json(found.document())
    else:
        _print_audit(found)
    if not found.is_whole:
        raise CliError("the audit found records that are missing, twice, or damaged")


def replay(wanted: Replay, master: str | None) -> None:
    """Run the replay job. Raises CliError."""
    _needs_spark()
    from mpbroker.spark import jobs

    options = _sink({**_options(wanted.extra), "kafka.bootstrap.servers": wanted.bootstrap})
    only = tuple(one for one in (wanted.topics or "").split(",") if one)
    settings = jobs.ReplaySettings(
        *(wanted.directory, options, wanted.name, only, wanted.to_topic),
        keep_partitions=wanted.keep_partitions,
        exactly_once=wanted.exactly_once,
    )
    began = time.monotonic()
    with running("replay", master, as_json=wanted.as_json) as (spark, notice):
        done = jobs.replay(spark, settings, notice)
        notice.end(
            f"{counted(done.records, 'record')} written to {wanted.bootstrap} in "
            f"{counted(done.steps, 'step')}, {_rate(done.records, began)}",
            {**_measured(done.records, began), "steps": done.steps, "bootstrap_servers": wanted.bootstrap},
        )


@dataclass(frozen=True)
class Stream:
    """Flags that all jobs without an end share."""

    checkpoint: Path
    once: bool
    every_s: float
    as_json: bool


def mirror(
    source: Source,
    to: str,
    stream: Stream,
    name: str,
    prefix: str,
    extra: list[str] | None,
    master: str | None,
    *,
    keep_partitions: bool,
    exactly_once: bool,
) -> None:
    """Run the mirror job. Raises CliError."""
    from mpbroker.spark import jobs

    options = _sink({**_options(extra), "kafka.bootstrap.servers": to})
    settings = jobs.MirrorSettings(
        *(source, options, stream.checkpoint, name, prefix),
        keep_partitions=keep_partitions,
        exactly_once=exactly_once,
        once=stream.once,
        every_s=stream.every_s,
    )
    with running("mirror", master, looks=True, as_json=stream.as_json) as (spark, notice):
        _until_told(lambda: jobs.mirror(spark, settings, notice), notice, stream, f"mirrored to {to}")


def sessions(
    source: Source,
    target: Path | str,
    options: dict[str, str],
    stream: Stream,
    gap: str,
    lateness: str,
    master: str | None,
) -> None:
    """Run the sessions job. Raises CliError."""
    from mpbroker.spark import jobs

    settings = jobs.SessionSettings(
        *(source, stream.checkpoint, target, options, gap, lateness), once=stream.once, every_s=stream.every_s
    )
    with running("sessions", master, looks=True, as_json=stream.as_json) as (spark, notice):
        _until_told(lambda: jobs.sessions(spark, settings, notice), notice, stream, "read")


def sessions_target(
    directory: Path | None, topic: str | None, bootstrap: str | None, extra: list[str] | None
) -> tuple[Path | str, dict[str, str]]:
    """Return a directory or a topic, and the options of the sink. Raises CliError."""
    options = _options(extra)
    if directory is not None and topic is None:
        if options:
            raise CliError("--sink-option is for --to-topic", USAGE_ERROR)
        return directory, {}
    if topic is None or directory is not None:
        raise CliError("say where sessions go: --to for files or --to-topic, one of the two", USAGE_ERROR)
    if bootstrap is None:
        raise CliError("--to-topic needs --bootstrap-server, the brokers to write to", USAGE_ERROR)
    return topic, _sink({**options, "kafka.bootstrap.servers": bootstrap})


def _until_told(start: Callable[[], Running], notice: Terminal, stream: Stream, done: str) -> None:
    """Run a query until it ends or a signal comes.

    A signal is the normal end of a job without --once. With --once the job is not done yet then: raises
    CliError.
    """
    began = time.monotonic()
    running_query = start()
    running_query.wait(lambda: bool(notice.told))
    if notice.told and stream.once:
        raise _stopped(notice.told)
    how = f"stopped by {signal.Signals(notice.told[0]).name}: " if notice.told else ""
    notice.end(
        f"{how}{counted(running_query.records, 'record')} {done}, {_rate(running_query.records, began)}; the "
        f"same command goes on from {stream.checkpoint}",
        {
            **_measured(running_query.records, began),
            "stopped_by": signal.Signals(notice.told[0]).name if notice.told else None,
            "checkpoint": str(stream.checkpoint),
        },
    )


def _sink(options: dict[str, str]) -> dict[str, str]:
    """Return the options if the sink takes them. Raises CliError."""
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


def _rate(records: int, began: float) -> str:
    return f"{records / max(time.monotonic() - began, 0.001):,.0f} records/s"


def _measured(records: int, began: float) -> dict[str, Any]:
    """Return what the summary of every job has for programs."""
    return {"records": records, "seconds": time.monotonic() - began}


# ---- around every job


class Terminal:
    """A job's notice on standard error: a line that moves on a terminal, and lines that stay.

    `document` gathers the summary for programs; None: its lines are printed for people.
    """

    def __init__(
        self, show: Callable[..., None] | None, name: str, document: dict[str, Any] | None = None
    ) -> None:
        self._document = document
        self._show = show
        self._name = name
        self._stream = sys.stderr
        self._began = time.monotonic()
        self._has_begun = False
        self.told: list[int] = []
        """Signals that came, for a job that looks for them itself."""

    def say(self, text: str) -> None:
        print(f"mpbroker: {text}", file=self._stream)

    def progress(self, done: int, total: int | None) -> None:
        if not self._has_begun:
            self._has_begun = True
            print(f"{self._name}: Spark runs, the first batch begins", file=self._stream)
        if self._show is None:
            return
        left = "" if total is None else f", {max(total - done, 0):,} behind"
        text = f"{self._name}: {done:,} records, {_rate(done, self._began)}{left}"
        self._show(completed=done, total=total, description=text)

    def end(self, text: str, document: Mapping[str, Any]) -> None:
        """Print a line of the summary, or take its members."""
        if self._document is None:
            print(text, file=self._stream)
        else:
            self._document |= document


@contextmanager
def running(
    name: str, master: str | None, *, looks: bool = False, as_json: bool = False
) -> Iterator[tuple[SparkSession, Terminal]]:
    """Open a session for one job and stop it at the end. Raises CliError: one sentence for any failure.

    With `as_json` the summary is printed at the end, also that of a job that fails. A signal cancels Spark's
    work, unless the job `looks` for signals itself. While the job runs the handler raises nothing: that would
    cut a call of the JVM, and the next call would get its answer. During the start, which it may cut, it
    raises. The second signal ends this process at once.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    from mpbroker.cli.text.progress import progress_bar
    from mpbroker.spark import session

    told: list[int] = []
    document: dict[str, Any] | None = {} if as_json else None
    stderr, nobody = sys.stderr, open(os.devnull, "w")  # noqa: SIM115 (threads use it to the end)
    is_started, over = threading.Event(), threading.Event()

    def cancel() -> None:
        # Cancel again and again: the job may be between two queries.
        with suppress(Py4JError, OSError):  # the JVM has ended, if it got the signal as well
            while not over.wait(CANCEL_EVERY_S):
                spark.sparkContext.cancelAllJobs()

    canceller = threading.Thread(target=cancel, name="cancel", daemon=True)

    def tell(number: int, _frame: FrameType | None) -> None:
        told.append(number)
        # The JVM may have got the signal, too. Threads of PySpark would describe each call that its end cuts.
        sys.stderr = nobody
        if len(told) > 1:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif not is_started.is_set():
            _interrupt_start()
        elif not looks:
            canceller.start()

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    print(f"{name}: starting Spark, which takes some seconds", file=sys.stderr)
    try:
        with _in_a_sentence(told), _without_tracebacks():
            for number in before:
                signal.signal(number, tell)
            spark = session(f"mpbroker {name}", master, quiet=True)
            spark.sparkContext.setLogLevel("OFF")
            # The session has replaced one of the handlers by its own.
            for number in before:
                signal.signal(number, tell)
            is_started.set()
            try:
                with progress_bar(1) as show:
                    notice = Terminal(show, name, document)
                    notice.told = told
                    yield spark, notice
            finally:
                for number in before:
                    signal.signal(number, signal.SIG_IGN)
                over.set()
                if canceller.is_alive():
                    canceller.join()
                spark.stop()
    finally:
        sys.stderr = stderr
        for number, handler in before.items():
            signal.signal(number, handler)
        if document:
            print_json(document)


def _interrupt_start() -> NoReturn:
    """End the children and raise. A JVM that cannot hand over its port any longer would run for ever."""
    for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        with suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGTERM)
    raise KeyboardInterrupt


@contextmanager
def _without_tracebacks() -> Iterator[None]:
    """Drop records of the root logger itself: Py4J logs the traceback of a call that a signal cuts there."""
    root = logging.getLogger()

    def drop(_record: logging.LogRecord) -> bool:
        return False

    root.addFilter(drop)
    try:
        yield
    finally:
        root.removeFilter(drop)


@contextmanager
def _in_a_sentence(told: list[int]) -> Iterator[None]:
    """Raise what a job fails with as CliError. `told`: signals that came."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from mpbroker.spark import SparkSetupError
    from mpbroker.spark.jobs import JobError, sentence_of

    try:
        yield
    except KeyboardInterrupt as error:
        raise _stopped(told or [signal.SIGINT]) from error
    except SparkSetupError as error:
        raise CliError(str(error)) from error
    except OptionError as error:
        raise CliError(str(error), USAGE_ERROR) from error
    except (JobError, DataLoss, CorruptLog, SourceUnavailable, PySparkException, Py4JError, OSError) as error:
        # A cancelled Spark raises an error that is not the cause.
        raise _stopped(told) if told else CliError(sentence_of(error)) from error


def _stopped(told: list[int]) -> CliError:
    code = TERMINATED if told[0] == signal.SIGTERM else INTERRUPTED
    return CliError(f"stopped by {signal.Signals(told[0]).name}. {CONTINUES}", code)


def _needs_spark() -> None:
    """Check that PySpark and PyArrow are installed. Raises CliError."""
    from importlib.util import find_spec

    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise CliError(
            "this command needs PySpark and PyArrow, which are not installed: "
            "pip install 'mpbroker-server[spark]', or in a clone make setup-spark",
            USAGE_ERROR,
        )


if TYPE_CHECKING:
    _: Notice = Terminal(None, "")
