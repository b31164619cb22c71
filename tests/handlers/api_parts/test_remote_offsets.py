"""ListOffsets of a partition whose sealed segments are in the object store alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ListOffsetsRequest
from mpbroker.protocol.numbers import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from tests.support.handler_logs import LIST_OFFSETS
from tests.support.stored_segments import TieredLog, tiered_log
from tests.support.tier_end import TieredHandler, tiered_handler

pytestmark = pytest.mark.usefixtures("small_windows")


def listed(tier: TieredHandler, timestamp_ms: int) -> tuple[int, int]:
    """Return (timestamp, offset) of one partition's answer."""
    wanted = ListOffsetsRequest.ListOffsetsPartition(0, timestamp=timestamp_ms)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic("logged", [wanted])]
    )
    (answer,) = tier.request(LIST_OFFSETS, 11, request).topics[0].partitions
    assert answer.error_code == 0
    return answer.timestamp, answer.offset


def test_the_offsets_with_names(tier: TieredHandler) -> None:
    tier.publish(log_start_offset=4)
    names = EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD, LATEST
    assert [listed(tier, name)[1] for name in names] == [4, 120, 119, 120, 180]
    tier.upload(60)
    assert [listed(tier, name)[1] for name in names[2:4]] == [59, 60]
    tier.upload(0)
    assert [listed(tier, name)[1] for name in names[1:4]] == [4, -1, 4]


def test_offsets_by_time_are_those_of_the_whole_log(tmp_path: Path) -> None:
    times: list[int] = []

    def make(directory: Path) -> TieredLog:
        log = tiered_log(directory)
        times.extend(record.timestamp for record in log.records())
        return log

    with tiered_handler(tmp_path, make) as tier:
        for log_start in (0, 31):
            tier.publish(log_start_offset=log_start)
            for timestamp_ms in range(times[0] - 1, times[-1] + 1, 23):
                first = next(i for i, one in enumerate(times) if one >= timestamp_ms and i >= log_start)
                assert listed(tier, timestamp_ms) == (times[first], first)
        assert listed(tier, times[-1] + 1) == (-1, -1)


@pytest.mark.parametrize("place", [5, 50, 70, 119, 130, 179])
def test_the_largest_timestamp_is_found_wherever_it_is(tmp_path: Path, place: int) -> None:
    def make(directory: Path) -> TieredLog:
        log = TieredLog(directory)
        for number in range(180):
            if number in (60, 120):
                log.roll()
            log.append([(b"k", bytes(30))], timestamp=9999 if number == place else 1000 + number)
        return log

    with tiered_handler(tmp_path, make) as tier:
        assert listed(tier, MAX_TIMESTAMP) == (9999, place)
        tier.publish(log_start_offset=place + 1)
        left = range(place + 1, 180)
        assert listed(tier, MAX_TIMESTAMP) == ((1179, 179) if left else (-1, -1))


def test_the_largest_timestamp_of_a_segment_that_is_left_in_part(tmp_path: Path) -> None:
    """The largest one of the whole segment lies below the log start, the one of the rest is not its last."""

    def make(directory: Path) -> TieredLog:
        log = TieredLog(directory)
        for number in range(60):
            log.append([(b"k", bytes(30))], timestamp={5: 9999, 40: 5000}.get(number, 1000))
        log.roll()
        log.append([(b"k", b"")], timestamp=2000)
        return log

    with tiered_handler(tmp_path, make) as tier:
        tier.publish(log_start_offset=10)
        assert listed(tier, MAX_TIMESTAMP) == (5000, 40)


def test_a_search_for_a_time_fails_in_words_of_kafka(tier: TieredHandler) -> None:
    tier.store.fails = lambda _name: True
    wanted = ListOffsetsRequest.ListOffsetsPartition(0, timestamp=1000)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic("logged", [wanted])]
    )
    (answer,) = tier.request(LIST_OFFSETS, 11, request).topics[0].partitions
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_segments_of_which_compaction_has_left_no_record_are_passed_over(tmp_path: Path) -> None:
    def make(directory: Path) -> TieredLog:
        log = TieredLog(directory)
        for timestamp_ms in (1000, 2000):
            log.append([(b"k", bytes(50))], timestamp=timestamp_ms)
            log.end += 3
            for _ in range(2):
                log.roll()
                log.path(log.bases[-1]).touch()
                log.end += 5
            log.roll()
        log.append([(b"local", b"")], timestamp=1500)
        return log

    with tiered_handler(tmp_path, make) as tier:
        assert [one.size == 0 for one in tier.partition.segments] == [False, True, True] * 2
        # A start within a segment makes the search for the largest time look at each of its windows.
        for log_start in (0, 2):
            tier.publish(log_start_offset=log_start)
            assert listed(tier, 1001) == (2000, 14)
            assert listed(tier, 2001) == (-1, -1)
            assert listed(tier, MAX_TIMESTAMP) == (2000, 14)
