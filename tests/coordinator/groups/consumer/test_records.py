"""The records of consumer groups, byte for byte as the classes of Kafka 4.3 write them."""

from __future__ import annotations

from typing import Any

import pytest

from mpbroker.coordinator.groups.consumer.records import (
    ClassicMember,
    CurrentAssignment,
    CurrentKey,
    EpochKey,
    GroupEpoch,
    MemberKey,
    MemberMetadata,
    MemberState,
    PartitionMetadata,
    PartitionMetadataKey,
    PatternKey,
    ResolvedPattern,
    TargetEpoch,
    TargetKey,
    TargetMemberKey,
    encode,
)
from mpbroker.coordinator.groups.records import decode

T, U = b"\1" * 16, b"\2" * 16
# Key, value, and what Kafka's GroupCoordinatorRecordSerde writes for them.
RECORDS = {
    "the epoch of a group": (
        EpochKey("g"),
        GroupEpoch(7, -123456789012345),
        "0003000167",
        "000000000007010008ffff8fb779f22087",
    ),
    "an epoch without topics": (EpochKey("g"), GroupEpoch(7, 0), "0003000167", "00000000000700"),
    "the end of a group": (EpochKey("g"), None, "0003000167", None),
    "the end of the metadata of older versions": (PartitionMetadataKey("g"), None, "0004000167", None),
    "a member": (
        MemberKey("g", "m"),
        MemberMetadata("i", "r", "c", "/h", frozenset("tu"), "x.*", 60_000, "range"),
        "000500016700016d",
        "0000026902720263032f68030274027504782e2a0000ea600672616e676501000100",
    ),
    "a member that has said nothing": (
        MemberKey("g", "m"),
        MemberMetadata(),
        "000500016700016d",
        "0000000001010101ffffffff0001000100",
    ),
    "a member of the classic protocol": (
        MemberKey("g", "m"),
        MemberMetadata(
            client_id="c",
            client_host="/h",
            topics=frozenset("t"),
            rebalance_timeout_ms=5,
            classic=ClassicMember(9, (("p", b"\1\2"),)),
        ),
        "000500016700016d",
        "000000000263032f6802027401000000050001000d01000000090202700301020000",
    ),
    "the epoch of a target": (
        TargetKey("g"),
        TargetEpoch(7, 1_700_000_000_123),
        "0006000167",
        "0000000000070100080000018bcfe5687b",
    ),
    "the target of a member": (
        TargetMemberKey("g", "m"),
        {T: frozenset({3})},
        "000700016700016d",
        "0000020101010101010101010101010101010102000000030000",
    ),
    "the end of a target": (TargetMemberKey("g", "m"), None, "000700016700016d", None),
    "what a member has": (
        CurrentKey("g", "m"),
        CurrentAssignment(7, 6, MemberState.UNREVOKED_PARTITIONS, {T: {3: 5}}, {U: {0: 4}}),
        "000800016700016d",
        "0000000000070000000601020101010101010101010101010101010102000000030100050200000005"
        "0202020202020202020202020202020202020000000001000502000000" + "0400",
    ),
    "a member that has nothing": (
        CurrentKey("g", "m"),
        CurrentAssignment(2, 1, MemberState.STABLE),
        "000800016700016d",
        "0000000000020000000100010100",
    ),
    "what a pattern matches": (
        PatternKey("g", "x.*"),
        ResolvedPattern(frozenset({"x1"}), 9, 1_700_000_000_123),
        "00100001670003782e2a",
        "00000203783100000000000000090000018bcfe5687b00",
    ),
}


@pytest.mark.parametrize("what", RECORDS)
def test_records_are_as_kafka_writes_them(what: str) -> None:
    key, value, key_hex, value_hex = RECORDS[what]
    written = encode(key, value)
    assert written[0].hex() == key_hex
    assert (None if written[1] is None else written[1].hex()) == value_hex
    assert decode(*written) == (key, value)


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        pytest.param(
            "000800016700016d",
            "00000000000700000006090201010101010101010101010101010101030000000300000004000100",
            (CurrentKey("g", "m"), CurrentAssignment(7, 6, MemberState.UNKNOWN, {T: {3: 7, 4: 7}})),
            id="a state of a later version, partitions without epochs as before 4.3",
        ),
        pytest.param(
            "0004000167",
            "00000201010101010101010101010101010101027400000004010000",
            (PartitionMetadataKey("g"), PartitionMetadata()),
            id="metadata of before 4.1",
        ),
    ],
)
def test_records_of_other_versions_are_read(key: str, value: str, found: Any) -> None:
    assert decode(bytes.fromhex(key), bytes.fromhex(value)) == found
