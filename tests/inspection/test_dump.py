"""What `mpbroker log dump` shows of records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpbroker.coordinator.groups.consumer.records import (
    CurrentAssignment,
    CurrentKey,
    MemberKey,
    MemberMetadata,
)
from mpbroker.coordinator.groups.records import Entry, OffsetKey, OffsetValue, encode
from mpbroker.inspection.dump import entries
from mpbroker.protocol.uuids import uuid_text
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord

TOPIC_ID = bytes(range(16))
ENTRIES: tuple[Entry, ...] = (
    (MemberKey("g", "m"), MemberMetadata(client_id="c", topics=frozenset({"t"}), assignor="range")),
    (CurrentKey("g", "m"), CurrentAssignment(7, 6, assigned={TOPIC_ID: {0: 7}})),
    (OffsetKey("g", "t", 0), OffsetValue(42, -1, "", 0)),
    (MemberKey("g", "m"), None),
)


def records(directory: Path, *added: tuple[bytes | None, bytes | None]) -> list[dict[str, Any]]:
    made = [NewRecord(value, key, 0) for key, value in (*map(encode, ENTRIES), *added)]
    directory.mkdir()
    segment = directory / f"{0:020}.log"
    segment.write_bytes(build_batch(made, base_offset=0))
    _, *found = entries(segment, with_records=True)
    return found


def test_records_of_groups_are_readable(tmp_path: Path) -> None:
    found = records(tmp_path / "__consumer_offsets-7", (b"\x00\x63other", b"x"), (b"\x00\x05", b""))
    member, current, offset, gone, unknown, broken = ((one["key"], one["value"]) for one in found)
    assert member[0] == {"type": "ConsumerGroupMemberMetadata", "group_id": "g", "member_id": "m"}
    assert (member[1]["subscribed_topic_names"], member[1]["server_assignor"]) == (["t"], "range")
    assert current[0]["type"] == "ConsumerGroupCurrentMemberAssignment"
    assert current[1]["member_epoch"] == 7
    (assigned,) = current[1]["assigned_partitions"]
    assert (assigned["topic_id"], assigned["partitions"]) == (uuid_text(TOPIC_ID), [0])
    assert offset[0] == {"type": "OffsetCommit", "group": "g", "topic": "t", "partition": 0}
    assert offset[1]["offset"] == 42
    assert gone == (member[0], None)
    assert unknown == ("\x00cother", "x")
    assert broken == ("\x00\x05", "")


def test_records_of_other_topics_are_text(tmp_path: Path) -> None:
    assert all(isinstance(one["key"], str) for one in records(tmp_path / "orders-0"))
