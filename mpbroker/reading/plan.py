"""Plans the ranges of offsets that tasks read, from a query's options and a catalog of topics.

(Spark: KafkaOffsetReader, KafkaOffsetRangeCalculator.)
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

from mpbroker.protocol.numbers import EARLIEST, LATEST
from mpbroker.protocol.topic_names import OWN_TOPICS
from mpbroker.reading.conditions import EVERYTHING, Pruning
from mpbroker.reading.errors import LOSS_ADVICE, DataLoss, OptionError
from mpbroker.reading.options import (
    Assign,
    AtOffset,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Limit,
    ReadOptions,
    Subscribe,
    SubscribePattern,
    TopicPartition,
    check_names_all,
)
from mpbroker.records.aborted import AbortedRange
from mpbroker.storage.reader import Bound

_LOG = logging.getLogger("mpbroker.spark")


@dataclass(frozen=True)
class LocalFiles:
    """A partition's directory at the time of planning, and the log directories that it may move to.

    `cluster_id` and `node_id` name the broker. (On another host, the paths may belong to another broker.)
    `aborted` are aborted transactions that the `.txnindex` files may lack.
    """

    directory: str
    bound: Bound
    log_dirs: tuple[str, ...] = ()
    cluster_id: str = ""
    node_id: str = ""
    aborted: tuple[AbortedRange, ...] = ()

    def places(self) -> list[Path]:
        """Return the paths at which the partition's directory may be now, the planned path first."""
        planned = Path(self.directory)
        return list(dict.fromkeys([planned, *(Path(log_dir) / planned.name for log_dir in self.log_dirs)]))


class StoredBytes(NamedTuple):
    """`length` bytes of an object in a bucket, from `position` on."""

    name: str
    position: int
    length: int


class StoredSegment(NamedTuple):
    """Offsets [base, end) of a partition in a bucket. `log` is the segment's file, one piece after another.

    `offset_index` is Kafka's `.index` in pieces, no pieces if there is none. An entry is a hint: a reader
    checks that a batch that begins at or before its offset is there, else it begins at the first byte. The
    range may end before, at or behind the position that the index tells.
    """

    base: int
    end: int
    log: tuple[StoredBytes, ...]
    offset_index: tuple[StoredBytes, ...] = ()

    @property
    def size(self) -> int:
        """Return the bytes of the segment's file."""
        return sum(one.length for one in self.log)

    def weight(self, start: int, end: int) -> int:
        """Return the approximate bytes of the offsets [start, end): a share of the file."""
        offsets = min(end, self.end) - max(start, self.base)
        return max(self.size * offsets // (self.end - self.base), 0)


@dataclass(frozen=True)
class BucketFiles:
    """The segments of a range in the bucket at `url`, by offset. Names of objects are relative to `url`.

    `aborted` are all aborted transactions of the range. The process that reads has its own credentials.
    """

    url: str
    segments: tuple[StoredSegment, ...]
    aborted: tuple[AbortedRange, ...] = ()


@dataclass(frozen=True)
class TaskRange:
    """The work of one task: offsets [start, end) of a partition.

    `files` or `bucket` say where the range is; without both it has to be fetched. `topic_id` is None if the
    catalog has no topic ids.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: bytes | None = None
    files: LocalFiles | None = None
    bucket: BucketFiles | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offsets [{self.start}, {self.end})"


@dataclass(frozen=True)
class OffsetRange:
    """Offsets [start, end) of a partition, before they are split among tasks."""

    topic_partition: TopicPartition
    start: int
    end: int


class PartitionBounds(NamedTuple):
    """The readable offsets [log_start, end). `end` is the high watermark or the last stable offset.

    `topic_id` is None if the catalog has no topic ids.
    """

    log_start: int
    end: int
    topic_id: bytes | None


class Lineage(NamedTuple):
    """A partition's leader epoch now, and the end that an earlier one has in this log (-1: unknown)."""

    epoch: int
    end: int


class Catalog(Protocol):
    """Topics and their offsets, from files, a bucket or brokers."""

    def topics(self) -> Iterable[str]:
        """Return the names of all topics."""

    def partitions(self, topic: str) -> Sequence[int]:
        """Return the topic's partitions. Raises SourceUnavailable if the topic does not exist."""

    def bounds(self, wanted: Sequence[TopicPartition]) -> Mapping[TopicPartition, PartitionBounds]:
        """Return the readable offsets of each partition. Raises SourceUnavailable."""

    def lineages(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Lineage]:
        """Return the leader epoch of each partition, and where the epoch in `epochs` (-1: none) ends.

        Records from there on that were read in that epoch are no longer in the log: it was restored to an
        earlier state (KIP-320). Raises SourceUnavailable, CorruptLog.
        """

    def offsets_for_times(self, wanted: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """Return each partition's first offset at its time (ms since 1970) or later, or None."""

    def weight(self, wanted: OffsetRange) -> int:
        """Return the approximate size of a range in bytes; 0 if it is unknown."""

    def tasks(self, wanted: OffsetRange, parts: int, max_records: int | None) -> list[TaskRange]:
        """Cut the range into about `parts` tasks of equal size, each of at most `max_records` offsets."""

    def close(self) -> None:
        """Release files and connections."""


Restores = Sequence[Mapping[tuple[bytes, int], int]]
"""The end up to which each restore of a broker kept the log, by topic id and partition.

What nobody knows is left out.
"""


class RestoreHistory(Protocol):
    """Knows which restores of the broker there were: each replaces what logs had above some offsets."""

    @property
    def generation(self) -> int:
        """Return a number that grows with each restore."""

    def restores(self, generation: int) -> Restores:
        """Return what the restores since a generation have kept. Raises SourceUnavailable, CorruptLog."""


def plan(catalog: Catalog, options: ReadOptions, pruning: Pruning = EVERYTHING) -> list[TaskRange]:
    """Plan the tasks of a batch query. Raises OptionError, DataLoss, SourceUnavailable.

    A partition that `pruning` excludes is not read, and its data loss is not reported. In other partitions
    data loss is reported before their ranges are pruned.
    """
    everything = selected(catalog, options)
    _check_names(options.starting, "starting", everything)
    _check_names(options.ending, "ending", everything)
    wanted = [one for one in everything if pruning.wants(*one)]
    if not wanted:
        return []
    bounds = catalog.bounds(wanted)
    starts = _asked_for(catalog, options.starting, "starting", bounds, options)
    ends = _asked_for(catalog, options.ending, "ending", bounds, options)
    ranges = [_within(one, starts[one], ends[one], bounds[one], options) for one in wanted]
    return split(catalog, _pruned(catalog, ranges, pruning), options)


def _pruned(catalog: Catalog, ranges: Sequence[OffsetRange], pruning: Pruning) -> list[OffsetRange]:
    """Return the ranges, cut to the offsets and times of the pruning, without empty ranges."""
    left = []
    for one in ranges:
        start, end = max(one.start, pruning.low_offset), min(one.end, pruning.high_offset)
        if start < end:
            left.append(OffsetRange(one.topic_partition, start, end))
    if pruning.since_ms is None or not left:
        return left
    # Asked after the bounds: if no record is that late now, none within them is.
    firsts = catalog.offsets_for_times({one.topic_partition: pruning.since_ms for one in left})
    since = []
    for one in left:
        first = firsts[one.topic_partition]
        if first is not None and first < one.end:
            since.append(OffsetRange(one.topic_partition, max(one.start, first), one.end))
    return since


def selected(catalog: Catalog, options: ReadOptions) -> list[TopicPartition]:
    """Return the partitions that the options select, sorted. Raises OptionError, SourceUnavailable."""
    strategy = options.strategy
    if isinstance(strategy, Assign):
        for topic, number in strategy.partitions:
            if number not in catalog.partitions(topic):
                raise OptionError(f"assign: topic {topic} has no partition {number}")
        return sorted(strategy.partitions)
    if isinstance(strategy, Subscribe):
        topics = list(strategy.topics)
    else:
        assert isinstance(strategy, SubscribePattern)
        # As with a consumer's exclude.internal.topics: other names with two underscores are ordinary ones.
        visible = (topic for topic in catalog.topics() if topic not in OWN_TOPICS)
        topics = [topic for topic in visible if strategy.pattern.search(topic)]
    return sorted((topic, number) for topic in topics for number in catalog.partitions(topic))


def resolve(
    catalog: Catalog,
    limit: Limit,
    side: str,
    wanted: Sequence[TopicPartition],
    bounds: Mapping[TopicPartition, PartitionBounds],
    options: ReadOptions,
) -> dict[TopicPartition, int]:
    """Return the offset that a limit means in each partition.

    An offset beyond the end is data loss. Raises DataLoss, OptionError, SourceUnavailable.
    """
    _check_names(limit, side, wanted)
    found = {}
    for one, offset in _asked_for(catalog, limit, side, bounds, options).items():
        found[one] = min(_edge(bounds[one], offset), bounds[one].end)
        if offset > found[one]:
            _report_beyond(one, offset, bounds[one], options)
    return found


def _check_names(limit: Limit, side: str, wanted: Sequence[TopicPartition]) -> None:
    """Raise OptionError if a limit by partition does not name exactly the partitions that are read."""
    if isinstance(limit, AtOffsets):
        check_names_all(limit.offsets, f"{side}Offsets", wanted)
    elif isinstance(limit, AtTimestamps):
        check_names_all(limit.timestamps_ms, f"{side}OffsetsByTimestamp", wanted)


def _asked_for(
    catalog: Catalog,
    limit: Limit,
    side: str,
    bounds: Mapping[TopicPartition, PartitionBounds],
    options: ReadOptions,
) -> Mapping[TopicPartition, int]:
    """Return the limit's offset in each partition. EARLIEST and LATEST are not replaced by offsets."""
    if isinstance(limit, AtOffset):
        return dict.fromkeys(bounds, limit.offset)
    if isinstance(limit, AtOffsets):
        return limit.offsets
    return _at_times(catalog, limit, side, bounds, options)


def _at_times(
    catalog: Catalog,
    limit: AtTimestamp | AtTimestamps,
    side: str,
    bounds: Mapping[TopicPartition, PartitionBounds],
    options: ReadOptions,
) -> dict[TopicPartition, int]:
    """Return the offset of the first record at the limit's time or later, in each partition.

    If no record is that late, return LATEST. For a start this raises OptionError instead, unless the option
    startingOffsetsByTimestampStrategy is latest.
    """
    if isinstance(limit, AtTimestamp):
        times: Mapping[TopicPartition, int] = dict.fromkeys(bounds, limit.timestamp_ms)
    else:
        times = {one: limit.timestamps_ms[one] for one in bounds}
    resolved = {}
    for one, offset in catalog.offsets_for_times(times).items():
        if offset is None and side == "starting" and not options.latest_if_no_later_record:
            raise OptionError(
                f"No offset matched from request of topic-partition {one[0]}-{one[1]} and timestamp "
                f"{times[one]}. (Set startingOffsetsByTimestampStrategy to latest to start at the end there)"
            )
        # The record may have been appended after the bounds were asked for.
        resolved[one] = LATEST if offset is None else min(offset, bounds[one].end)
    return resolved


def _within(
    topic_partition: TopicPartition, start: int, end: int, bounds: PartitionBounds, options: ReadOptions
) -> OffsetRange:
    """Return the readable part of [start, end); report the rest as lost. Raises OptionError, DataLoss."""
    earliest, latest, _ = bounds
    topic, number = topic_partition
    first, last = _edge(bounds, start), _edge(bounds, end)
    if start >= 0 and last < first <= latest:
        raise OptionError(
            f"The resolved start offset {first} is greater than the resolved end offset {last} for topic "
            f"{topic} partition {number}."
        )
    if first < min(last, earliest):
        report_loss(
            options.fail_on_data_loss,
            f"Cannot read offsets {first} to {earliest - 1} of {topic}-{number}: its log starts at "
            f"{earliest}.",
        )
    if max(first, last) > latest:
        _report_beyond(topic_partition, max(first, last), bounds, options)
    return OffsetRange(topic_partition, max(first, earliest), min(last, latest))


def _report_beyond(
    topic_partition: TopicPartition, offset: int, bounds: PartitionBounds, options: ReadOptions
) -> None:
    topic, number = topic_partition
    name = "last stable offset" if options.read_committed else "high watermark"
    report_loss(
        options.fail_on_data_loss,
        f"Cannot read up to offset {offset} of {topic}-{number}: its {name} is {bounds.end}.",
    )


def _edge(bounds: PartitionBounds, offset: int) -> int:
    """Replace EARLIEST by the log start offset and LATEST by the end; return any other offset unchanged."""
    if offset == EARLIEST:
        return bounds.log_start
    return bounds.end if offset == LATEST else offset


def report_loss(fail: bool, text: str) -> None:
    """Raise DataLoss if `fail`, else log a warning that reading continues without the lost records."""
    if fail:
        raise DataLoss(f"{text} {LOSS_ADVICE}")
    _LOG.warning("%s Continuing without them.", text)


def split(catalog: Catalog, ranges: Sequence[OffsetRange], options: ReadOptions) -> list[TaskRange]:
    """Cut ranges into tasks: about minPartitions, at least one per range, none much above maxBytesPerTask."""
    weights = {one: catalog.weight(one) for one in ranges}
    by_bytes = all(weights.values())
    sizes = weights if by_bytes else {one: one.end - one.start for one in ranges}
    split = parts_of(list(sizes.values()), options.min_partitions)
    tasks = []
    for one, wanted in zip(ranges, split, strict=True):
        parts = max(wanted, math.ceil(sizes[one] / options.max_bytes_per_task)) if by_bytes else wanted
        tasks += catalog.tasks(one, parts, options.max_records_per_partition)
    return tasks


def parts_of(sizes: Sequence[int], min_partitions: int | None) -> list[int]:
    """Return the number of parts of each range, so that the sum is about `min_partitions`.

    A small range is not cut. Larger ranges share the other parts in proportion to their sizes. (Spark:
    KafkaOffsetRangeCalculator.)
    """
    whole = [1] * len(sizes)
    if min_partitions is None or min_partitions <= len(sizes):
        return whole

    def share(size: int, total: int, parts: int) -> int:
        return max((2 * size * parts + total) // (2 * total), 1)

    total = sum(sizes)
    large = [share(size, total, min_partitions) > 1 for size in sizes]
    rest = sum(size for size, is_large in zip(sizes, large, strict=True) if is_large)
    left = max(min_partitions - large.count(False), 1)
    return [share(size, rest, left) if is_large else 1 for size, is_large in zip(sizes, large, strict=True)]


def by_offsets(start: int, end: int, parts: int, max_records: int | None) -> list[tuple[int, int]]:
    """Cut [start, end) into at least `parts` equal ranges, each of at most `max_records` offsets."""
    if max_records is not None:
        parts = max(parts, math.ceil((end - start) / max_records))
    parts = min(parts, end - start)
    cuts = [start + (end - start) * number // parts for number in range(parts + 1)]
    return list(pairwise(cuts))
