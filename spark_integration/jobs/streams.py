"""Code for jobs with streaming queries: reports progress, waits for the end, ends open transactions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from mpbroker.reading.errors import OptionError
from spark_integration.jobs.frame import Notice
from spark_integration.sink import settle

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

POLL_EVERY_S: Final = 1
_BROKEN_ORDER: Final = ("minpartitions", "maxrecordsperpartition", "maxbytespertask")
# Larger than any partition: one task reads a whole one, and so writes it in its order.
_UNCUT_BYTES: Final = 1 << 62


class Running:
    """A query that was started. `records` counts the rows that its batches had."""

    def __init__(self, query: StreamingQuery, notice: Notice, sink: Mapping[str, str] | None = None) -> None:
        """Watch the query. `sink` has the options of a sink that writes exactly once."""
        self.records = 0
        self._sink = sink
        self._query = query
        self._notice = notice
        self._batch = -1

    def wait(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Wait for the end of the query; stop it once `is_stopped` returns True. Raises the query's error.

        Signal handlers must not raise, but make `is_stopped` return True: an exception would interrupt a call
        to the JVM, and the next call would get the interrupted call's answer.
        """
        while not is_stopped() and not self._query.awaitTermination(POLL_EVERY_S):
            self._report()
        self._query.stop()
        self._report()
        if self._sink is not None:
            settle(self._sink)

    def _report(self) -> None:
        for progress in self._query.recentProgress:
            if progress["batchId"] > self._batch:
                self._batch = progress["batchId"]
                self.records += max(progress["numInputRows"], 0)
        last = self._query.lastProgress
        self._notice.progress(self.records, None if last is None else self.records + _behind(last))


def _behind(progress: Any) -> int:
    """Return how many offsets the sources have that the query has not read."""
    found = 0
    for source in progress["sources"]:
        with suppress(TypeError, ValueError, KeyError):
            # A query that first finishes a batch of its checkpoint has not polled yet: null.
            latest, end = json.loads(source["latestOffset"]) or {}, json.loads(source["endOffset"])
            for topic, partitions in latest.items():
                for number, offset in partitions.items():
                    found += max(offset - end.get(topic, {}).get(number, 0), 0)
    return found


def triggered(writer: DataStreamWriter, *, once: bool, every_s: float) -> DataStreamWriter:
    """Return the writer with a trigger. The query ends after the present records if `once`, else runs on."""
    if once:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{max(round(every_s * 1000), 0)} milliseconds")


def in_order(options: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of `options` that gives all records of a partition in a batch to one task.

    Raises OptionError.
    """
    for name in options:
        if name.lower() in _BROKEN_ORDER:
            raise OptionError(
                f"{name} would have tasks of one partition write at once, out of order; leave it out"
            )
    return {**options, "maxBytesPerTask": str(_UNCUT_BYTES)}
