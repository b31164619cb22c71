"""Which partition is cleaned, and how much of it (Kafka: LogCleanerManagerTest, LogCleanerTest)."""

from __future__ import annotations

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import TopicConfig, resolve
from mpbroker.log.compaction.cleanable import Dirty, Limits, Source, dirty_part, groups, is_due
from mpbroker.log.partition.partition_log import Segment

NOW = 1_000_000


def config(**overrides: str) -> TopicConfig:
    return resolve(BrokerConfig(), {key.replace("_", "."): value for key, value in overrides.items()})


def segments(*sizes: int, largest_ms: int = NOW) -> list[Segment]:
    """Return segments of ten offsets each; the last one is active."""
    found = [Segment(10 * i, 10 * i + 10, size, largest_ms) for i, size in enumerate(sizes)]
    return [*found[:-1], found[-1]._replace(is_active=True)]


def part(
    of: list[Segment],
    settings: TopicConfig,
    *,
    checkpoint: int | None = None,
    safe_end: int = 1000,
    start: int = 0,
) -> Dirty:
    limits = Limits(start, of[-1].end, safe_end, checkpoint, NOW)
    return dirty_part(of, [one.largest_ms for one in of], settings, limits)


def test_all_but_the_active_segment_is_dirty_at_first() -> None:
    dirty = part(segments(100, 100, 100), config())
    assert (dirty.first_dirty, dirty.end, dirty.bytes_clean, dirty.bytes_dirty) == (0, 20, 0, 200)
    assert is_due(dirty, config())


def test_nothing_is_due_in_a_log_of_one_segment() -> None:
    dirty = part(segments(100), config())
    assert (dirty.end, dirty.bytes_dirty) == (0, 0)
    assert not is_due(dirty, config())


def test_what_is_clean_stays_so_until_enough_is_dirty() -> None:
    of = segments(100, 100, 100, 50)
    dirty = part(of, config(), checkpoint=20)
    assert (dirty.first_dirty, dirty.ratio) == (20, pytest.approx(1 / 3))
    assert not is_due(dirty, config())
    assert is_due(dirty, config(min_cleanable_dirty_ratio="0.33"))
    exactly = part(segments(100, 100, 1), config(), checkpoint=10)
    assert (exactly.ratio, is_due(exactly, config())) == (0.5, False)


@pytest.mark.parametrize("checkpoint", [5, 41])
def test_a_checkpoint_outside_of_the_log_does_not_count(checkpoint: int) -> None:
    assert part(segments(1, 1, 1, 1), config(), checkpoint=checkpoint, start=10).first_dirty == 10


def test_a_segment_counts_once() -> None:
    """Check a dirty part that begins within a segment, and one that begins within the active segment."""
    of = segments(100, 100, 100, 50)
    dirty = part(of, config(), checkpoint=15)
    assert (dirty.bytes_clean, dirty.bytes_dirty, dirty.end) == (100, 200, 30)
    dirty = part(segments(100), config(min_cleanable_dirty_ratio="0.4"), start=5)
    assert (dirty.first_dirty, dirty.bytes_clean, dirty.bytes_dirty) == (5, 0, 0)
    dirty = part(of, config(), checkpoint=35)
    assert (dirty.bytes_clean, dirty.bytes_dirty) == (300, 0)


@pytest.mark.parametrize(
    ("settings", "safe_end"), [({}, 25), ({}, 10), ({"min_compaction_lag_ms": "100"}, 1000)]
)
def test_a_dirty_part_that_begins_behind_what_may_be_cleaned_waits(
    settings: dict[str, str], safe_end: int
) -> None:
    """Check a log start, from DeleteRecords, within a segment with an open transaction or young records."""
    dirty = part(segments(100, 100, 100, 50), config(**settings), start=25, safe_end=safe_end)
    assert (dirty.first_dirty, dirty.bytes_dirty) == (25, 0)
    assert not is_due(dirty, config(min_cleanable_dirty_ratio="0"))


@pytest.mark.parametrize(("safe_end", "end"), [(1000, 30), (30, 30), (29, 20), (10, 10), (9, 0)])
def test_what_is_not_durable_in_segments_is_not_cleaned(safe_end: int, end: int) -> None:
    assert part(segments(1, 1, 1, 1), config(), safe_end=safe_end).end == end


def test_young_records_wait() -> None:
    of = [one._replace(largest_ms=NOW - 100 + 20 * i) for i, one in enumerate(segments(1, 1, 1, 1))]
    assert part(of, config(min_compaction_lag_ms="70")).end == 20
    assert part(of, config(min_compaction_lag_ms="20")).end == 30
    assert part(of, config(min_compaction_lag_ms="1000")).end == 0


def test_old_records_wait_no_longer() -> None:
    of = segments(100, 1, 1, largest_ms=NOW - 500)
    settings = config(max_compaction_lag_ms="400")
    dirty = part(of, settings, checkpoint=10)
    assert (dirty.must, dirty.delay_ms) == (True, 100)
    assert is_due(dirty, settings)
    assert not is_due(part(of, config(max_compaction_lag_ms="501"), checkpoint=10), settings)
    clean = part(of, settings, checkpoint=20)
    assert (clean.must, is_due(clean, settings)) == (False, False)


def source(number: int, size: int, index: int = 0, span: int = 10) -> Source:
    return Source(span * number, span * (number + 1), size, index, index)


def test_neighbours_become_one_up_to_the_size_of_a_segment() -> None:
    of = [source(i, size) for i, size in enumerate([40, 30, 30, 1, 200, 50])]
    assert [[one.bytes for one in group] for group in groups(of, 100, 1000)] == [
        [40, 30, 30],
        [1],
        [200],
        [50],
    ]


def test_indexes_and_offsets_limit_groups_too() -> None:
    of = [source(i, 1, index=40) for i in range(4)]
    assert [len(group) for group in groups(of, 100, 100)] == [2, 2]
    far = [source(i, 1, span=1 << 30) for i in range(4)]
    assert [len(group) for group in groups(far, 100, 100)] == [2, 2]
