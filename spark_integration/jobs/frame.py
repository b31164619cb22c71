"""Parts that all jobs share: the source that they read, progress, and errors."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from mpbroker.reading.errors import CorruptLog, DataLoss, OptionError, SourceUnavailable
from mpbroker.reading.options import ReadOptions, parse_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_EVERY_S = 0.5
_LOG = logging.getLogger("mpbroker.spark")
_RAISED = re.compile(r"^(?:[\w.]+\.)?(\w+): (.+)$")


class JobError(Exception):
    """A job cannot do its work; the text names the problem, its place and the remedy."""


_OURS = {error.__name__ for error in (OptionError, SourceUnavailable, DataLoss, CorruptLog, JobError)}


class Notice(Protocol):
    """Receives the progress of a job; the command line shows it on a terminal."""

    def say(self, text: str) -> None:
        """Show one sentence that the user should know."""

    def progress(self, done: int, total: int | None) -> None:
        """Show how many records are written, of about how many (None: unknown)."""


class Silent:
    """A `Notice` that shows nothing, for programs that do not report a job's progress."""

    def say(self, text: str) -> None:
        del text

    def progress(self, done: int, total: int | None) -> None:
        del done, total


@dataclass(frozen=True)
class Source:
    """The topics that a job reads, and where they are. `extra` has more options of the source, by name."""

    topics: str | None = None
    pattern: str | None = None
    log_dir: str | None = None
    bootstrap_servers: str | None = None
    fail_on_data_loss: bool = True
    extra: Mapping[str, str] = field(default_factory=dict)

    def options(self, **more: str) -> dict[str, str]:
        """Return the options for `spark.read.format("mpbroker")`. Raises OptionError."""
        if any(name.lower() == "valueformat" for name in self.extra):
            raise OptionError(
                "valueFormat does not apply to jobs: they copy values as they are. Leave it out"
            )
        chosen = {
            "subscribe": self.topics,
            "subscribePattern": None if self.pattern is None else _whole(self.pattern),
            "log.dir": self.log_dir,
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
        }
        return {**{name: text for name, text in chosen.items() if text is not None}, **self.extra, **more}

    def parsed(self) -> ReadOptions:
        """Return the options, parsed for a batch query. Raises OptionError."""
        return parse_options(self.options())


def _whole(pattern: str) -> str:
    """Return `pattern`, changed to match only whole names. Flags such as (?i) stay at its beginning."""
    return re.sub(r"(?s)\A((?:\(\?[a-zA-Z]+\))*)(.*)\Z", r"\1^(?:\2)$", pattern)


def check_sink(options: Mapping[str, str]) -> None:
    """Check options of the sink before Spark is started. Raises OptionError."""
    from mpbroker.writing.options import parse_write_options

    parse_write_options(options)


def sentence_of(error: BaseException) -> str:
    """Return one sentence of an error that Spark may have wrapped into errors of Python and Java.

    Our own errors come from workers as the last line of a Python traceback inside Spark's message.
    """
    text = str(error)
    for line in reversed(text.splitlines()):
        found = _RAISED.match(line.strip())
        if found and found[1] in _OURS:
            return found[2]
    for line in reversed(text.splitlines()):
        # Py4J puts a colon before the error of a constructor.
        found = _RAISED.match(line.strip(" :"))
        if found and found[1].endswith(("Error", "Exception")) and not found[1].startswith("Py4J"):
            return f"{found[1]}: {found[2]}"
    return text.strip().partition("\n")[0] or type(error).__name__


@contextmanager
def watched(
    spark: SparkSession, notice: Notice, so_far: Callable[[], tuple[int, int | None]]
) -> Iterator[None]:
    """Report twice a second how many rows Spark's running stages have written.

    `so_far` returns the rows that were written before, and the total (None: unknown).

    Spark counts rows when tasks end and with each heartbeat of an executor. Sessions of Spark Connect have no
    such counters, so only the end is reported.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        yield
        return
    store, tracker = context._jsc.sc().statusStore(), context.statusTracker()
    over = threading.Event()

    def poll() -> None:
        while not over.wait(POLL_EVERY_S):
            try:
                stages = [store.lastStageAttempt(stage) for stage in tracker.getActiveStageIds()]
                written = sum(stage.outputRecords() for stage in stages)
            except Exception as error:  # noqa: BLE001 - Py4J raises errors of many kinds
                # A stage has just ended; or the session has, and the gateway with it.
                _LOG.debug("no progress of Spark's stages: %s", error)
            else:
                done, total = so_far()
                notice.progress(done + written, total)

    thread = threading.Thread(target=poll, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
