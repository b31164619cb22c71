"""Finds and follows topics in a bucket, alone or beside their broker, and cuts ranges of them into tasks.

Nothing is downloaded to cut a range: a segment's offsets are taken to be spread evenly over its bytes.
"""

from __future__ import annotations

import math
import struct
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from mpbroker.reading.bucket_store import BUCKET, read_stored, store_errors
from mpbroker.reading.bucket_view import BucketSegment, BucketView, Key, as_ranges
from mpbroker.reading.columns import SCHEMA, Columns
from mpbroker.reading.errors import SourceUnavailable
from mpbroker.reading.options import ReadOptions, TopicPartition
from mpbroker.reading.plan import (
    BucketFiles,
    Lineage,
    OffsetRange,
    PartitionBounds,
    RestoreHistory,
    Restores,
    TaskRange,
    by_offsets,
    selected,
)
from mpbroker.reading.read_bucket import read_bucket
from mpbroker.reading.remote_catalog import RemoteCatalog
from mpbroker.reading.transactions import first_aborted_at
from mpbroker.records.aborted import AbortedRange
from mpbroker.storage.leader_epochs import NO_OFFSET, end_of

# A view that is older is read again before it is used.
VIEW_AGE_S: Final = 5.0
_TIMES: Final = pa.schema([SCHEMA.field("offset"), SCHEMA.field("timestamp")])
_TIME_ENTRY: Final = struct.Struct(">qi")
_SEARCH_BYTES: Final = 1 << 20


class BucketCatalog:
    """The topics of a bucket. With `read_committed`, readable offsets end at the last stable offset.

    Raises OptionError, SourceUnavailable, CorruptLog.
    """

    def __init__(self, url: str, *, read_committed: bool) -> None:
        self.view = BucketView(url)
        self._read_committed = read_committed

    def topics(self) -> Iterable[str]:
        return sorted(self.view.topics)

    def partitions(self, topic: str) -> Sequence[int]:
        if topic not in self.view.topics:
            raise SourceUnavailable(
                f"topic {topic} is not in the bucket, which has the topics of the broker's last cut. Check "
                f"its name and option {BUCKET}"
            )
        return self.view.partitions(self.view.topics[topic])

    def bounds(self, wanted: Sequence[TopicPartition]) -> Mapping[TopicPartition, PartitionBounds]:
        found = {}
        for one in wanted:
            key = self._key(one)
            found[one] = PartitionBounds(*self.view.bounds(key, committed=self._read_committed), key[0])
        return found

    def lineages(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Lineage]:
        found = {}
        for one, epoch in epochs.items():
            known = self.view.epochs(self._key(one))
            end = self._committed_end(one, end_of(known, epoch, NO_OFFSET).offset)
            found[one] = Lineage(known[-1][0], end)
        return found

    def _committed_end(self, one: TopicPartition, end: int) -> int:
        """Return an epoch's end, or the start of the first aborted transaction that was open there.

        Return -1 if the end is unknown, or if what may be read ends before it.
        """
        key = self._key(one)
        log_start, last = self.view.bounds(key, committed=self._read_committed)
        if end == NO_OFFSET or last < end:
            return NO_OFFSET
        if not self._read_committed or end <= log_start:
            return end
        return first_aborted_at(end, self.view.aborted(key, end - 1, end))

    def offsets_for_times(self, wanted: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        return {one: self._offset_for_time(one, timestamp_ms) for one, timestamp_ms in wanted.items()}

    def weight(self, wanted: OffsetRange) -> int:
        return sum(
            max(one.stored.weight(wanted.start, wanted.end), 1)
            for one in self.view.segments(self._key(wanted.topic_partition), wanted.start, wanted.end)
        )

    def tasks(self, wanted: OffsetRange, parts: int, max_records: int | None) -> list[TaskRange]:
        return self.tasks_of(self._key(wanted.topic_partition)[0], wanted, parts, max_records)

    def tasks_of(
        self,
        topic_id: bytes,
        wanted: OffsetRange,
        parts: int,
        max_records: int | None,
        aborted: Sequence[AbortedRange] = (),
    ) -> list[TaskRange]:
        """Cut a range of the topic with this id. `aborted` are transactions that the bucket may not know."""
        topic, number = wanted.topic_partition
        key = topic_id, number
        segments = list(self.view.segments(key, wanted.start, wanted.end))
        known = self.view.aborted(key, wanted.start, wanted.end) if self._read_committed else []
        tasks = []
        for low, high in pairwise([wanted.start, *_cuts(segments, wanted, parts), wanted.end]):
            for start, end in by_offsets(low, high, 1, max_records):
                stored = tuple(
                    one.stored for one in segments if one.stored.base < end and one.stored.end > start
                )
                ranges = (*as_ranges(known, start, end), *aborted)
                bucket = BucketFiles(self.view.url, stored, ranges)
                tasks.append(TaskRange(topic, number, start, end, topic_id, bucket=bucket))
        return tasks

    @property
    def generation(self) -> int:
        """Return the generation of the ledger (`BucketView.generation`)."""
        return self.view.generation

    def restores(self, generation: int) -> Restores:
        """Return what restores since a generation have kept (`BucketView.restores`)."""
        return self.view.restores(generation, committed=self._read_committed)

    def close(self) -> None:
        """Do nothing: the connections stay for other queries of this process."""

    def _key(self, one: TopicPartition) -> Key:
        return self.view.topics[one[0]], one[1]

    def _offset_for_time(self, one: TopicPartition, timestamp_ms: int) -> int | None:
        key = self._key(one)
        log_start, end = self.view.bounds(key, committed=self._read_committed)
        for segment in self.view.segments(key, log_start, end):
            if segment.largest_ms is not None and segment.largest_ms < timestamp_ms:
                continue
            with store_errors():
                start = max(log_start, _offset_before(segment, self.view, timestamp_ms))
            until = min(segment.stored.end, end)
            task = TaskRange(*one, start, until, bucket=BucketFiles(self.view.url, (segment.stored,)))
            if start < until and (found := _first_at(task, timestamp_ms)) is not None:
                return found
        return None


class BucketFollower:
    """Follows topics in a bucket: reads on in its ledger. (Protocol: Follower.)

    A bucket is as a broker at rest: it may be behind offsets that a query has read elsewhere.
    """

    is_at_rest = True

    def __init__(self, catalog: BucketCatalog, options: ReadOptions) -> None:
        self.catalog = self.restore_history = catalog
        self._options = options
        self._bounds: Mapping[TopicPartition, PartitionBounds] = {}
        self._read_at = 0.0

    def poll(self) -> Mapping[TopicPartition, PartitionBounds]:
        """See Follower."""
        if not self._bounds or time.monotonic() - self._read_at >= VIEW_AGE_S:
            is_new = self.catalog.view.refresh()
            if is_new or not self._bounds:
                self._bounds = self.catalog.bounds(selected(self.catalog, self._options))
            self._read_at = time.monotonic()
        return self._bounds

    def wait(self, timeout_s: float) -> None:
        """See Follower. The next poll may still find nothing new."""
        time.sleep(timeout_s)

    def close(self) -> None:
        """See Follower."""
        self.catalog.close()


class SeamCatalog(RemoteCatalog):
    """The topics of brokers, of which tasks read sealed segments in the bucket, and fetch the rest.

    A record comes from exactly one side, chosen when it is planned.
    """

    def __init__(self, options: ReadOptions, url: str) -> None:
        super().__init__(options)
        self._bucket = BucketCatalog(url, read_committed=options.read_committed)
        self._committed = options.read_committed
        self._max_bytes = options.max_bytes_per_task
        self._read_at = time.monotonic()

    @property
    def view(self) -> BucketView:
        """Return the view of the bucket, at most VIEW_AGE_S old."""
        if time.monotonic() - self._read_at > VIEW_AGE_S:
            self._bucket.view.refresh()
            self._read_at = time.monotonic()
        return self._bucket.view

    @property
    def restore_history(self) -> RestoreHistory:
        self.view  # noqa: B018 - reads it again if it is old
        return self._bucket

    def tasks(self, wanted: OffsetRange, parts: int, max_records: int | None) -> list[TaskRange]:
        one, start, end = wanted.topic_partition, wanted.start, wanted.end
        key = self._topic_id(one[0]) or b"", one[1]
        # Only the broker knows where transactions ended that began in the last segments.
        known = self.view.sealed_end(key), self.view.bounds(key, committed=self._committed)[1]
        seam = max(start, min(end, *known))
        share = min(max(parts * (seam - start) // (end - start), 1), max(parts - 1, 1))
        tasks = []
        if start < seam:
            size = sum(found.stored.weight(start, seam) for found in self.view.segments(key, start, seam))
            share_stored = max(share, math.ceil(size / self._max_bytes))
            sealed = OffsetRange(one, start, seam)
            tasks += self._bucket.tasks_of(key[0], sealed, share_stored, max_records)
        if seam < end:
            tasks += super().tasks(OffsetRange(one, seam, end), max(parts - share, 1), max_records)
        return tasks


def _cuts(segments: Sequence[BucketSegment], wanted: OffsetRange, parts: int) -> Iterator[int]:
    """Yield at most `parts` - 1 offsets that cut a range into parts of about equal bytes."""
    weights = [one.stored.weight(wanted.start, wanted.end) for one in segments]
    targets = [sum(weights) * number // parts for number in range(1, parts)]
    seen, last = 0, wanted.start
    for segment, weight in zip(segments, weights, strict=True):
        low = max(segment.stored.base, wanted.start)
        offsets = min(segment.stored.end, wanted.end) - low
        while targets and targets[0] < seen + weight:
            cut = low + offsets * (targets.pop(0) - seen) // weight
            if last < cut < wanted.end:
                yield cut
                last = cut
        seen += weight


def _offset_before(segment: BucketSegment, view: BucketView, timestamp_ms: int) -> int:
    """Return an offset before which all records of the segment are earlier than a time."""
    data = read_stored(view.store, segment.times, 0, sum(one.length for one in segment.times))
    entries = list(_TIME_ENTRY.iter_unpack(data[: len(data) // _TIME_ENTRY.size * _TIME_ENTRY.size]))
    place = bisect_left(entries, timestamp_ms, key=lambda entry: entry[0]) - 1
    return segment.stored.base + (entries[place][1] if place >= 0 else 0)


def _first_at(task: TaskRange, timestamp_ms: int) -> int | None:
    """Return the first offset of the range whose record is of this time or later."""
    assert task.bucket is not None
    columns = Columns(_TIMES, task.topic, task.partition, check_crcs=True)
    for batch in read_bucket(
        *(task, task.bucket, columns),
        fail_on_data_loss=True,
        read_committed=False,
        window_bytes=_SEARCH_BYTES,
    ):
        times = batch.column("timestamp").cast(pa.int64())
        place = pc.index(pc.greater_equal(times, timestamp_ms * 1000), True).as_py()
        if place >= 0:
            return int(batch.column("offset")[place].as_py())
    return None
