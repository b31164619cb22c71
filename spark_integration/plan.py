"""From options to the ranges of offsets that tasks read; what is asked of the outside, a catalog answers.

(Spark: KafkaOffsetReader, KafkaOffsetRangeCalculator.)
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from pyspark.sql.datasource import InputPartition

from mpbroker.log.reader import Bound
from mpbroker.protocol.numbers import EARLIEST, LATEST
from spark_integration.errors import LOSS_ADVICE, DataLoss, OptionError
from spark_integration.options import (
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
    must_name_all,
)

_LOG = logging.getLogger("mpbroker.spark")


@dataclass(frozen=True)
class LocalFiles:
    """Where the bytes of a range were when it was planned, and the log directories that it may move to."""

    directory: str
    topic_id: bytes | None
    bound: Bound
    log_dirs: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskRange(InputPartition):
    """What one task reads: offsets [start, end) of a partition. `files` is None if it has to be fetched."""

    topic: str
    partition: int
    start: int
    end: int
    files: LocalFiles | None = None

    # InputPartition's own repr prints a field that dataclasses do not set.
    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition} offsets [{self.start}, {self.end})"


@dataclass(frozen=True)
class OffsetRange:
    """Offsets [start, end) of a partition, before they are split among tasks."""

    topic_partition: TopicPartition
    start: int
    end: int


class Catalog(Protocol):
    """Topics and their offsets, from files or from brokers."""

    def topics(self) -> Iterable[str]:
        """All topics but internal ones, for a pattern."""

    def partitions(self, topic: str) -> Sequence[int]:
        """Raises SourceUnavailable if there is no such topic."""

    def bounds(self, wanted: Sequence[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
        """Log start and high watermark of each."""

    def offsets_for_times(self, wanted: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """The first offset at each time or later, None if there is none."""

    def weight(self, wanted: OffsetRange) -> int:
        """About how many bytes a range has; 0 if it cannot be known."""

    def tasks(self, wanted: OffsetRange, parts: int, max_records: int | None) -> list[TaskRange]:
        """The range in about so many pieces of about equal size."""

    def close(self) -> None:
        """Lets go of what it holds."""


def plan(catalog: Catalog, options: ReadOptions) -> list[TaskRange]:
    """Raises OptionError, DataLoss, SourceUnavailable."""
    wanted = selected(catalog, options)
    if not wanted:
        return []
    bounds = catalog.bounds(wanted)
    starts = _resolve(catalog, options.starting, "starting", wanted, bounds, options)
    ends = _resolve(catalog, options.ending, "ending", wanted, bounds, options)
    ranges = []
    for topic_partition in wanted:
        found = _within(topic_partition, starts[topic_partition], ends[topic_partition], bounds, options)
        if found.end > found.start:
            ranges.append(found)
    return _split(catalog, ranges, options)


def selected(catalog: Catalog, options: ReadOptions) -> list[TopicPartition]:
    """The partitions that the strategy means, in order."""
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
        topics = [topic for topic in catalog.topics() if strategy.pattern.fullmatch(topic)]
    return sorted((topic, number) for topic in topics for number in catalog.partitions(topic))


def _resolve(
    catalog: Catalog,
    limit: Limit,
    side: str,
    wanted: Sequence[TopicPartition],
    bounds: Mapping[TopicPartition, tuple[int, int]],
    options: ReadOptions,
) -> dict[TopicPartition, int]:
    if isinstance(limit, AtOffset):
        offsets: Mapping[TopicPartition, int] = dict.fromkeys(wanted, limit.offset)
    elif isinstance(limit, AtOffsets):
        offsets = _named(limit.offsets, f"{side}Offsets", wanted)
    else:
        offsets = _at_times(catalog, limit, side, wanted, options)
    edges = {EARLIEST: 0, LATEST: 1}
    return {one: bounds[one][edges[offset]] if offset in edges else offset for one, offset in offsets.items()}


def _named(
    given: Mapping[TopicPartition, int], option: str, wanted: Sequence[TopicPartition]
) -> Mapping[TopicPartition, int]:
    if set(given) != set(wanted):
        raise OptionError(must_name_all(option, set(given), set(wanted)))
    return given


def _at_times(
    catalog: Catalog,
    limit: AtTimestamp | AtTimestamps,
    side: str,
    wanted: Sequence[TopicPartition],
    options: ReadOptions,
) -> dict[TopicPartition, int]:
    """No later record: latest for an end; for a start an error, or latest if the user chose that."""
    if isinstance(limit, AtTimestamp):
        times: Mapping[TopicPartition, int] = dict.fromkeys(wanted, limit.timestamp_ms)
    else:
        times = _named(limit.timestamps_ms, f"{side}OffsetsByTimestamp", wanted)
    resolved = {}
    for one, offset in catalog.offsets_for_times(times).items():
        if offset is None and side == "starting" and not options.latest_if_no_later_record:
            raise OptionError(
                f"No offset matched from request of topic-partition {one[0]}-{one[1]} and timestamp "
                f"{times[one]} (set startingOffsetsByTimestampStrategy to latest to start at the end there)"
            )
        resolved[one] = LATEST if offset is None else offset
    return resolved


def _within(
    topic_partition: TopicPartition,
    start: int,
    end: int,
    bounds: Mapping[TopicPartition, tuple[int, int]],
    options: ReadOptions,
) -> OffsetRange:
    """The range cut to what is there; that it had to be cut is data loss."""
    earliest, latest = bounds[topic_partition]
    name = f"{topic_partition[0]}-{topic_partition[1]}"
    if start < min(end, earliest):
        report_loss(
            options.fail_on_data_loss,
            f"Cannot read offsets {start} to {earliest - 1} of {name}: its log starts at {earliest}.",
        )
    if max(start, end) > latest:
        report_loss(
            options.fail_on_data_loss,
            f"Cannot read up to offset {max(start, end)} of {name}: its high watermark is {latest}.",
        )
    return OffsetRange(topic_partition, max(start, earliest), min(end, latest))


def report_loss(fail: bool, text: str) -> None:
    """Raises DataLoss, or says on the log that it goes on without."""
    if fail:
        raise DataLoss(f"{text} {LOSS_ADVICE}")
    _LOG.warning("%s Going on without them.", text)


def _split(catalog: Catalog, ranges: Sequence[OffsetRange], options: ReadOptions) -> list[TaskRange]:
    """At least minPartitions tasks, none much larger than maxBytesPerTask."""
    weights = {one: catalog.weight(one) for one in ranges}
    by_bytes = all(weights.values())
    sizes = weights if by_bytes else {one: one.end - one.start for one in ranges}
    total = sum(sizes.values())
    tasks = []
    for one in ranges:
        parts = math.ceil(sizes[one] / options.max_bytes_per_task) if by_bytes else 1
        if options.min_partitions is not None and options.min_partitions > len(ranges):
            parts = max(parts, math.ceil(options.min_partitions * sizes[one] / total))
        tasks += catalog.tasks(one, parts, options.max_records_per_partition)
    return tasks


def by_offsets(start: int, end: int, parts: int, max_records: int | None) -> list[tuple[int, int]]:
    """[start, end) in equal pieces, none with more than so many offsets."""
    if max_records is not None:
        parts = max(parts, math.ceil((end - start) / max_records))
    parts = min(parts, end - start)
    cuts = [start + (end - start) * number // parts for number in range(parts + 1)]
    return list(pairwise(cuts))
