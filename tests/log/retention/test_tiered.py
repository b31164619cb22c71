"""Retention of tiered partitions: which files go, where the log starts, and what an outage keeps."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.ipc.table import PartitionFlag, version_of, word_of
from mpbroker.log.partition.partition_log import Segment
from mpbroker.log.retention.retention import Expired, Marks, expired, expired_locally
from mpbroker.protocol.errors import ErrorCode
from mpbroker.storage.checkpoints import read_epochs, read_offsets
from mpbroker.storage.names import LOG_STARTS, REMOTE_SEGMENTS
from mpbroker.storage.reader import OffsetOutOfRange
from mpbroker.storage.remote_segments import (
    RemoteSegment,
    RemoteSegments,
    read_remote_segments,
    write_remote_segments,
)
from tests.log.retention.test_deletion import (
    DAY_MS,
    PER_SEGMENT,
    SMALL,
    bases,
    delete_before,
    fill,
    look,
    names_in,
    offsets_from,
    start_and_end,
)
from tests.support.log_rig import MakeRig, ensure
from tests.support.log_writer import T0, make_batch, topic_config
from tests.support.stepped_log import Broker

NOW_MS = 1_000_000
OPTIONS = {"remote_log_storage_system_enable": True, "mpbroker_remote_url": "file:///b"}
TIERED = {"remote_storage_enable": "true", "file_delete_delay_ms": "0", **SMALL}


# ---- the rules ----


def local(first: int, *sizes_and_ages: tuple[int, int]) -> list[Segment]:
    """Segments of ten offsets each from the offset `first` on, by (size, age in ms); the last is active."""
    found = [
        Segment(first + 10 * i, first + 10 * i + 10, size, NOW_MS - age_ms)
        for i, (size, age_ms) in enumerate(sizes_and_ages)
    ]
    end = found[-1].end if found[-1].size else found[-1].base
    return [*found[:-1], found[-1]._replace(end=end, is_active=True)]


def stored(first: int, *sizes_and_ages: tuple[int, int]) -> RemoteSegments:
    return RemoteSegments(
        RemoteSegment(first + 10 * i, first + 10 * i + 10, size, NOW_MS - age_ms, bytes(16))
        for i, (size, age_ms) in enumerate(sizes_and_ages)
    )


def applied(
    segments: list[Segment], remote: RemoteSegments, log_start: int = 0, **settings: str
) -> tuple[int, int, bool]:
    """Return (log start, number of local segments that go, whether the active one is rolled)."""
    marks = Marks(log_start, 1 << 60, NOW_MS, remote)
    config = topic_config(**settings)
    found = expired_locally(segments, config, marks, expired(segments, config, marks), remote)
    assert [one.segment for one in found.going] == segments[: len(found.going)]
    assert all(one.reason for one in found.going)
    return found.log_start, len(found.going), found.rolls


TWO_AWAY = stored(0, (100, 900), (100, 700), (100, 500), (100, 300))
TWO_HERE = local(20, (100, 500), (100, 300), (100, 100))


@pytest.mark.parametrize(
    ("settings", "outcome"),
    [
        ({"retention_ms": "800"}, (10, 0, False)),
        ({"retention_ms": "600"}, (20, 0, False)),
        ({"retention_ms": "400"}, (30, 1, False)),
        ({"retention_ms": "50"}, (50, 3, False)),
        ({"retention_ms": "-1", "retention_bytes": "500"}, (0, 0, False)),
        ({"retention_ms": "-1", "retention_bytes": "400"}, (10, 0, False)),
        ({"retention_ms": "-1", "retention_bytes": "200"}, (30, 1, False)),
        ({"local_retention_ms": "400"}, (0, 1, False)),
        ({"local_retention_ms": "200"}, (0, 2, False)),
        ({"local_retention_ms": "99"}, (0, 2, True)),
        ({"local_retention_bytes": "200"}, (0, 1, False)),
        ({"local_retention_bytes": "0"}, (0, 2, True)),
        ({"retention_ms": "600", "local_retention_ms": "200"}, (20, 2, False)),
        ({"retention_ms": "400", "local_retention_ms": "200"}, (30, 2, False)),
        # As in Kafka, without a policy the local retention counts alone.
        ({"cleanup_policy": "", "retention_ms": "400"}, (0, 1, False)),
        ({"cleanup_policy": "", "retention_ms": "50", "local_retention_ms": "-1"}, (0, 0, False)),
    ],
)
def test_two_retentions(settings: dict[str, str], outcome: tuple[int, int, bool]) -> None:
    assert applied(TWO_HERE, TWO_AWAY, **settings) == outcome


def test_what_the_store_lacks_goes_by_the_whole_retention_alone() -> None:
    assert applied(TWO_HERE, stored(0), local_retention_ms="0") == (0, 0, True)
    assert applied(TWO_HERE, stored(20, (100, 500)), local_retention_ms="0")[1] == 1
    assert applied(local(0, (100, 500), (100, 300), (0, 0)), stored(0), retention_ms="400") == (10, 1, False)


def test_a_segment_of_another_history_is_not_this_one() -> None:
    """Offsets were given out twice: an old copy of the directory was served."""
    assert applied(TWO_HERE, stored(20, (100, 500), (99, 300)), local_retention_ms="0")[1] == 1
    assert applied(TWO_HERE, stored(20, (99, 500), (100, 300)), local_retention_ms="0")[1] == 0
    assert applied(TWO_HERE, stored(15, (100, 500), (100, 300)), local_retention_ms="0")[1] == 0


def test_segments_that_are_here_and_away_count_once() -> None:
    here = local(0, (100, 500), (100, 300), (100, 100))
    assert applied(here, stored(0, (100, 500), (100, 300)), retention_bytes="300")[0] == 0
    assert applied(here, stored(0, (100, 500), (100, 300)), retention_bytes="200")[0] == 10


def test_what_lies_below_the_log_start_does_not_count() -> None:
    assert applied(TWO_HERE, TWO_AWAY, log_start=10, retention_bytes="400") == (10, 0, False)
    assert applied(TWO_HERE, TWO_AWAY, log_start=35, retention_ms="-1") == (35, 1, False)


def test_a_log_start_that_the_store_has_passed_follows_it() -> None:
    """The checkpoint was not on disk, and the tier had removed the segments."""
    assert applied(TWO_HERE, RemoteSegments(TWO_AWAY[1:]), retention_ms="-1")[0] == 10
    assert applied(TWO_HERE, stored(0), retention_ms="-1")[0] == 0


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=6),
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=6),
    st.integers(0, 6),
    st.tuples(*[st.integers(-1, 30)] * 2, *[st.integers(-2, 30)] * 2),
)
def test_no_record_is_lost(
    away: list[tuple[int, int]],
    here: list[tuple[int, int]],
    uploaded: int,
    limits: tuple[int, int, int, int],
) -> None:
    """What is at or above the log start stays in the store or here, and there is no gap."""
    names = ("retention_ms", "retention_bytes", "local_retention_ms", "local_retention_bytes")
    segments = local(10 * len(away), *here)
    remote = stored(0, *away, *here[: min(uploaded, len(here) - 1)])
    settings = {name: str(limit) for name, limit in zip(names, limits, strict=True)}
    start, gone, _ = applied(segments, remote, **settings)
    left = [(one.base, one.end) for one in segments[gone:]]
    kept = sorted({(one.base, one.end) for one in remote if one.end > start} | set(left))
    assert not kept or kept[0][0] <= start
    assert all(one[1] == other[0] for one, other in itertools.pairwise(kept))


# ---- the log worker ----


@pytest.fixture
def tiered(rig: MakeRig) -> Broker:
    """Four segments of three records, the first two of them old."""
    b = Broker(rig(**OPTIONS), retention_ms="-1", local_retention_ms="1000", **TIERED)
    fill(b, 2 * PER_SEGMENT, T0 - DAY_MS)
    fill(b, PER_SEGMENT + 1)
    assert bases(b) == [0, 3, 6, 9]
    return b


def directory(b: Broker) -> Path:
    return b.rig.directory / "t-0"


def store(b: Broker, *ranges: tuple[int, int], age_ms: int = DAY_MS) -> None:
    """Play the tier: it has these offsets."""
    known = {one.base: one.size for one in read_remote_segments(directory(b))}
    known |= {int(path.stem): path.stat().st_size for path in directory(b).glob("*.log")}
    of_store = [RemoteSegment(*one, known[one[0]], T0 - age_ms, bytes(16)) for one in ranges]
    write_remote_segments(directory(b), of_store)
    words, (slot, generation, _) = b.rig.memory.words("remote"), b.targets[0]
    words.store(slot, word_of(generation, version_of(words.load(slot), generation) + 1))


def test_local_files_go_and_the_log_starts_where_it_did(
    tiered: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    store(tiered, (0, 3), (3, 6))
    with caplog.at_level(logging.INFO, "mpbroker"):
        look(tiered)
    assert bases(tiered) == [6, 9]
    assert start_and_end(tiered) == (0, 10)
    assert tiered.log().local_start == 6
    assert "its largest timestamp is older than local.retention.ms=1000" in caplog.text
    assert read_epochs(directory(tiered)) == [(0, 0)]
    assert read_offsets(tiered.rig.directory / LOG_STARTS).get(("t", 0), 0) == 0
    assert offsets_from(tiered.rig, tiered.targets[0][0], 6) == [6, 7, 8, 9]
    with pytest.raises(OffsetOutOfRange):
        offsets_from(tiered.rig, tiered.targets[0][0], 5)


def test_files_stay_while_the_store_has_not_got_them(tiered: Broker) -> None:
    look(tiered)
    assert bases(tiered) == [0, 3, 6, 9]
    store(tiered, (0, 3))
    look(tiered)
    assert bases(tiered) == [3, 6, 9]
    # The tier has found out that it is fenced.
    store(tiered, (0, 3), (3, 6))
    tiered.rig.memory.words("remote").store(tiered.targets[0][0], 0)
    look(tiered)
    assert bases(tiered) == [3, 6, 9]


def test_a_file_of_the_last_run_alone_deletes_nothing(tiered: Broker) -> None:
    """Whether the store still has that, only the tier of this start can say."""
    store(tiered, (0, 3), (3, 6))
    words, slot = tiered.rig.memory.words("remote"), tiered.targets[0][0]
    words.store(slot, word_of(tiered.targets[0][1] + 1, 9))
    look(tiered)
    assert bases(tiered) == [0, 3, 6, 9]


def test_a_damaged_file_deletes_nothing(tiered: Broker, caplog: pytest.LogCaptureFixture) -> None:
    store(tiered, (0, 3), (3, 6))
    whole = (directory(tiered) / REMOTE_SEGMENTS).read_bytes()
    (directory(tiered) / REMOTE_SEGMENTS).write_bytes(whole[:-1])
    look(tiered)
    assert bases(tiered) == [0, 3, 6, 9]
    assert "t-0: local retention waits until the tier has written it again" in caplog.text
    (directory(tiered) / REMOTE_SEGMENTS).write_bytes(whole)
    look(tiered)
    assert bases(tiered) == [6, 9]


def test_an_older_copy_gives_no_offset_out_again(tiered: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """A disk was replaced, and the tier writes the file back after the start."""
    store(tiered, (0, 3), (3, 6), (6, 9), (9, 11))
    look(tiered)
    assert (bases(tiered), tiered.log().remote) == ([0, 3, 6, 9], ())
    assert "t-0 ends at offset 10, and the object store has its offsets up to 10" in caplog.text
    slot = tiered.targets[0][0]
    assert tiered.rig.partition(slot).flags & PartitionFlag.PARTITION_OFFLINE
    assert delete_before(tiered, 4) == [(ErrorCode.KAFKA_STORAGE_ERROR, -1)]
    (refused,) = tiered.produce(bytes(make_batch()))
    assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert tiered.rig.partition(slot).log_end_offset == 10


def test_the_active_segment_is_rolled_so_that_the_store_can_have_it(rig: MakeRig) -> None:
    b = Broker(rig(**OPTIONS), retention_ms="-1", local_retention_ms="1000", **TIERED)
    fill(b, 2, T0 - DAY_MS)
    look(b)
    assert bases(b) == [0, 2]
    found = b.rig.partition(b.targets[0][0])
    assert (found.high_watermark, found.high_watermark_segment, found.high_watermark_position) == (2, 2, 0)
    look(b)
    assert bases(b) == [0, 2]
    store(b, (0, 2))
    look(b)
    assert (bases(b), start_and_end(b)) == ([2], (0, 2))
    fill(b, 1)
    assert start_and_end(b) == (0, 3)


def test_the_whole_retention_moves_the_log_start_over_remote_segments(tiered: Broker) -> None:
    store(tiered, (0, 3), (3, 6))
    look(tiered)
    alter(tiered, retention_ms="2000", local_retention_ms="1000")
    look(tiered)
    assert (bases(tiered), start_and_end(tiered)) == ([6, 9], (6, 10))
    assert read_offsets(tiered.rig.directory / LOG_STARTS) == {("t", 0): 6}


def test_the_whole_retention_counts_remote_bytes(tiered: Broker) -> None:
    store(tiered, (0, 3), (3, 6))
    look(tiered)
    here = sum(path.stat().st_size for path in directory(tiered).glob("*.log"))
    alter(tiered, retention_ms="-1", retention_bytes=str(here + 1000), local_retention_ms="1000")
    look(tiered)
    assert (bases(tiered), start_and_end(tiered)) == ([6, 9], (3, 10))


def test_records_are_deleted_in_the_store(tiered: Broker) -> None:
    store(tiered, (0, 3), (3, 6))
    look(tiered)
    before = names_in(tiered)
    assert delete_before(tiered, 4) == [(0, 4)]
    assert start_and_end(tiered) == (4, 10)
    assert names_in(tiered) == before
    assert read_offsets(tiered.rig.directory / LOG_STARTS) == {("t", 0): 4}
    assert tiered.log().epochs == [(0, 4)]
    assert delete_before(tiered, 9) == [(0, 9)]
    assert bases(tiered) == [9]


def alter(b: Broker, **configs: str) -> None:
    topic = ensure(1, **{**TIERED, **configs})
    version = b.log().state.config_version + 1
    b.process.manager.ensure(msgspec.structs.replace(topic, config_version=version))


def test_a_file_that_is_written_anew_is_read_before_it_counts(tiered: Broker) -> None:
    """Tiering was switched off and on: what the file had named is to be removed."""
    store(tiered, (0, 3), (3, 6))
    alter(tiered, local_retention_ms="-1", retention_ms="-1")
    look(tiered)
    measuring = tiered.process.deletion._measuring
    assert measuring.stored(tiered.log()).end == 6
    store(tiered)
    assert measuring.stored(tiered.log()) == ()


def test_switched_off_with_deletion_the_log_starts_here(tiered: Broker) -> None:
    store(tiered, (0, 3), (3, 6))
    look(tiered)
    alter(tiered, remote_storage_enable="false", remote_log_delete_on_disable="true", retention_ms="-1")
    look(tiered)
    assert (bases(tiered), start_and_end(tiered)) == ([6, 9], (6, 10))
    assert read_offsets(tiered.rig.directory / LOG_STARTS) == {("t", 0): 6}
    assert tiered.rig.partition(tiered.targets[0][0]).flags & PartitionFlag.PARTITION_REMOTE_DELETED


def test_switched_off_while_it_moves_the_log_starts_here_later(tiered: Broker) -> None:
    store(tiered, (0, 3), (3, 6))
    look(tiered)
    tiered.log().is_paused = True
    alter(tiered, remote_storage_enable="false", remote_log_delete_on_disable="true", retention_ms="-1")
    assert start_and_end(tiered) == (0, 10)
    tiered.log().is_paused = False
    look(tiered)
    assert start_and_end(tiered) == (6, 10)


def test_copies_that_stop_leave_what_is_there(tiered: Broker) -> None:
    store(tiered, (0, 3))
    look(tiered)
    alter(tiered, remote_log_copy_disable="true", retention_ms="-1")
    look(tiered, T0 + DAY_MS)
    assert (bases(tiered), start_and_end(tiered)) == ([3, 6, 9], (0, 10))


def test_segments_that_compaction_swaps_are_left_alone(tiered: Broker) -> None:
    store(tiered, (0, 3), (3, 6))
    tiered.log().is_swapping = True
    look(tiered)
    assert bases(tiered) == [0, 3, 6, 9]


def test_an_expired_result_without_changes_writes_nothing(tiered: Broker) -> None:
    tiered.process.deletion._delete([(tiered.log(), Expired(0, []))])
    assert not (tiered.rig.directory / LOG_STARTS).exists()
