"""A topic in memory, a lake in memory, and the job of tables between them, without Spark or a broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from mpbroker.reading.options import TopicPartition
from mpbroker.reading.plan import Lineage, PartitionBounds
from mpbroker.remote.store.object_store import ObjectStore
from mpbroker.storage.leader_epochs import NO_OFFSET, end_of
from spark_integration.jobs.frame import Silent
from spark_integration.tables import catalog, commit, job, store_io, values
from spark_integration.tables.catalog import LakeSettings
from spark_integration.tables.compaction import Rewriting, groups, try_replace
from spark_integration.tables.data_files import Written, data_file, row_files
from spark_integration.tables.expiry import MAX_AGE, MIN_SNAPSHOTS, expire
from spark_integration.tables.orphans import ORPHAN_MS, named_files, remove_orphans
from spark_integration.tables.planning import Step
from spark_integration.tables.settings import JobSettings, Settings, TableSettings
from spark_integration.tables.spans import Covered, covered
from tests.support.fault_store import MemoryStore

TOPIC, TABLE = "orders", "shop.orders"
LOCATION = "s3://bucket/lake"
DAY_MS = 86_400_000


class Log:
    """One topic: for each partition the times of its records, its start and its leader epochs.

    A record's value is its own: no other record, also of another lineage, has it.
    """

    def __init__(self, partitions: int) -> None:
        self.topic_id = b"\1" * 16
        self.records: list[list[tuple[int, bytes]]] = [[] for _ in range(partitions)]
        self.starts = [0] * partitions
        self.epochs: list[list[tuple[int, int]]] = [[(0, 0)] for _ in range(partitions)]
        self._made = 0

    def append(self, partition: int, count: int, day: int = 0) -> None:
        for _ in range(count):
            self._made += 1
            self.records[partition].append((day * DAY_MS + self._made, b"%d" % self._made))

    def restore(self, ends: Sequence[int]) -> None:
        """Go back to a cut: all partitions begin an epoch."""
        newest = max(epoch for epochs in self.epochs for epoch, _ in epochs)
        for partition, end in enumerate(ends):
            del self.records[partition][end:]
            kept = [entry for entry in self.epochs[partition] if entry[1] < end or entry[0] == 0]
            self.epochs[partition] = [*kept, (newest + 1, end)]

    def rows(self) -> Counter[tuple[int, int, bytes]]:
        return Counter(
            (number, offset, value)
            for number, records in enumerate(self.records)
            for offset, (_, value) in enumerate(records)
            if offset >= self.starts[number]
        )


class Topics:
    """The log as a catalog of the source. (Protocol: reading.plan.Catalog, as far as the job uses it.)"""

    def __init__(self, log: Log) -> None:
        self._log = log

    def topics(self) -> Iterable[str]:
        return [TOPIC]

    def partitions(self, topic: str) -> Sequence[int]:
        assert topic == TOPIC
        return range(len(self._log.records))

    def bounds(self, wanted: Sequence[TopicPartition]) -> Mapping[TopicPartition, PartitionBounds]:
        log = self._log
        return {
            one: PartitionBounds(log.starts[one[1]], len(log.records[one[1]]), log.topic_id) for one in wanted
        }

    def lineages(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Lineage]:
        known = self._log.epochs
        return {
            one: Lineage(known[one[1]][-1][0], end_of(known[one[1]], epoch, NO_OFFSET).offset)
            for one, epoch in epochs.items()
        }

    def close(self) -> None:
        pass


class World:
    """The log, the objects of the lake, and one life of a job after the other."""

    def __init__(self, patch: pytest.MonkeyPatch, partitions: int = 2) -> None:
        self.log = Log(partitions)
        self.memory = MemoryStore()
        self.store: ObjectStore = self.memory
        self.settings = settings()
        patch.setattr(store_io, "open_store", lambda *_: self.store)
        patch.setattr(job, "open_topics", lambda _options: Topics(self.log))
        patch.setattr(commit, "PAUSE_S", 0)
        store_io.store_of.cache_clear()

    def life(self, store: ObjectStore | None = None, **options: Any) -> job.TablesJob:
        """Begin another process; it has this store, or the memory."""
        self.store = store or self.memory
        store_io.store_of.cache_clear()
        changed = Settings(*self.settings_with(**options)) if options else self.settings
        return LocalJob(self.log, changed)

    def settings_with(self, **options: Any) -> tuple[Any, ...]:
        had = self.settings
        return had.source, had.lake, had.tables, JobSettings(**options)

    def table(self) -> Any:
        self.store = self.memory
        store_io.store_of.cache_clear()
        return catalog.open_catalog(self.settings.lake).load_table(TABLE)

    def covered(self) -> Covered:
        return covered(self.table()) or Covered(TOPIC)

    def compact(self) -> None:
        """Make one file of all those of a day."""
        table = self.table()
        chosen = groups(table, 1 << 40, files_min=1)
        rewriting = Rewriting(row_files(table))
        made = [rewriting.rewrite([one.file_path for one in group]) for group in chosen]
        old = [one for group in chosen for one in group]
        assert not old or try_replace(table, old, [data_file(table, one) for one in made])

    def tidy(self) -> None:
        """Expire what may expire and, days later, delete what no snapshot has."""
        table = self.table()
        with table.transaction() as transaction:
            transaction.set_properties({MAX_AGE: "0", MIN_SNAPSHOTS: "1"})
        expire(table)
        self.memory.now_ms += ORPHAN_MS + 1
        remove_orphans(table)
        files = {name.rpartition("/")[2] for name in self.memory.objects if name.endswith(".parquet")}
        assert files <= named_files(table)

    def expire(self) -> None:
        """Forget all snapshots but the present one."""
        table = self.table()
        old = [one.snapshot_id for one in table.snapshots() if one != table.current_snapshot()]
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()

    def rows(self) -> Counter[tuple[int, int, bytes]]:
        found = self.table().scan().to_arrow()
        columns = (found[name].to_pylist() for name in ("_partition_index", "_offset", "value"))
        return Counter(zip(*columns, strict=True))


class LocalJob(job.TablesJob):
    """The job, but for Spark: one task, in this process, writes the rows."""

    def __init__(self, log: Log, settings: Settings) -> None:
        super().__init__(SimpleNamespace(), settings, Silent())  # type: ignore[arg-type]
        self._log = log

    def _written(
        self, table: Any, declared: TableSettings, step: Step, at_once: int
    ) -> tuple[Any, Sequence[Written]]:
        assert at_once == 1
        plan = values.plan_rows(values.value_settings(declared.values, Path()), table.schema())
        return table, list(row_files(table, plan.rows.of).files(self._batches(step)))

    def _batches(self, step: Step) -> Iterator[pa.RecordBatch]:
        for span in step.spans:
            records = self._log.records[span.partition][span.start : span.end]
            yield record_batch(span.topic_id, span.partition, span.start, records)


def record_batch(
    topic_id: str | None, partition: int, start: int, records: Sequence[tuple[int, bytes]]
) -> pa.RecordBatch:
    """Return records, each a time and a value, as the source gives them to the job."""
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    count = len(records)
    return pa.RecordBatch.from_pydict(
        {
            "_topic_id": pa.array([topic_id] * count, pa.string()),
            "partition": pa.array([partition] * count, pa.int32()),
            "offset": pa.array(range(start, start + count), pa.int64()),
            "timestamp": pa.array([time * 1000 for time, _ in records], pa.timestamp("us", "UTC")),
            "headers": pa.nulls(count, header),
            "key": pa.nulls(count, pa.binary()),
            "value": pa.array([value for _, value in records], pa.binary()),
        }
    )


def settings(**values_: Any) -> Settings:
    declared = TableSettings(topic=TOPIC, name=TABLE, values=values_)
    return Settings(
        {"log.dir": "/none"}, LakeSettings(LOCATION), (declared,), JobSettings(offsets_per_commit=20)
    )
