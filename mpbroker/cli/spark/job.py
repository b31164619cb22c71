"""Runs a job of `mpbroker spark`: shows progress, handles signals, and reports a failure in one sentence."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from mpbroker.cli.errors import INTERRUPTED, USAGE_ERROR, CliError
from mpbroker.cli.text.output import counted, print_json
from mpbroker.reading.errors import CorruptLog, DataLoss, OptionError, SourceUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mpbroker.spark.jobs import Notice, Running

TERMINATED = 128 + signal.SIGTERM
CANCEL_EVERY_S = 0.1

# Settings of Spark by their names.
Config = Mapping[str, str] | None


def rate(records: int, began: float) -> str:
    return f"{records / max(time.monotonic() - began, 0.001):,.0f} records/s"


def measured(records: int, began: float) -> dict[str, Any]:
    """Return the members that every summary has: records, and the seconds since `began`."""
    return {"records": records, "seconds": time.monotonic() - began}


class Terminal:
    """A progress bar and lines on standard error; `document` gathers the summary for programs."""

    def __init__(
        self, show: Callable[..., None] | None, name: str, document: dict[str, Any] | None = None
    ) -> None:
        self._document = document
        self._show = show
        self._name = name
        self._stream = sys.stderr
        self._began = time.monotonic()
        self._has_begun = False
        self.signals: list[int] = []

    def say(self, text: str) -> None:
        # In one piece, since several threads may speak.
        print(f"mpbroker: {text}\n", end="", file=self._stream)

    def progress(self, done: int, total: int | None) -> None:
        if not self._has_begun:
            self._has_begun = True
            print(f"{self._name}: Spark runs, the first batch begins", file=self._stream)
        if self._show is None:
            return
        left = "" if total is None else f", {max(total - done, 0):,} to read"
        text = f"{self._name}: {done:,} records, {rate(done, self._began)}{left}"
        self._show(completed=done, total=total, description=text)

    def end(self, text: str, document: Mapping[str, Any]) -> None:
        """Print `text` as a line of the summary, or for JSON add the members of `document` to the summary."""
        if self._document is None:
            print(text, file=self._stream)
        else:
            self._document |= document


@contextmanager
def running(
    name: str, master: str | None, *, polls: bool = False, as_json: bool = False, config: Config = None
) -> Iterator[tuple[SparkSession, Terminal]]:
    """Yield a Spark session with these settings, and a terminal. Raises CliError for any failure."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    from mpbroker.cli.text.progress import progress_bar
    from mpbroker.spark import session

    # A signal cancels Spark's jobs, unless the job `polls` the signals. While the job runs the handler raises
    # nothing: that would cut a call of the JVM, and the next call would get its response. During the start,
    # which it may cut, it raises. The second signal ends this process.
    signals: list[int] = []
    document: dict[str, Any] | None = {} if as_json else None
    stderr, nowhere = sys.stderr, open(os.devnull, "w")  # noqa: SIM115 (threads use it to the end)
    is_started, over = threading.Event(), threading.Event()

    def cancel() -> None:
        # Cancel again and again: the job may be between two queries.
        with suppress(Py4JError, OSError):  # the JVM has ended, if it got the signal as well
            while not over.wait(CANCEL_EVERY_S):
                spark.sparkContext.cancelAllJobs()

    canceller = threading.Thread(target=cancel, name="cancel", daemon=True)

    def handle(number: int, _frame: FrameType | None) -> None:
        signals.append(number)
        # The JVM may have got the signal, too. Threads of PySpark would print each call that its end cuts.
        sys.stderr = nowhere
        if len(signals) > 1:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif not is_started.is_set():
            _interrupt_start()
        elif not polls:
            canceller.start()

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    print(f"{name}: starting Spark, which takes some seconds", file=sys.stderr)
    try:
        with _in_a_sentence(signals), _without_tracebacks():
            for number in before:
                signal.signal(number, handle)
            spark = session(f"mpbroker {name}", master, quiet=True, config=config)
            spark.sparkContext.setLogLevel("OFF")
            # The session has replaced one of the handlers by its own.
            for number in before:
                signal.signal(number, handle)
            is_started.set()
            _end_accumulators_in_silence(spark)
            try:
                with progress_bar(1) as show:
                    notice = Terminal(show, name, document)
                    notice.signals = signals
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


def until_stopped(
    start: Callable[[], Running], notice: Terminal, checkpoint: Path, done: str, *, once: bool
) -> None:
    """Run a query until it ends or a signal comes. With `once`, a signal raises CliError."""
    began = time.monotonic()
    query = start()
    query.wait(lambda: bool(notice.signals))
    if notice.signals and once:
        raise _stopped(notice.signals)
    name = signal.Signals(notice.signals[0]).name if notice.signals else None
    notice.end(
        f"{f'stopped by {name}: ' if name else ''}{counted(query.records, 'record')} {done}, "
        f"{rate(query.records, began)}; the same command continues from {checkpoint}",
        {**measured(query.records, began), "stopped_by": name, "checkpoint": str(checkpoint)},
    )


def _interrupt_start() -> NoReturn:
    """End the child processes; a JVM that is still starting would run forever. Raise KeyboardInterrupt."""
    for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        with suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGTERM)
    raise KeyboardInterrupt


def _end_accumulators_in_silence(spark: SparkSession) -> None:
    """Drop the traceback that PySpark's accumulator server prints when the JVM has ended.

    The server's thread may notice the end after standard error is restored. (PySpark: UpdateRequestHandler.)
    """
    server = spark.sparkContext._accumulatorServer
    report = server.handle_error

    def handle_error(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            report(request, client_address)

    vars(server)["handle_error"] = handle_error


@contextmanager
def _without_tracebacks() -> Iterator[None]:
    """Drop log records of the root logger, to which Py4J logs tracebacks of interrupted calls."""
    root = logging.getLogger()

    def drop(_record: logging.LogRecord) -> bool:
        return False

    root.addFilter(drop)
    try:
        yield
    finally:
        root.removeFilter(drop)


@contextmanager
def _in_a_sentence(signals: list[int]) -> Iterator[None]:
    """Raise any failure of a job as CliError with one sentence. `signals`: the signals received so far."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from mpbroker.spark import SparkSetupError
    from mpbroker.spark.jobs import JobError, sentence_of

    try:
        yield
    except KeyboardInterrupt as error:
        raise _stopped(signals or [signal.SIGINT]) from error
    except SparkSetupError as error:
        raise CliError(str(error)) from error
    except OptionError as error:
        raise CliError(str(error), USAGE_ERROR) from error
    except (JobError, DataLoss, CorruptLog, SourceUnavailable, PySparkException, Py4JError, OSError) as error:
        # A cancelled Spark raises an error that is not the cause.
        raise _stopped(signals) if signals else CliError(sentence_of(error)) from error


def _stopped(signals: list[int]) -> CliError:
    code = TERMINATED if signals[0] == signal.SIGTERM else INTERRUPTED
    return CliError(
        f"stopped by {signal.Signals(signals[0]).name}. Committed work stays, and the same command continues "
        "from there",
        code,
    )


if TYPE_CHECKING:
    _: Notice = Terminal(None, "")
