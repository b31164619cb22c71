"""Which segments have had their time, and which leader epochs are left, by Kafka's rules; no files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import TopicConfig, resolve
from mpbroker.log.partition.partition_log import Segment
from mpbroker.log.retention.retention import Marks, doomed
from mpbroker.storage.leader_epochs import EpochEnd, end_of, epoch_of, trimmed

NOW_MS = 1_000_000


def config(**overrides: str) -> TopicConfig:
    return resolve(BrokerConfig(), {key.replace("_", "."): value for key, value in overrides.items()})


def segments(*sizes_and_ages: tuple[int, int]) -> list[Segment]:
    """(size, age in ms) of segments of ten offsets each; the last one is active."""
    found = [
        Segment(10 * i, 10 * i + 10, size, NOW_MS - age_ms) for i, (size, age_ms) in enumerate(sizes_and_ages)
    ]
    last = found[-1]
    end = last.end if last.size else last.base
    return [*found[:-1], last._replace(end=end, is_active=True)]


def gone(of: list[Segment], settings: TopicConfig, log_start: int = 0, high_watermark: int = 1 << 60) -> int:
    found = doomed(of, settings, Marks(log_start, high_watermark, NOW_MS))
    assert [one.segment for one in found] == of[: len(found)]
    assert all(one.reason for one in found)
    return len(found)


@pytest.mark.parametrize(
    ("ages_ms", "retention_ms", "expected"),
    [
        ((500, 300, 100), "200", 2),
        ((500, 300, 100), "300", 1),  # exactly as old as allowed stays
        ((500, 300, 100), "-1", 0),
        ((500, 300, 100), "0", 3),  # the active one as well
        ((500, -50, 100), "0", 1),  # a record of the future keeps what is behind it
        ((100, 500, 500), "200", 0),  # only a prefix goes
    ],
)
def test_by_age(ages_ms: tuple[int, ...], retention_ms: str, expected: int) -> None:
    of = segments(*((100, age_ms) for age_ms in ages_ms))
    assert gone(of, config(retention_ms=retention_ms)) == expected


def test_an_empty_active_segment_stays() -> None:
    assert gone(segments((100, 500), (0, 500)), config(retention_ms="0")) == 1
    assert gone(segments((0, 500)), config(retention_ms="0")) == 0


def test_nothing_beyond_the_high_watermark_goes() -> None:
    of, settings = segments((100, 500), (100, 500), (100, 500)), config(retention_ms="0")
    assert [gone(of, settings, high_watermark=mark) for mark in (9, 10, 19, 20, 29, 30)] == [0, 1, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("retention_bytes", "expected"),
    [("400", 0), ("301", 0), ("300", 1), ("250", 1), ("200", 2), ("0", 4), ("-1", 0), ("1000", 0)],
)
def test_by_size_what_stays_is_never_less_than_the_limit(retention_bytes: str, expected: int) -> None:
    of = segments((100, 0), (100, 0), (100, 0), (100, 0))
    assert gone(of, config(retention_bytes=retention_bytes)) == expected


def test_below_the_log_start_a_compacted_topic_loses_segments_too() -> None:
    of = segments((100, 500), (100, 500), (100, 500))
    compacted = config(cleanup_policy="compact", retention_ms="0", retention_bytes="0")
    assert [gone(of, compacted, log_start=start) for start in (0, 9, 10, 25, 30)] == [0, 0, 1, 2, 2]
    assert gone(of, config(cleanup_policy="compact,delete", retention_ms="0")) == 3
    assert gone(of, config(cleanup_policy="delete"), log_start=30) == 2


def kafkas_way(of: list[Segment], settings: TopicConfig, marks: Marks) -> int:
    """How many go, told as Kafka's source does: three passes, each over what the last one left."""

    def deletable(left: list[Segment], predicate) -> int:
        count = 0
        while count < len(left):
            following = left[count + 1] if count + 1 < len(left) else None
            upper = following.base if following else of[-1].end
            last_and_empty = following is None and left[count].size == 0
            if not (marks.high_watermark >= upper and predicate(left[count], following)) or last_and_empty:
                break
            count += 1
        return count

    left = list(of)
    left = left[deletable(left, lambda _, following: following and following.base <= marks.log_start) :]
    if "delete" in settings.cleanup_policy:
        excess = sum(segment.size for segment in left) - settings.retention_bytes

        def too_large(segment: Segment, _: Segment | None) -> bool:
            nonlocal excess
            if excess - segment.size >= 0:
                excess -= segment.size
                return True
            return False

        if settings.retention_bytes >= 0 and excess >= 0:
            left = left[deletable(left, too_large) :]
        if settings.retention_ms >= 0:
            old = settings.retention_ms
            left = left[deletable(left, lambda segment, _: marks.now_ms - segment.largest_ms > old) :]
    return len(of) - len(left)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(-50, 300)), min_size=1, max_size=6),
    st.booleans(),
    st.sampled_from(["delete", "compact", "compact,delete"]),
    st.integers(-1, 250),
    st.integers(-1, 250),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_as_kafka_does(
    sizes_and_ages: list[tuple[int, int]],
    is_empty: bool,
    policy: str,
    retention_ms: int,
    retention_bytes: int,
    log_start: int,
    high_watermark: int,
) -> None:
    if is_empty:
        sizes_and_ages[-1] = (0, sizes_and_ages[-1][1])
    of = segments(*sizes_and_ages)
    settings = config(
        cleanup_policy=policy, retention_ms=str(retention_ms), retention_bytes=str(retention_bytes)
    )
    marks = Marks(log_start, high_watermark, NOW_MS)
    assert gone(of, settings, log_start, high_watermark) == kafkas_way(of, settings, marks)


EPOCHS = [(0, 0), (2, 100), (5, 250)]


@pytest.mark.parametrize(
    ("epochs", "log_start", "log_end", "expected"),
    [
        (EPOCHS, 0, 300, EPOCHS),
        (EPOCHS, 99, 300, [(0, 99), (2, 100), (5, 250)]),
        (EPOCHS, 100, 300, [(2, 100), (5, 250)]),
        (EPOCHS, 260, 300, [(5, 260)]),
        (EPOCHS, 0, 250, EPOCHS),
        (EPOCHS, 0, 240, [(0, 0), (2, 100), (5, 240)]),
        (EPOCHS, 0, 0, [(5, 0)]),
        ([(0, 0)], 40, 40, [(0, 40)]),
        ([], 10, 40, [(0, 40)]),
    ],
)
def test_epochs_of_a_log_with_these_ends(
    epochs: list[tuple[int, int]], log_start: int, log_end: int, expected: list[tuple[int, int]]
) -> None:
    assert trimmed(epochs, log_start, log_end) == expected
    assert trimmed(expected, log_start, log_end) == expected


def test_whose_offset_it_is() -> None:
    assert [epoch_of(EPOCHS[1:], offset) for offset in (0, 99, 100, 249, 250, 900)] == [-1, -1, 2, 2, 5, 5]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (-1, (-1, -1)),
        (0, (0, 100)),
        (1, (0, 100)),
        (2, (2, 250)),
        (4, (2, 250)),
        (5, (5, 300)),
        (6, (-1, -1)),
    ],
)
def test_where_an_epoch_ends(wanted: int, expected: tuple[int, int]) -> None:
    assert end_of(EPOCHS, wanted, 300) == EpochEnd(*expected)


def test_an_epoch_before_all_that_are_known_ends_where_they_begin() -> None:
    assert end_of(EPOCHS[1:], 0, 300) == EpochEnd(0, 100)
    assert end_of([], 0, 300) == EpochEnd(-1, -1)
