"""Looks after tables between commits: compaction, expiry of snapshots, and orphans once a day."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from spark_integration.jobs.frame import Notice, sentence_of
from spark_integration.tables.compaction import FILES_MIN, compact
from spark_integration.tables.expiry import expire
from spark_integration.tables.orphans import remove_orphans

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

ORPHANS_EVERY_S: Final = 24 * 3600.0
_LOG = logging.getLogger("mpbroker.spark")


class Upkeep:
    """The upkeep of a job's tables. A failure is told, and tried again later: it costs space, no record."""

    def __init__(self, spark: SparkSession, notice: Notice) -> None:
        self._spark = spark
        self._notice = notice
        self._commits: Counter[str] = Counter()
        self._orphans_at: dict[str, float] = {}

    def committed(self, table: Table) -> None:
        """Take notice of a commit, and do what is due: at a job's first commit, then at every twentieth."""
        name = ".".join(table.name())
        self._commits[name] += 1
        if self._commits[name] % FILES_MIN != 1:
            return
        for what in (self._compact, lambda _, one: expire(one.refresh()), self._remove_orphans):
            # What ails one of them, as a column that somebody has renamed, is no reason to leave the others.
            try:
                what(name, table)
            except Exception as error:  # noqa: BLE001 - what catalogs, stores and Spark raise has nothing in common
                _LOG.debug("upkeep of %s", name, exc_info=True)
                self._notice.say(f"upkeep of {name}, to be tried again: {sentence_of(error)}")

    def _compact(self, name: str, table: Table) -> None:
        done = compact(self._spark, table)
        if done.files_before:
            self._notice.say(f"{name}: compacted {done.files_before} files to {done.files_after}")

    def _remove_orphans(self, name: str, table: Table) -> None:
        now = time.monotonic()
        if now >= self._orphans_at.get(name, 0.0):
            removed = remove_orphans(table)
            self._orphans_at[name] = now + ORPHANS_EVERY_S
            if removed:
                self._notice.say(f"{name}: deleted {removed} files that no snapshot has")
