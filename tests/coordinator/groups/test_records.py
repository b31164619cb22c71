"""The records of `__consumer_offsets`: Kafka's bytes, all versions, and nothing else."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.coordinator.groups.records import (
    Entry,
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    decode,
    encode,
)
from mpbroker.coordinator.runtime.log_records import UnreadableRecord

names = st.text(max_size=20)
ints = st.integers(-(2**31), 2**31 - 1)
longs = st.integers(-(2**63), 2**63 - 1)
members = st.builds(
    MemberValue,
    names,
    st.none() | names,
    names,
    names,
    st.integers(0, 2**31 - 1),
    ints,
    st.binary(max_size=30),
    st.binary(max_size=30),
)
topic_ids = st.binary(min_size=16, max_size=16)
offset_values = st.builds(OffsetValue, longs, ints, names, longs, st.just(-1), topic_ids) | st.builds(
    OffsetValue, longs, st.just(-1), names, longs, st.integers(0, 2**62), st.just(bytes(16))
)
group_values = st.builds(
    GroupValue,
    names,
    ints,
    st.none() | names,
    st.none() | names,
    longs,
    st.lists(members, max_size=3).map(tuple),
)
entries = st.tuples(st.builds(OffsetKey, names, names, ints), st.none() | offset_values) | st.tuples(
    st.builds(GroupKey, names), st.none() | group_values
)


@given(entries)
def test_what_is_written_is_read(entry: Entry) -> None:
    assert decode(*encode(entry)) == entry


def test_the_bytes_are_kafkas() -> None:
    """Compare with what Kafka's generated classes write: values of versions 4, 1 and 3."""
    key, value = encode((OffsetKey("g", "t", 2), OffsetValue(7, 1, "m", 5)))
    assert key == bytes.fromhex("0001 0001 67 0001 74 00000002")
    assert value == bytes.fromhex("0004 0000000000000007 00000001 02 6d 0000000000000005 00")
    _, value = encode((OffsetKey("g", "t", 2), OffsetValue(7, 1, "m" * 127, 5, topic_id=bytes(range(16)))))
    assert value is not None
    assert value == bytes.fromhex(
        f"0004 0000000000000007 00000001 8001 {'6d' * 127} 0000000000000005 01 00 10 {bytes(range(16)).hex()}"
    )
    _, value = encode((OffsetKey("g", "t", 2), OffsetValue(7, 1, "", 5, 6)))
    assert value == bytes.fromhex("0001 0000000000000007 0000 0000000000000005 0000000000000006")
    member = MemberValue("i", None, "c", "/h", 3, 2, b"s", b"a")
    key, value = encode((GroupKey("g"), GroupValue("consumer", 4, "p", "i", 9, (member,))))
    assert key == bytes.fromhex("0002 0001 67")
    assert value == bytes.fromhex(
        "0003 0008 636f6e73756d6572 00000004 0001 70 0001 69 0000000000000009 00000001"
        "0001 69 ffff 0001 63 0002 2f68 00000003 00000002 00000001 73 00000001 61"
    )


def test_older_and_newer_versions_are_read() -> None:
    key = encode((OffsetKey("g", "t", 2), None))[0]
    for value, expected in (
        ("0000 0000000000000007 0001 6d 0000000000000005", OffsetValue(7, -1, "m", 5)),
        ("0002 0000000000000007 0001 6d 0000000000000005", OffsetValue(7, -1, "m", 5)),
        ("0003 0000000000000007 00000001 0001 6d 0000000000000005", OffsetValue(7, 1, "m", 5)),
        # With a tagged field that is not known here.
        ("0004 0000000000000007 00000001 02 6d 0000000000000005 01 07 02 aabb", OffsetValue(7, 1, "m", 5)),
    ):
        assert decode(key, bytes.fromhex(value)) == (OffsetKey("g", "t", 2), expected)
    old = "0000 0001 74 00000004 0001 70 0001 69 00000001 0001 69 0001 63 0000 00000002 00000001 73 00000000"
    member = MemberValue("i", None, "c", "", 2, 2, b"s", b"")
    assert decode(b"\x00\x02\x00\x01g", bytes.fromhex(old)) == (
        GroupKey("g"),
        GroupValue("t", 4, "p", "i", -1, (member,)),
    )
    flexible = "0004 02 74 00000004 02 70 02 69 0000000000000009 02"
    flexible += "02 69 00 02 63 01 00000003 00000002 02 73 01 00 00"
    member = MemberValue("i", None, "c", "", 3, 2, b"s", b"")
    assert decode(b"\x00\x02\x00\x01g", bytes.fromhex(flexible)) == (
        GroupKey("g"),
        GroupValue("t", 4, "p", "i", 9, (member,)),
    )


def test_other_kinds_of_groups_are_stepped_over() -> None:
    assert decode(b"\x00\x0a\x00\x01g", b"\x00\x00") is None


@pytest.mark.parametrize("version", [b"\x00\x05", b"\xff\xff"])
def test_a_value_of_the_future_is_not_guessed_at(version: bytes) -> None:
    with pytest.raises(UnreadableRecord, match="no version"):
        decode(encode((GroupKey("g"), None))[0], version)


@given(st.binary(max_size=60), st.none() | st.binary(max_size=60))
def test_any_bytes_are_a_record_or_none(key: bytes, value: bytes | None) -> None:
    with contextlib.suppress(UnreadableRecord):
        decode(key, value)


@given(entries.filter(lambda entry: entry[1] is not None), st.data())
def test_a_record_that_is_cut_off_is_found(entry: Entry, data: st.DataObject) -> None:
    key, value = encode(entry)
    assert value is not None
    with pytest.raises(UnreadableRecord):
        decode(key, value[: data.draw(st.integers(0, len(value) - 1))])
