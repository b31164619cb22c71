"""What a fetch may see, and how much: isolation, epochs and budgets; the turn and Python agree."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpbroker.ipc.slots import SlotKind
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.messages import (
    FetchRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
)
from mpbroker.protocol.numbers import READ_COMMITTED
from tests.handlers.hot_path.test_fetch_paths import agree
from tests.support.forms import rounds
from tests.support.handler_logs import (
    FETCH,
    LIST_OFFSETS,
    T0,
    TOPIC,
    Logged,
    ask,
    fetch,
    park,
    partition_of,
    replies,
    two_segments,
)
from tests.support.handler_rig import request_frame

TXN_ENTRY = struct.Struct(">hqqqq")


@pytest.fixture(name="log")
def _log(tmp_path: Path) -> Iterator[Logged]:
    with two_segments(tmp_path) as log:
        yield log


# ---- isolation


def abort(log: Logged, base: int, *entries: tuple[int, int, int, int]) -> None:
    """Write the transaction index of a segment: producer, first and last offset, last stable offset."""
    packed = b"".join(TXN_ENTRY.pack(0, *entry) for entry in entries)
    (log.directory / f"{base:020d}.txnindex").write_bytes(packed)
    log.publish(aborted_end=entries[-1][2] + 1)


def aborted(log: Logged, offset: int, version: int = 12, **fields: Any) -> list[tuple[int, int]] | None:
    found = partition_of(ask(log, fetch(offset, isolation_level=READ_COMMITTED, **fields), version))
    assert found.error_code == 0
    told = found.aborted_transactions
    return None if told is None else [(each.producer_id, each.first_offset) for each in told]


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_aborted_transactions_are_told(log: Logged, version: int) -> None:
    abort(log, 0, (7, 3, 20, 21), (8, 15, 40, 41))
    # Begins in the first segment and ends in the second.
    abort(log, 50, (9, 30, 70, 71))
    assert aborted(log, 0, version) == [(7, 3), (8, 15), (9, 30)]
    assert aborted(log, 21, version) == [(8, 15), (9, 30)]
    assert aborted(log, 50, version) == [(9, 30)]
    assert aborted(log, 71, version) == []
    uncommitted = partition_of(ask(log, fetch(0), version))
    assert uncommitted.aborted_transactions is None


def test_no_more_than_the_slice_needs(log: Logged) -> None:
    """Check that the offset index limits the slice: it has an entry for the fourth batch."""
    third = sum(map(len, log.batches[:3]))
    (log.directory / f"{0:020d}.index").write_bytes(struct.pack(">ii", 39, third))
    abort(log, 0, (7, 3, 20, 21), (8, 41, 45, 30))
    abort(log, 50, (9, 30, 70, 71))
    log.rig.handler.broker.readers.forget_all()
    assert aborted(log, 0, max_bytes=1) == [(7, 3), (9, 30)]
    assert aborted(log, 0) == [(7, 3), (8, 41), (9, 30)]


def test_the_turn_leaves_aborted_transactions_to_python(log: Logged) -> None:
    abort(log, 0, (7, 3, 20, 21))
    both = {level: fetch(10, isolation_level=level) for level in (0, READ_COMMITTED)}
    for request in both.values():
        agree(log, 18, request)
    assert agree(log, 18, both[0])
    assert not agree(log, 18, both[READ_COMMITTED])
    # Behind the last marker there can be none.
    behind = fetch(21, isolation_level=READ_COMMITTED)
    agree(log, 18, behind)
    assert agree(log, 18, behind)


def test_a_transaction_that_is_aborted_while_it_is_looked_at(log: Logged) -> None:
    """Check that markers that come later are seen, whatever reader and turn had cached before."""
    request = fetch(0, isolation_level=READ_COMMITTED)
    assert agree(log, 18, request)
    assert aborted(log, 0) == []
    abort(log, 0, (7, 3, 20, 21))
    assert not agree(log, 18, request)
    assert aborted(log, 0) == [(7, 3)]
    abort(log, 0, (7, 3, 20, 21), (8, 30, 44, 45))
    assert aborted(log, 0) == [(7, 3), (8, 30)]


def test_nothing_is_read_with_a_corrupt_transaction_index(log: Logged) -> None:
    """Check that the fetch is refused: otherwise aborted records would look committed."""
    abort(log, 0, (7, 3, 20, 21))
    (log.directory / f"{0:020d}.txnindex").write_bytes(b"1234567")
    request = fetch(0, isolation_level=READ_COMMITTED)
    assert partition_of(ask(log, request)).error_code == 56
    assert partition_of(ask(log, fetch(0))).error_code == 0


def test_read_committed_ends_at_the_last_stable_offset(log: Logged) -> None:
    stable = len(log.batches[5])
    log.publish(last_stable_offset=60, last_stable_segment=50, last_stable_position=stable)
    for offset, level, records in ((50, 0, 50), (50, 1, 10), (60, 1, 0), (75, 1, 0), (100, 1, 0)):
        request = fetch(offset, isolation_level=level)
        found = partition_of(ask(log, request))
        assert (found.error_code, found.high_watermark, found.last_stable_offset) == (0, 100, 60)
        assert len(bytes(found.records)) == records * stable // 10
    wanted = ListOffsetsRequest.ListOffsetsPartition(0, timestamp=-1)
    for level, expected in ((0, 100), (1, 60)):
        request = ListOffsetsRequest(-1, level, [ListOffsetsRequest.ListOffsetsTopic("logged", [wanted])])
        assert log.rig.ask(LIST_OFFSETS, 7, request).topics[0].partitions[0].offset == expected


def test_a_parked_fetch_waits_for_what_is_stable(log: Logged) -> None:
    log.publish(last_stable_offset=100, last_stable_segment=50, last_stable_position=log.position)
    park(log, fetch(100, wait_ms=60_000, isolation_level=READ_COMMITTED))
    log.append()
    log.rig.turn()
    assert replies(log) == []
    log.publish(last_stable_offset=110, last_stable_position=log.position)
    log.rig.turn()
    assert len(replies(log)) == 1


# ---- epochs


def epochs(log: Logged, *entries: tuple[int, int]) -> None:
    lines = ["0", str(len(entries)), *(f"{epoch} {start}" for epoch, start in entries)]
    (log.directory / "leader-epoch-checkpoint").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("offset", "last_fetched", "diverging"),
    [
        (40, 2, None),
        (41, 2, (2, 40)),
        (40, 4, None),
        (60, 4, (4, 50)),
        # Nothing was written in epoch 3.
        (45, 3, (2, 40)),
        (100, 5, None),
        (101, 5, (5, 100)),
        (10, 0, (0, 0)),
        (10, -1, None),
    ],
)
def test_where_logs_part(
    log: Logged, offset: int, last_fetched: int, diverging: tuple[int, int] | None
) -> None:
    epochs(log, (2, 0), (4, 40), (5, 50))
    log.publish(leader_epoch=5)
    request = fetch(offset, last_fetched_epoch=last_fetched, wait_ms=60_000, min_bytes=0)
    answer = partition_of(ask(log, request, 12))
    assert answer.error_code == 0
    found = answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset
    assert found == (diverging or (-1, -1))
    assert (answer.high_watermark, answer.log_start_offset) == (100, 0)
    if diverging is not None:
        assert bytes(answer.records) == b""
    agree(log, 18, request)


def test_an_epoch_that_the_log_never_had(log: Logged) -> None:
    epochs(log, (2, 0))
    log.publish(leader_epoch=2)
    assert partition_of(ask(log, fetch(10, last_fetched_epoch=3))).error_code == 1
    (log.directory / "leader-epoch-checkpoint").write_text("rubbish")
    assert partition_of(ask(log, fetch(10, last_fetched_epoch=1))).error_code == 56


@pytest.mark.parametrize("version", [9, 12, 15, 16, 18])
def test_who_knows_an_old_leader_hears_of_the_new_one(log: Logged, version: int) -> None:
    log.publish(leader_epoch=3)
    response = ask(log, fetch(0, current_leader_epoch=2), version)
    answer = partition_of(response)
    node = log.rig.metadata.node_id
    assert answer.error_code == 74
    leader = (answer.current_leader.leader_id, answer.current_leader.leader_epoch)
    told = version >= 16
    assert leader == ((node, 3) if told else (-1, -1))
    assert [each.node_id for each in response.node_endpoints] == ([node] if told else [])
    # Whose knowledge is newer than ours learns nothing from us.
    response = ask(log, fetch(0, current_leader_epoch=4), version)
    assert partition_of(response).error_code == 75
    assert response.node_endpoints == []


def test_metadata_tells_the_epoch_that_fetch_checks(log: Logged) -> None:
    """Check it with a directory that Kafka wrote: with another epoch, clients would be refused for ever."""
    log.publish(leader_epoch=5)
    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=TOPIC.name)])
    (topic,) = log.rig.ask(ApiKey.METADATA, 12, asked).topics
    assert topic.partitions[0].leader_epoch == 5
    answer = partition_of(ask(log, fetch(0, current_leader_epoch=topic.partitions[0].leader_epoch)))
    assert answer.error_code == 0


# ---- budgets


def two(first: int, second: int, *, max_bytes: int, each: int) -> FetchRequest:
    request = fetch(first, max_bytes=max_bytes, each=each)
    request.topics[0].partitions.append(
        FetchRequest.FetchPartition(0, fetch_offset=second, partition_max_bytes=each)
    )
    return request


def lengths(response: Any) -> list[int]:
    return [len(bytes(found.records or b"")) for found in response.responses[0].partitions]


def test_one_batch_goes_out_whatever_the_limits(log: Logged) -> None:
    one = len(log.batches[0])
    # Once, for the first partition that has anything.
    assert lengths(ask(log, two(0, 10, max_bytes=1, each=1))) == [one, 0]
    assert lengths(ask(log, two(100, 10, max_bytes=1, each=1))) == [0, one]
    assert lengths(ask(log, two(0, 10, max_bytes=1 << 20, each=1))) == [one, 0]
    assert lengths(ask(log, two(0, 10, max_bytes=2 * one, each=one))) == [one, one]
    assert lengths(ask(log, two(0, 10, max_bytes=2 * one - 1, each=one))) == [one, 0]
    # The rest of the budget may cut a batch behind a whole one.
    assert lengths(ask(log, two(0, 10, max_bytes=3 * one - 1, each=2 * one))) == [2 * one, 0]
    assert lengths(ask(log, two(0, 10, max_bytes=4 * one - 1, each=2 * one))) == [2 * one, 2 * one - 1]


def test_an_offset_inside_a_batch_is_paid_for_with_the_whole_batch(log: Logged) -> None:
    one = len(log.batches[0])
    assert lengths(ask(log, two(5, 19, max_bytes=2 * one, each=one))) == [one, one]
    assert lengths(ask(log, two(5, 19, max_bytes=one + 1, each=one))) == [one, 0]


def test_min_bytes_is_never_more_than_max_bytes(log: Logged) -> None:
    """Check that a client whose max_bytes is below its min_bytes is answered."""
    one = len(log.batches[0])
    request = fetch(90, min_bytes=1 << 20, max_bytes=one, wait_ms=60_000)
    assert lengths(ask(log, request)) == [one]


def test_min_bytes_counts_all_partitions(log: Logged) -> None:
    one = len(log.batches[0])
    enough = two(90, 90, max_bytes=1 << 20, each=1 << 20)
    enough.min_bytes, enough.max_wait_ms = 2 * one, 60_000
    assert lengths(ask(log, enough)) == [one, one]
    enough.min_bytes += 1
    park(log, enough)
    log.append()
    log.rig.turn()
    assert len(replies(log)) == 1


@settings(
    max_examples=rounds(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    first=st.integers(0, 100),
    second=st.integers(0, 100),
    max_bytes=st.integers(0, 2000),
    each=st.integers(0, 2000),
)
def test_the_limits_hold(log: Logged, first: int, second: int, max_bytes: int, each: int) -> None:
    """Check the limits: only the first batch may exceed them, and it is whole and has the offset."""
    response = ask(log, two(first, second, max_bytes=max_bytes, each=each))
    sizes = lengths(response)
    one = len(log.batches[first // 10]) if first < 100 else len(log.batches[min(second // 10, 9)])
    assert sum(sizes) <= max(max_bytes, one)
    for offset, size, answer in zip((first, second), sizes, response.responses[0].partitions, strict=True):
        assert size <= max(each, one)
        if size:
            batch = log.batches[offset // 10]
            assert bytes(answer.records)[: len(batch)] == batch
    assert any(sizes) == (first < 100 or second < 100)


def named_often(times: int) -> FetchRequest:
    request = fetch(0)
    partitions = request.topics[0].partitions
    partitions += [FetchRequest.FetchPartition(i % 3, fetch_offset=i % 50) for i in range(times)]
    return request


@pytest.mark.parametrize("version", [12, 13])
def test_a_partition_that_is_named_again_and_again_is_answered_once(log: Logged, version: int) -> None:
    """Check that the last entry counts, and that a short request does not cost the handler seconds."""
    answers = ask(log, named_often(1000), version).responses[0].partitions
    assert [one.partition_index for one in answers] == [0, 1, 2]
    assert [one.error_code for one in answers] == [0, 1, 3]
    offset = 999 % 50
    assert bytes(answers[0].records) == b"".join(log.batches[offset // 10 :])[: len(answers[0].records)]


def test_more_partitions_than_any_broker_has_close_the_connection(log: Logged) -> None:
    log.rig.send(FETCH, 12, named_often(100_000))
    assert [reply.kind for reply in log.rig.processor.replies()] == [SlotKind.CLOSE]


@pytest.mark.parametrize("key", [LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH])
def test_others_are_served_while_many_partitions_are_searched(
    log: Logged, monkeypatch: pytest.MonkeyPatch, key: int
) -> None:
    """Check that the search is done in pieces, since each partition may need the disk."""
    if key == LIST_OFFSETS:
        topic = ListOffsetsRequest.ListOffsetsTopic(
            "logged", [ListOffsetsRequest.ListOffsetsPartition(i, -1, T0 + 12) for i in (0, 1, 7)]
        )
        request: Any = ListOffsetsRequest(topics=[topic])
    else:
        partition = OffsetForLeaderEpochRequest.OffsetForLeaderPartition
        epochs = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
            "logged", [partition(i, -1, 0) for i in (0, 1, 7)]
        )
        request = OffsetForLeaderEpochRequest(topics=[epochs])
    frame = request_frame(key, 4, request)
    log.rig.processor.send(frame)
    log.rig.turn()
    expected = log.rig.answer(key, 4)
    monkeypatch.setattr("mpbroker.handlers.context.SEARCHES_PER_PIECE", 1)
    log.rig.processor.send(frame, connection=1)
    log.rig.turn()
    assert log.rig.serve_others() >= 2
    assert log.rig.answer(key, 4) == expected
