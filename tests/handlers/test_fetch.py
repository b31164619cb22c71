"""Fetch and ListOffsets over real segment files; the test is the log process that publishes and rings."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.apis import k01_fetch
from mpbroker.handlers.broker import Broker
from mpbroker.handlers.requests.metadata import Topic
from mpbroker.ipc.slots import SlotFlag, SlotKind
from mpbroker.ipc.table import Partition, PartitionFlag
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.protocol.messages import (
    DescribeClusterRequest,
    FetchRequest,
    ListOffsetsRequest,
    MetadataRequest,
)
from mpbroker.records.compression import Codec
from mpbroker.records.record_search import RecordSearch
from mpbroker.storage.reader import PartitionReader
from tests.support.compacted_segments import PER_SEGMENT, Segments, end_of, twelve_segments
from tests.support.handler_logs import (
    FETCH,
    LIST_OFFSETS,
    T0,
    TOPIC,
    VERSIONS,
    Logged,
    answer,
    ask,
    fetch,
    park,
    partition_of,
    replies,
    whole,
)
from tests.support.handler_rig import PROCESSOR, delta, fence, request_frame, rig, topic_id
from tests.support.polling import PATIENCE_S, Patience, until

STORAGE_ERROR = 56


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_slices_of_the_segment(log: Logged, version: int) -> None:
    for _ in range(3):
        log.append()
    response = ask(log, fetch(10), version)
    found = partition_of(response)
    assert (found.error_code, found.high_watermark, found.last_stable_offset) == (0, 30, 30)
    assert bytes(found.records) == b"".join(log.batches[1:])
    assert (response.error_code, response.session_id) == (0, 0)
    assert response.responses[0].topic_id == (topic_id(1) if version >= 13 else bytes(16))


def test_blocks_come_back(log: Logged) -> None:
    log.append()
    before = log.rig.handler.arena.in_use_bytes
    ask(log, fetch(0))
    log.rig.turn()
    assert log.rig.handler.arena.in_use_bytes == before
    assert log.rig.handler.broker.responses.lent_blocks == 0


def test_only_what_is_visible(log: Logged) -> None:
    log.append()
    log.append(visible=False)
    log.publish(high_watermark=10, high_watermark_position=len(log.batches[0]))
    assert bytes(partition_of(ask(log, fetch(0))).records) == log.batches[0]
    assert bytes(partition_of(ask(log, fetch(15))).records) == b""
    log.publish(last_stable_offset=0, last_stable_position=0)
    found = partition_of(ask(log, fetch(0, isolation_level=1)))
    assert (bytes(found.records), found.aborted_transactions) == (b"", [])


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"offset": 11}, 1),
        ({"offset": -1}, 1),
        ({"offset": 0, "partition": 2}, 3),
        ({"offset": 0, "current_leader_epoch": 1}, 75),
        ({"offset": 0, "last_fetched_epoch": 3}, 1),
        ({"offset": 0, "replica_id": 2}, 6),
    ],
)
def test_errors(log: Logged, fields: dict[str, Any], error: int) -> None:
    log.append()
    found = partition_of(ask(log, fetch(wait_ms=60_000, **fields)))
    assert (found.error_code, found.high_watermark, bytes(found.records)) == (error, -1, b"")


def test_errors_of_the_partition(log: Logged) -> None:
    log.append()
    log.publish(leader_epoch=3)
    assert partition_of(ask(log, fetch(0, current_leader_epoch=2))).error_code == 74
    log.publish(log_start_offset=5)
    assert partition_of(ask(log, fetch(0))).error_code == 1
    log.publish(flags=PartitionFlag.PARTITION_OFFLINE)
    assert partition_of(ask(log, fetch(5))).error_code == 56
    log.publish(generation=6)
    assert partition_of(ask(log, fetch(5))).error_code == 6


def test_unknown_topics(log: Logged) -> None:
    request = fetch(0)
    request.topics[0].topic, request.topics[0].topic_id = "nowhere", topic_id(9)
    assert partition_of(ask(log, request, 12)).error_code == 3
    assert partition_of(ask(log, request, 13)).error_code == 100


# ---- waiting ----


def test_a_parked_fetch_is_answered_when_bytes_come(log: Logged) -> None:
    park(log, fetch(0, wait_ms=60_000))
    assert log.rig.memory.marks().waiting(0) == 1
    log.append()
    log.rig.turn()
    assert bytes(partition_of(answer(log, 12)).records) == log.batches[0]
    assert log.rig.memory.marks().waiting(0) == 0
    assert log.rig.handler.intake.open == {}


def test_min_bytes_counts(log: Logged) -> None:
    park(log, fetch(0, wait_ms=60_000, min_bytes=150))
    log.append()
    assert len(log.batches[0]) > 150
    park_again = fetch(10, wait_ms=60_000, min_bytes=10_000)
    log.rig.turn()
    answer(log, 12)
    park(log, park_again)
    log.append()
    log.rig.turn()
    assert replies(log) == []
    # A roll: what is left in the old segment is all that one read can bring.
    log.roll(log.end)
    log.append()
    log.rig.turn()
    assert bytes(partition_of(answer(log, 12)).records) == log.batches[1]


def test_a_parked_fetch_is_answered_empty_in_time(log: Logged) -> None:
    started = time.monotonic()
    park(log, fetch(0, wait_ms=30))
    found: list[Any] = []

    def work() -> None:
        log.rig.handler.run_once(log.rig.handler.sleep_ms())
        found.extend(replies(log))

    until(lambda: found, "the fetch is answered", work)
    assert time.monotonic() - started >= 0.02
    frame = whole(log.rig, found[0])
    assert bytes(partition_of(decode_response_frame(FETCH, 12, frame[4:])[1]).records) == b""


def test_a_closed_connection_cancels(log: Logged) -> None:
    park(log, fetch(0, wait_ms=60_000), connection=9)
    log.rig.processor.cancel(9)
    log.rig.turn()
    assert len(log.rig.handler.broker.fetches) == 0
    assert log.rig.handler.intake.open == {}
    # Nothing is sent, but the lease of the request ends.
    assert [(r.connection, r.kind) for r in replies(log)] == [(9, SlotKind.NOOP)]
    log.append()
    log.rig.turn()
    assert replies(log) == []


def test_a_deleted_topic_ends_the_wait(log: Logged) -> None:
    park(log, fetch(0, wait_ms=60_000))
    log.rig.bulletin.publish_delta(delta(removed=(TOPIC.topic_id,)))
    log.rig.turn()
    assert partition_of(answer(log, 12)).error_code == 3


def test_a_fenced_processor_is_forgotten(log: Logged) -> None:
    park(log, fetch(0, wait_ms=60_000))
    fence(log.rig, PROCESSOR, alive=False)
    log.append()
    log.rig.turn()
    assert replies(log) == []
    assert log.rig.handler.intake.open == {}


def test_stopping_answers_who_waits(log: Logged) -> None:
    park(log, fetch(0, wait_ms=60_000))
    log.rig.handler.finish()
    assert bytes(partition_of(answer(log, 12)).records) == b""


# ---- in pieces ----


@pytest.fixture(name="long")
def _long(log: Logged, monkeypatch: pytest.MonkeyPatch) -> Logged:
    """Have each fetch count as long, with one partition to a piece."""
    monkeypatch.setattr(k01_fetch, "LOOKUPS_PER_PIECE", 1)
    return log


def of_many(offset: int, wait_ms: int) -> FetchRequest:
    """Return a fetch of one partition that is there, and of some that are not."""
    request = fetch(offset, wait_ms=wait_ms)
    request.topics[0].partitions += [FetchRequest.FetchPartition(number) for number in range(10, 14)]
    return request


def park_long(long: Logged, wait_ms: int, connection: int = 7) -> None:
    """Send such a fetch, and turn until it is parked; its look is yet to come."""
    request = request_frame(FETCH, 12, of_many(0, wait_ms))
    long.rig.processor.send(request, connection=connection)
    found: list[Any] = []
    while not found:
        long.rig.turn()
        found = replies(long)
    assert [r.kind for r in found] == [SlotKind.PARKED]
    assert long.rig.handler.scheduler.has_work()


def many_of(long: Logged) -> tuple[bytes, list[int]]:
    first, *others = answer(long, 12).responses[0].partitions
    return bytes(first.records), [one.error_code for one in others]


def test_a_long_fetch_that_looks_again_and_again_holds_up_no_heavy_request(long: Logged) -> None:
    request = of_many(0, 60_000)
    request.min_bytes = 1 << 30
    long.rig.processor.send(request_frame(FETCH, 12, request))
    while not replies(long):
        long.rig.turn()
    long.rig.processor.send(
        request_frame(ApiKey.DESCRIBE_CLUSTER, 0, DescribeClusterRequest()),
        connection=8,
        flags=SlotFlag.HEAVY,
    )
    found: list[Any] = []
    for _ in range(100):
        # Somebody writes all the time, so the fetch always wants another look.
        long.append()
        long.rig.turn()
        found += replies(long)
        if found:
            break
    assert [(one.kind, one.connection) for one in found] == [(SlotKind.SEND, 8)]
    long.rig.handler.finish()
    assert not long.rig.handler.scheduler.has_work()


def test_a_long_fetch_is_answered_between_other_requests(long: Logged) -> None:
    long.append()
    long.rig.send(FETCH, 12, of_many(0, 60_000))
    pieces = 0
    while long.rig.handler.scheduler.has_work():
        long.rig.turn()
        pieces += 1
    assert pieces > 5
    parked, reply = replies(long)
    assert parked.kind == SlotKind.PARKED
    frame = whole(long.rig, reply)
    first, *others = decode_response_frame(FETCH, 12, frame[4:])[1].responses[0].partitions
    assert bytes(first.records) == long.batches[0]
    assert {one.error_code for one in others} == {3}
    assert len(long.rig.handler.broker.fetches) == 0
    assert long.rig.handler.intake.open == {}
    assert long.rig.memory.marks().waiting(0) == 0


def test_bytes_that_come_while_a_long_fetch_is_looked_at_are_found(long: Logged) -> None:
    park_long(long, 60_000)
    long.rig.turn()
    long.append()
    long.rig.work_off()
    assert many_of(long) == (long.batches[0], [3] * 4)


def test_a_long_fetch_that_waits_is_answered_when_bytes_come(long: Logged) -> None:
    park_long(long, 60_000)
    long.rig.work_off()
    assert replies(long) == []
    assert long.rig.memory.marks().waiting(0) == 1
    long.append()
    long.rig.work_off()
    assert many_of(long) == (long.batches[0], [3] * 4)
    assert long.rig.handler.intake.open == {}


def test_a_long_fetch_is_answered_empty_in_time(long: Logged) -> None:
    park_long(long, 30)
    patience = Patience(PATIENCE_S)
    while long.rig.handler.intake.open:
        long.rig.handler.run_once(long.rig.handler.sleep_ms())
        assert not patience.is_over()
    assert many_of(long) == (b"", [3] * 4)
    assert len(long.rig.handler.broker.fetches) == 0


def test_a_closed_connection_cancels_a_long_fetch(long: Logged) -> None:
    park_long(long, 60_000, connection=9)
    long.rig.turn()
    assert long.rig.handler.scheduler.has_work()
    long.rig.processor.cancel(9)
    long.rig.work_off()
    assert [(r.connection, r.kind) for r in replies(long)] == [(9, SlotKind.NOOP)]
    assert len(long.rig.handler.broker.fetches) == 0
    assert long.rig.handler.intake.open == {}


def test_a_fenced_processor_ends_a_long_fetch(long: Logged) -> None:
    park_long(long, 60_000)
    long.rig.turn()
    fence(long.rig, PROCESSOR, alive=False)
    assert not long.rig.handler.scheduler.has_work()
    long.append()
    long.rig.work_off()
    assert replies(long) == []
    assert long.rig.handler.intake.open == {}


# ---- ListOffsets ----


def offsets(log: Logged, timestamp: int, version: int = 7, isolation: int = 0, **fields: Any) -> Any:
    wanted = ListOffsetsRequest.ListOffsetsPartition(0, timestamp=timestamp, **fields)
    request = ListOffsetsRequest(-1, isolation, [ListOffsetsRequest.ListOffsetsTopic("logged", [wanted])])
    return log.rig.ask(LIST_OFFSETS, version, request).topics[0].partitions[0]


@pytest.mark.parametrize("version", range(1, 12))
def test_offsets_of_times(log: Logged, version: int) -> None:
    for _ in range(3):
        log.append()
    log.publish(log_start_offset=2)
    for timestamp, expected in (
        (-1, (-1, 30)),
        (-2, (-1, 2)),
        (T0 + 13, (T0 + 13, 13)),
        (0, (T0 + 2, 2)),
        (T0 + 99, (-1, -1)),
    ):
        found = offsets(log, timestamp, version)
        assert (found.error_code, found.timestamp, found.offset) == (0, *expected)
        if version >= 4:
            assert found.leader_epoch == (0 if found.offset >= 0 else -1)


@pytest.mark.parametrize(
    ("timestamp", "first", "expected"),
    [(-3, 7, (T0 + 29, 29)), (-4, 8, (-1, 0)), (-5, 9, (-1, -1)), (-6, 11, (-1, -1)), (-7, 99, None)],
)
def test_special_times_have_their_versions(
    log: Logged, timestamp: int, first: int, expected: tuple[int, int] | None
) -> None:
    for _ in range(3):
        log.append()
    for version in range(1, 12):
        found = offsets(log, timestamp, version)
        if version < first:
            assert found.error_code == 35
        else:
            assert (found.error_code, (found.timestamp, found.offset)) == (0, expected)


def test_times_by_isolation(log: Logged) -> None:
    """Check that read_committed clients get no offset beyond the last stable one."""
    for _ in range(3):
        log.append()
    log.publish(last_stable_offset=20, last_stable_position=sum(map(len, log.batches[:2])))
    for timestamp, isolation, expected in (
        (T0 + 15, 0, (T0 + 15, 15)),
        (T0 + 15, 1, (T0 + 15, 15)),
        (T0 + 25, 0, (T0 + 25, 25)),
        (T0 + 25, 1, (-1, -1)),
        (-3, 0, (T0 + 29, 29)),
        (-3, 1, (T0 + 19, 19)),
        (-2, 1, (-1, 0)),
        (-4, 1, (-1, 0)),
    ):
        found = offsets(log, timestamp, 11, isolation)
        assert (found.error_code, found.timestamp, found.offset) == (0, *expected)


@pytest.mark.parametrize("timestamp", [-3, T0 + 9])
def test_a_batch_is_searched_in_pieces_and_once_for_all_who_ask(
    log: Logged, monkeypatch: pytest.MonkeyPatch, timestamp: int
) -> None:
    """Check that others are served between two pieces, and that whoever asks later is answered at once."""
    begun, steps = [], []
    init, step = RecordSearch.__init__, RecordSearch.step
    monkeypatch.setattr(RecordSearch, "__init__", lambda *args: begun.append(init(*args)))
    monkeypatch.setattr(RecordSearch, "step", lambda search: (steps.append(search), step(search))[1])
    log.append(value=bytes(2 << 20), codec=Codec.ZSTD)
    wanted = ListOffsetsRequest.ListOffsetsPartition(0, timestamp=timestamp)
    request = ListOffsetsRequest(-1, 0, [ListOffsetsRequest.ListOffsetsTopic("logged", [wanted])])
    for connection in (1, 2, 3):
        log.rig.processor.send(request_frame(LIST_OFFSETS, 7, request), connection=connection)
    log.rig.turn()
    answered = []
    while log.rig.handler.scheduler.has_work():
        log.rig.processor.send(request_frame(ApiKey.METADATA, 5, MetadataRequest([])), connection=9)
        log.rig.handler.take_and_serve(0)
        log.rig.handler.work()
        answered += [reply.connection for reply in replies(log)]
    assert answered.count(9) > 10
    assert sorted(set(answered)) == [1, 2, 3, 9]
    assert len(begun) == 1
    assert len(steps) < 30
    before = len(steps)
    assert offsets(log, timestamp).offset == 9
    assert len(steps) == before + 1


def test_offsets_that_cannot_be_told(log: Logged) -> None:
    log.append()
    log.publish(leader_epoch=2)
    assert offsets(log, -1, current_leader_epoch=1).error_code == 74
    assert offsets(log, -1, current_leader_epoch=3).error_code == 75
    wanted = ListOffsetsRequest.ListOffsetsPartition
    twice = [
        ListOffsetsRequest.ListOffsetsTopic(
            "logged", [wanted(0, -1, -1), wanted(0, -1, -1), wanted(5, -1, -1)]
        )
    ]
    found = log.rig.ask(LIST_OFFSETS, 7, ListOffsetsRequest(-1, 0, twice)).topics[0].partitions
    assert [p.error_code for p in found] == [42, 42, 3]


# ---- compacted and deleted segments ----


def publish(log: Logged, segments: Segments, log_start: int = 0) -> None:
    end, base, position = end_of(segments)
    seen = {"high_watermark": end, "high_watermark_segment": base, "high_watermark_position": position}
    stable = {"last_stable_offset": end, "last_stable_segment": base, "last_stable_position": position}
    log.publish(log_end_offset=end, log_start_offset=log_start, **seen, **stable)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("is_compacted", [False, True], ids=["deleted", "merged"])
def test_a_consumer_at_the_first_offset_of_a_segment_whose_predecessor_is_gone(
    log: Logged, native: bool, is_compacted: bool
) -> None:
    log.rig.handler.turn.fetch_is_fast = native
    segments = twelve_segments(log.directory)
    publish(log, segments)
    start = 2 * PER_SEGMENT
    for offset in [*range(start), *range(start, 7 * PER_SEGMENT, PER_SEGMENT)]:
        assert bytes(partition_of(ask(log, fetch(offset, each=1))).records)[:8] == offset.to_bytes(8, "big")
    if is_compacted:
        segments.clean()
    else:
        for base in (0, PER_SEGMENT):
            segments.path(base).unlink()
    publish(log, segments, 0 if is_compacted else start)
    for _ in range(2):
        found = partition_of(ask(log, fetch(start, each=1)))
        assert (found.error_code, bytes(found.records)[:8]) == (0, (start + is_compacted).to_bytes(8, "big"))


def test_the_turn_does_not_send_from_a_file_that_was_left_behind_by_two_moves(log: Logged) -> None:
    """Check a partition that has moved to another log directory and back while nobody fetched from it."""
    log.append()
    for _ in range(2):
        assert bytes(partition_of(ask(log, fetch(0))).records) == log.batches[0]
    away = log.directory.rename(log.directory.with_name(f"logged-0.{'f' * 32}-delete"))
    shutil.copytree(away, log.directory)
    log.append()
    for _ in range(2):
        assert bytes(partition_of(ask(log, fetch(10))).records) == log.batches[1]


def test_a_move_that_ends_behind_the_look_at_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The old directory has another name when it is looked for. One that is missing for good is reported."""
    old, new = tmp_path / "old", tmp_path / "new"
    for directory in (old, new):
        directory.mkdir()
    with rig(BrokerConfig(log_dirs=(str(old), str(new)))) as made:
        made.publish(TOPIC)
        log = Logged(old, made)
        log.append()
        log.directory = log.directory.rename(new / log.directory.name)
        reader = Broker.reader

        def ends_before(broker: Broker, topic: Topic, now: Partition) -> PartitionReader:
            log.publish(log_dir=1)
            return reader(broker, topic, now)

        monkeypatch.setattr(Broker, "reader", ends_before)
        log.publish(log_dir=0)
        assert bytes(partition_of(ask(log, fetch(0))).records) == log.batches[0]
        log.publish(log_dir=0)
        assert offsets(log, T0).offset == 0
        assert "cannot be read" not in caplog.text
        shutil.rmtree(log.directory)
        made.handler.broker.readers.forget_all()
        made.handler.broker.fetch_positions.forget_all()
        assert partition_of(ask(log, fetch(0))).error_code == STORAGE_ERROR
        assert offsets(log, T0).error_code == STORAGE_ERROR
        assert caplog.text.count("cannot be read") == 2
