"""Plans and reads as Spark does, without Spark; and writes partitions with transactions in them."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from mpbroker.reading.catalogs import open_catalog
from mpbroker.reading.columns import SCHEMA
from mpbroker.reading.options import ReadOptions, parse_options
from mpbroker.reading.plan import TaskRange, plan
from mpbroker.reading.read import read_range
from mpbroker.records.builder import build_batch, build_transaction_marker
from mpbroker.records.markers import ABORT, COMMIT
from mpbroker.storage.names import SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX, segment_name
from mpbroker.storage.producer_state import Producers
from mpbroker.storage.reader import Bound
from mpbroker.storage.transaction_index import AbortedTransaction, add_aborted
from tests.support.spark_logs import PartitionWriter, numbered

OFFSETS = pa.schema([SCHEMA.field("offset")])
UNCOMMITTED = {"kafka.isolation.level": "read_uncommitted"}


def query(log_dir: Path | str, topic: str = "t", **options: object) -> ReadOptions:
    given = {name: str(value) for name, value in options.items()}
    return parse_options({"log.dir": str(log_dir), "subscribe": topic} | given)


def bucket_query(url: str, topic: str = "t", **options: object) -> ReadOptions:
    given = {name: str(value) for name, value in options.items()}
    return parse_options({"mpbroker.bucket": url, "subscribe": topic} | given)


def planned(options: ReadOptions) -> list[TaskRange]:
    with closing(open_catalog(options)) as catalog:
        tasks: list[TaskRange] = pickle.loads(pickle.dumps(plan(catalog, options)))
        return tasks


def offsets_of(tasks: Iterable[TaskRange], options: ReadOptions) -> list[int]:
    return [
        offset
        for task in tasks
        for batch in read_range(task, OFFSETS, options)
        for offset in batch.column("offset").to_pylist()
    ]


def read(log_dir: Path | str, topic: str = "t", **options: object) -> list[int]:
    """The offsets of the records that a query gets, in the order of its tasks."""
    found = query(log_dir, topic, **options)
    return offsets_of(planned(found), found)


class TransactionalWriter(PartitionWriter):
    """Appends transactions, keeps `.txnindex` and snapshots as a broker does, and knows what is committed."""

    def begin(self) -> None:
        """Take note of what a broker remembers; called before the first append."""
        self.producers = Producers()
        self.ends: dict[int, Bound] = {}
        self.committed: list[int] = []
        self.aborted_end = 0
        self._written: dict[int, list[int]] = {}

    def plain(self, count: int = 1) -> None:
        """Records outside of any transaction."""
        self.ends[self.next_offset] = self.end
        self.committed += range(self.next_offset, self.next_offset + count)
        self.append(numbered(count, first=self.next_offset))

    def write(self, producer_id: int, count: int = 1) -> None:
        """Records of the producer's transaction, which begins if none is open."""
        first = self.next_offset
        self.ends[first] = self.end
        batch = build_batch(
            numbered(count, first=first),
            base_offset=first,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=-1,
            transactional=True,
        )
        self.producers.update(producer_id, 0, -1, count, first, 0, transactional=True)
        self._written.setdefault(producer_id, []).extend(range(first, first + count))
        self.append_bytes(batch, count, 1_700_000_000_000 + first)

    def commit(self, producer_id: int) -> None:
        self._mark(producer_id, COMMIT)
        self.committed += self._written.pop(producer_id, [])

    def abort(self, producer_id: int, *, indexed: bool = True) -> None:
        """`indexed`: whether the entry of the index reaches the disk."""
        marker = self.next_offset
        first = self._mark(producer_id, ABORT)
        self._written.pop(producer_id, None)
        if first >= 0:
            self.aborted_end = marker + 1
            stable = self.producers.first_open()
            entry = AbortedTransaction(producer_id, first, marker, marker + 1 if stable < 0 else stable)
            if indexed:
                add_aborted(self.index, entry)

    def snapshot(self) -> None:
        path = self.directory / segment_name(self.next_offset, SNAPSHOT_SUFFIX)
        path.write_bytes(self.producers.snapshot())

    @property
    def index(self) -> Path:
        """Return the index of the active segment."""
        return self.directory / segment_name(self.base, TXN_INDEX_SUFFIX)

    @property
    def stable(self) -> Bound:
        """The last stable offset and where it is."""
        first = self.producers.first_open()
        return self.end if first < 0 else self.ends[first]

    def committed_below(self, offset: int) -> list[int]:
        return sorted(one for one in self.committed if one < offset)

    def _mark(self, producer_id: int, kind: int) -> int:
        self.ends[self.next_offset] = self.end
        marker = build_transaction_marker(
            kind,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=0,
            base_offset=self.next_offset,
        )
        self.append_bytes(marker, 1, 0)
        return self.producers.ended(producer_id, 0, 0, 0)
