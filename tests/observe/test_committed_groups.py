"""Groups by the records of their topic, batch by batch."""

from __future__ import annotations

import pytest

from mpbroker.coordinator.groups.consumer.records import (
    CurrentAssignment,
    CurrentKey,
    EpochKey,
    GroupEpoch,
    MemberKey,
    MemberMetadata,
    PatternKey,
    ResolvedPattern,
    TargetEpoch,
    TargetKey,
    TargetMemberKey,
)
from mpbroker.coordinator.groups.records import (
    Entry,
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    encode,
)
from mpbroker.coordinator.runtime.log_records import UnreadableRecord
from mpbroker.observe.committed_groups import CommittedGroup, CommittedGroups
from mpbroker.protocol.table_progress import TableNote
from mpbroker.records.builder import build_batch
from mpbroker.records.iterate import Batch, iterate_batches
from mpbroker.records.record import NewRecord

MEMBER = MemberValue("m", None, "client", "/host", 1, 1, b"", b"")
TOPIC_ID = b"t" * 16
COMMIT, ABORT = b"\0\0\0\1", b"\0\0\0\0"


def offset(group: str, number: int | None) -> Entry:
    return OffsetKey(group, "t", 0), None if number is None else OffsetValue(number, -1, "", 0)


def members(group: str, count: int | None) -> Entry:
    value = None if count is None else GroupValue("consumer", 1, None, None, 0, (MEMBER,) * count)
    return GroupKey(group), value


def batch(*entries: Entry, producer_id: int = -1) -> Batch:
    records = [NewRecord(value, key, 0) for key, value in map(encode, entries)]
    (made,) = iterate_batches(
        build_batch(records, base_offset=0, producer_id=producer_id, transactional=producer_id >= 0)
    )
    return made


def marker(producer_id: int, key: bytes) -> Batch:
    record = NewRecord(b"\0\0\0\0\0\0", key, 0)
    data = build_batch([record], base_offset=0, producer_id=producer_id, transactional=True, control=True)
    (made,) = iterate_batches(data)
    return made


def test_a_group_is_there_while_it_has_offsets_or_members() -> None:
    seen = CommittedGroups()
    seen.take(0, batch(offset("g", 3), members("g", 2), offset("h", 1)))
    assert seen.groups == {"g": CommittedGroup({("t", 0): 3}, 2), "h": CommittedGroup({("t", 0): 1})}
    seen.take(0, batch(members("g", None), offset("h", None), offset("unknown", None)))
    assert seen.groups == {"g": CommittedGroup({("t", 0): 3})}
    seen.take(0, batch(offset("g", None)))
    assert seen.groups == {}


def test_assignments_are_those_of_consumers() -> None:
    seen = CommittedGroups()
    assigned = MEMBER._replace(assignment=b"partitions")
    for group, protocol_type in (("g", "consumer"), ("workers", "connect")):
        value = GroupValue(protocol_type, 1, None, None, 0, (assigned, MEMBER))
        seen.take(0, batch((GroupKey(group), value)))
    assert seen.groups == {"g": CommittedGroup({}, 2, (b"partitions",)), "workers": CommittedGroup({}, 2)}
    seen.take(0, batch(members("g", 0)))
    assert seen.groups["g"].assignments == ()


def test_a_group_of_the_consumer_protocol_is_what_its_records_say() -> None:
    seen = CommittedGroups()
    joined: list[Entry] = [
        (MemberKey("g", "a"), MemberMetadata(topics=frozenset({"t"}))),
        (MemberKey("g", "b"), MemberMetadata(pattern="u.*")),
        (PatternKey("g", "u.*"), ResolvedPattern(frozenset({"u", "uu"}), 1, 1)),
        (EpochKey("g"), GroupEpoch(2, 7)),
        (TargetKey("g"), TargetEpoch(2, 1)),
        (TargetMemberKey("g", "a"), {TOPIC_ID: frozenset({0})}),
        (CurrentKey("g", "a"), CurrentAssignment(2, 1, assigned={TOPIC_ID: {0: 2}})),
    ]
    seen.take(0, batch(members("g", 3), offset("g", 5)))
    assert (seen.groups["g"].type, seen.groups["g"].members) == ("classic", 3)
    seen.take(0, batch(members("g", None), *joined))
    group = seen.groups["g"]
    assert (group.type, group.members, group.offsets) == ("consumer", 2, {("t", 0): 5})
    assert set(group.subscribed_topics) == {"t", "u", "uu"}
    assert group.consumer is not None
    assert group.consumer.epoch == 2
    assert group.consumer.targets == {"a": {TOPIC_ID: frozenset({0})}}
    # It is a classic one again: its records are deleted before, or after.
    gone: list[Entry] = [(key, None) for key, _ in reversed(joined)]
    seen.take(0, batch(*gone[:4], members("g", 1), *gone[4:]))
    assert (group.type, group.members, group.consumer, set(group.subscribed_topics)) == (
        "classic",
        1,
        None,
        set(),
    )
    seen.take(0, batch(offset("g", None), members("g", None), *joined))
    seen.take(0, batch(*gone))
    assert seen.groups == {}
    seen.take(0, batch(*gone))
    assert seen.groups == {}, "of a group that is not known, tombstones say nothing"


def test_offsets_of_a_transaction_wait_for_the_marker_of_their_partition() -> None:
    seen = CommittedGroups()
    seen.take(0, batch(offset("g", 3), producer_id=7))
    seen.take(1, batch(offset("h", 4), producer_id=7))
    assert seen.groups == {}
    seen.take(1, marker(7, ABORT))
    seen.take(0, marker(8, COMMIT))
    assert seen.groups == {}
    seen.take(0, marker(7, COMMIT))
    assert seen.groups == {"g": CommittedGroup({("t", 0): 3})}
    seen.take(0, batch(offset("g", 9), producer_id=7))
    seen.forget()
    seen.take(0, marker(7, COMMIT))
    assert seen.groups == {}


def test_a_record_that_nobody_can_read() -> None:
    (broken,) = iterate_batches(build_batch([NewRecord(b"", b"\0\1\0", 0)], base_offset=0))
    with pytest.raises(UnreadableRecord):
        CommittedGroups().take(0, broken)


def test_the_note_of_a_table_is_that_of_its_last_commit() -> None:
    groups = CommittedGroups()
    for name in ("mpbroker.table.lake.orders", "readers"):
        for rows in (1, 2):
            value = OffsetValue(rows, -1, TableNote(rows=rows).text(), 0)
            groups.take(0, batch((OffsetKey(name, "t", 0), value)))
    assert groups.groups["mpbroker.table.lake.orders"].note == TableNote(rows=2)
    assert groups.groups["readers"].note is None
