"""Offsets that are committed in transactions: pending until the marker makes them count or drops them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from mpbroker.coordinator.groups.records import OffsetKey, OffsetValue, encode
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    DeleteGroupsRequest,
    ListGroupsRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from mpbroker.records.builder import build_batch, build_transaction_marker
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.markers import ABORT, COMMIT
from mpbroker.records.record import NewRecord
from tests.support.group_rig import CHECK_MS, DAY_MS, GroupRig, outcome

UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT


def groups_of(rig: GroupRig) -> list[str]:
    return [group.group_id for group in rig.now(ListGroupsRequest(), 5).groups]


def ended(rig: GroupRig, is_commit: bool, producer: tuple[int, int] = (7, 0), group: str = "g") -> ErrorCode:
    found = rig.end(is_commit, producer, group)
    rig.settle()
    (error,) = found
    return error


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_offset_counts_when_its_transaction_is_committed(rig: GroupRig, is_commit: bool) -> None:
    rig.commit(3)
    waiter = rig.commit_in_transaction(9)
    assert waiter not in rig.answers, "it is answered when it is durable"
    assert outcome(rig, waiter) is ErrorCode.NONE
    assert rig.checks[0][0] == ("id", (7, 0), rig.coordinator.partitions.partition_for("g"), True)
    assert rig.fetched() == {("t", 0): 3}
    assert rig.fetched(stable=True) == {("t", 0): UNSTABLE}
    assert rig.fetched(topics=None, stable=True) == {("t", 0): UNSTABLE}
    assert rig.fetched(topics=["u"], stable=True) == {("u", 0): -1}
    assert ended(rig, is_commit) is ErrorCode.NONE
    after = {("t", 0): 9 if is_commit else 3}
    assert rig.fetched() == rig.fetched(stable=True) == after
    assert rig.restarted().fetched(stable=True) == after


def test_what_is_written_is_a_batch_of_the_producer(rig: GroupRig) -> None:
    rig.commit(1)
    rig.commit_in_transaction(2, (7, 3))
    rig.commit_in_transaction(3, (7, 3), partition=1)
    rig.commit_in_transaction(4, (8, 0))
    rig.commit(5)
    rig.end(True, (7, 3))
    assert rig.append_round()
    assert not rig.append_round(), "all in one round"
    found = [
        (b.header.producer_id, b.header.producer_epoch, b.header.base_sequence, b.header.record_count)
        for b in iterate_batches(rig.log[rig.coordinator.partitions.partition_for("g")])
    ]
    assert found == [(-1, -1, -1, 1), (7, 3, -1, 2), (8, 0, -1, 1), (-1, -1, -1, 1), (7, 3, -1, 1)]
    kinds = [
        (b.is_transactional, b.is_control)
        for b in iterate_batches(rig.log[rig.coordinator.partitions.partition_for("g")])
    ]
    assert kinds == [(False, False), (True, False), (True, False), (False, False), (True, True)]


@pytest.mark.parametrize("order", list(itertools.permutations(["plain", "7", "8"])))
@pytest.mark.parametrize("ends", list(itertools.permutations([(7, True), (8, True)])))
def test_the_later_record_counts_whoever_ends_first(
    rig: GroupRig, order: tuple[str, ...], ends: tuple[tuple[int, bool], ...]
) -> None:
    for offset, how in enumerate(order):
        if how == "plain":
            rig.commit(offset)
        else:
            rig.commit_in_transaction(offset, (int(how), 0))
    rig.settle()
    for producer, is_commit in ends:
        ended(rig, is_commit, (producer, 0))
    assert rig.fetched(stable=True) == {("t", 0): 2}
    assert rig.restarted().fetched(stable=True) == {("t", 0): 2}


def test_an_aborted_one_gives_way_to_the_one_before(rig: GroupRig) -> None:
    rig.commit_in_transaction(1, (7, 0))
    rig.commit_in_transaction(2, (8, 0))
    rig.settle()
    ended(rig, False, (8, 0))
    assert rig.fetched(stable=True) == {("t", 0): UNSTABLE}
    ended(rig, True, (7, 0))
    assert rig.fetched(stable=True) == rig.restarted().fetched(stable=True) == {("t", 0): 1}


def test_a_marker_ends_what_its_partition_has_of_the_producer_and_nothing_else(rig: GroupRig) -> None:
    names = iter(f"g{number}" for number in itertools.count())
    partition_for = rig.coordinator.partitions.partition_for
    other = next(name for name in names if partition_for(name) != partition_for("g"))
    rig.commit_in_transaction(1)
    rig.commit_in_transaction(2, group=other)
    rig.commit_in_transaction(3, (8, 0), partition=1)
    rig.settle()
    ended(rig, True)
    assert (rig.committed(), rig.committed(other)) == (1, -1)
    assert rig.committed(partition=1) == -1
    # Sent again, as after a death of the transaction coordinator: there is nothing left to end.
    assert ended(rig, False) is ErrorCode.NONE
    assert rig.committed() == 1
    ended(rig, True, group=other)
    assert rig.committed(other) == 2


@pytest.mark.parametrize(("version", "adds"), [(0, False), (3, False), (4, False), (5, True)])
def test_old_clients_have_added_the_partition_themselves(rig: GroupRig, version: int, adds: bool) -> None:
    rig.commit_in_transaction(1, version=version)
    assert rig.checks[0][0][3] is adds


@pytest.mark.parametrize(
    "error",
    [ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.NOT_COORDINATOR],
)
def test_nothing_is_written_that_is_in_no_transaction(rig: GroupRig, error: ErrorCode) -> None:
    rig.verdict = error
    assert outcome(rig, rig.commit_in_transaction(1)) is error
    assert not any(rig.log.values())
    assert groups_of(rig) == []


def test_a_member_is_checked_if_the_request_names_one(rig: GroupRig) -> None:
    ids, generation = rig.stable()

    def commit(**member: Any) -> ErrorCode:
        return outcome(rig, rig.commit_in_transaction(1, **member))

    assert commit() is ErrorCode.NONE
    assert commit(generation_id=generation, member_id=ids[0]) is ErrorCode.NONE
    assert commit(generation_id=generation, member_id="who") is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(generation_id=generation - 1, member_id=ids[0]) is ErrorCode.ILLEGAL_GENERATION
    assert commit(member_id=ids[0]) is ErrorCode.ILLEGAL_GENERATION
    # During a rebalance, too: offsets are those of what was read before it.
    rig.new_member()
    assert commit(generation_id=generation, member_id=ids[0]) is ErrorCode.NONE
    assert commit(group="new", generation_id=0, member_id=ids[0]) is ErrorCode.ILLEGAL_GENERATION
    assert commit(group="") is ErrorCode.INVALID_GROUP_ID
    assert commit(group="new") is ErrorCode.NONE


def test_each_partition_is_judged_alone(rig: GroupRig) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert outcome(rig, rig.commit_in_transaction(1, topic="gone")) is unknown
    assert outcome(rig, rig.commit_in_transaction(1, partition=4)) is unknown
    long = rig.commit_in_transaction(1, metadata="x" * 4097)
    assert outcome(rig, long) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert rig.checks == [], "there is nothing to ask about"


def test_a_group_may_go_while_the_transaction_is_asked_about(rig: GroupRig) -> None:
    ids, generation = rig.stable(1)
    rig.verdict = None
    waiter = rig.commit_in_transaction(1, generation_id=generation, member_id=ids[0])
    rig.leave((ids[0], None))
    rig.checks[0][1](ErrorCode.NONE)
    assert outcome(rig, waiter) is ErrorCode.UNKNOWN_MEMBER_ID
    waiter = rig.commit_in_transaction(1)
    rig.coordinator.unload()
    rig.checks[1][1](ErrorCode.NONE)
    assert outcome(rig, waiter) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_a_fault_of_ours_is_told_to_the_producer(rig: GroupRig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("nobody expects this")

    monkeypatch.setattr(rig.queue, "append", fail)
    assert outcome(rig, rig.commit_in_transaction(1)) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_what_is_refused_is_refused_alone(rig: GroupRig) -> None:
    """Check that a fenced producer's offsets are refused between those of two that are not fenced."""
    waiters = [rig.commit(1), rig.commit_in_transaction(2), rig.commit(3, partition=1)]
    marker = rig.end(True)
    assert rig.append_round(ErrorCode.INVALID_PRODUCER_EPOCH, lambda place: place == 1)
    found = [outcome(rig, waiter) for waiter in waiters]
    assert found == [ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.NONE]
    assert marker == [ErrorCode.NONE]
    assert rig.fetched(stable=True) == {("t", 0): 1}
    assert rig.committed(partition=1) == 3


def test_a_marker_waits_for_its_partition(rig: GroupRig) -> None:
    rig.commit_in_transaction(1)
    rig.settle()
    marker = rig.end(True)
    rig.append_round(ErrorCode.KAFKA_STORAGE_ERROR)
    assert marker == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert rig.fetched(stable=True) == {("t", 0): UNSTABLE}
    rig.coordinator.unload()
    assert rig.end(True) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    rig.coordinator.partitions.open(len(rig.log))
    assert rig.end(True) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    for partition in rig.log:
        rig.load(partition)
    assert rig.fetched(stable=True) == {("t", 0): UNSTABLE}
    assert ended(rig, True) is ErrorCode.NONE
    assert rig.fetched(stable=True) == {("t", 0): 1}


def test_an_unreadable_partition_has_nothing_pending(rig: GroupRig) -> None:
    rig.commit_in_transaction(1)
    rig.settle()
    partition = rig.coordinator.partitions.partition_for("g")
    rig.coordinator.unload()
    rig.coordinator.partitions.open(len(rig.log))
    for number in rig.log:
        if number == partition:
            rig.coordinator.manager.fail(number)
        else:
            rig.load(number)
    assert rig.end(True) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert rig.coordinator.partitions.reopen(partition)
    rig.load(partition)
    ended(rig, True)
    assert rig.committed() == 1


def test_a_stable_fetch_waits_for_what_is_under_way(rig: GroupRig) -> None:
    """Check that the fetch waits: an answer at once could be wrong when it arrives."""
    rig.commit(1)
    rig.settle()
    rig.commit_in_transaction(2)
    asked = OffsetFetchRequest.OffsetFetchRequestGroup(
        "g", topics=[OffsetFetchRequest.OffsetFetchRequestTopics("t", partition_indexes=[0])]
    )
    waiter = rig.ask(OffsetFetchRequest(groups=[asked], require_stable=True), 9)
    assert waiter not in rig.answers
    rig.settle()
    answer: Any = rig.answers[waiter]
    assert answer.groups[0].topics[0].partitions[0].error_code == UNSTABLE


def test_deleting_offsets_deletes_pending_ones(rig: GroupRig) -> None:
    rig.commit_in_transaction(1)
    rig.settle()
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic(
        "t", [OffsetDeleteRequest.OffsetDeleteRequestPartition(0)]
    )
    assert rig.now(OffsetDeleteRequest("g", [topic]), 0).error_code == 0
    assert rig.fetched(stable=True) == {("t", 0): -1}
    # What the transaction commits after that counts.
    rig.commit_in_transaction(2, partition=1)
    ended(rig, True)
    for one in (rig, rig.restarted()):
        assert (one.committed(), one.committed(partition=1)) == (-1, 2)


def test_deleting_a_group_deletes_what_is_pending(rig: GroupRig) -> None:
    rig.commit_in_transaction(1)
    rig.settle()
    assert groups_of(rig) == ["g"]
    assert rig.now(DeleteGroupsRequest(["g"]), 2).results[0].error_code == 0
    assert groups_of(rig) == groups_of(rig.restarted()) == []
    ended(rig, True)
    for one in (rig, rig.restarted()):
        assert one.committed() == -1
        assert groups_of(one) == []


def test_a_topic_takes_what_is_pending_along(rig: GroupRig) -> None:
    rig.commit_in_transaction(1)
    rig.commit_in_transaction(2, topic="u")
    rig.settle()
    assert rig.coordinator.offsets.topics() == {"t", "u"}
    rig.coordinator.topics_deleted(["t"])
    ended(rig, True)
    for one in (rig, rig.restarted()):
        assert (one.committed(), one.committed(topic="u")) == (-1, 2)


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_open_transaction_keeps_offsets_and_group(is_commit: bool) -> None:
    rig = GroupRig(offsets_retention_minutes=24 * 60)
    rig.commit(1)
    rig.commit(1, partition=1)
    rig.commit_in_transaction(2)
    rig.commit_in_transaction(2, group="only pending")
    rig.settle()
    rig.later(DAY_MS + CHECK_MS)
    assert (rig.committed(), rig.committed(partition=1)) == (1, -1)
    assert set(groups_of(rig)) == {"g", "only pending"}
    assert set(groups_of(rig.restarted())) == {"g", "only pending"}
    ended(rig, is_commit)
    ended(rig, is_commit, group="only pending")
    rig.later(DAY_MS + CHECK_MS)
    assert groups_of(rig) == groups_of(rig.restarted()) == []


def test_a_log_of_kafka_with_aborted_and_open_transactions(rig: GroupRig) -> None:
    """Check it also with what Kafka's cleaner leaves: a batch without records, and a marker behind it."""
    partition = rig.coordinator.partitions.partition_for("g")
    offsets = itertools.count()

    def batch(producer: int, offset: int, index: int = 0) -> bytes:
        key, value = encode((OffsetKey("g", "t", index), OffsetValue(offset, -1, "", 1)))
        owned = {"producer_id": producer, "producer_epoch": 5, "transactional": True}
        record = [NewRecord(value, key, 1)]
        return bytes(build_batch(record, base_offset=next(offsets), **(owned if producer >= 0 else {})))

    def marker(producer: int, kind: int) -> bytes:
        return bytes(
            build_transaction_marker(
                kind,
                producer_id=producer,
                producer_epoch=5,
                coordinator_epoch=1,
                timestamp=1,
                base_offset=next(offsets),
            )
        )

    emptied = bytes(
        build_batch([], base_offset=next(offsets), producer_id=9, producer_epoch=5, transactional=True)
    )
    rig.log[partition] = b"".join(
        [
            emptied,
            batch(-1, 1),
            batch(7, 2),
            batch(8, 3),
            batch(7, 4, 1),
            marker(7, ABORT),
            marker(9, COMMIT),
            batch(8, 5, 2),
            batch(-1, 6, 3),
            batch(7, 7, 3),
            marker(8, COMMIT),
        ]
    )
    rig.reload()
    assert [rig.committed(partition=index) for index in range(4)] == [3, -1, 5, 6]
    assert rig.fetched(stable=True) == {("t", 0): 3}
    ended(rig, False, (7, 5))
    assert [rig.committed(partition=index) for index in range(4)] == [3, -1, 5, 6]
