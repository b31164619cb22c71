"""The records of `__transaction_state`: Kafka's bytes, all versions, and nothing else.

The golden bytes are laid out by hand from TransactionLogKey.json and TransactionLogValue.json.
"""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.coordinator.runtime.log_records import UnreadableRecord
from mpbroker.coordinator.transactions.records import (
    BY_LABEL,
    BY_NUMBER,
    TV1,
    TV2,
    Entry,
    TransactionState,
    TransactionValue,
    decode,
    encode,
)

names = st.text(max_size=20)
ints = st.integers(-(2**31), 2**31 - 1)
longs = st.integers(-(2**63), 2**63 - 1)
shorts = st.integers(-(2**15), 2**15 - 1)
partitions = st.frozensets(st.tuples(names, ints), max_size=5)
WRITTEN = [s for s in TransactionState if s.number < TransactionState.DEAD.number]
open_values = st.builds(
    TransactionValue,
    longs,
    shorts,
    ints,
    st.sampled_from(WRITTEN[1:]),
    partitions,
    longs,
    longs,
    longs,
    longs,
    shorts,
)
empty_values = open_values.map(
    lambda value: value._replace(state=TransactionState.EMPTY, partitions=frozenset())
)
values = open_values | empty_values
entries = st.tuples(names, st.none() | values)

KEY = bytes.fromhex("0000 0005 74786e2d31")
ONGOING = TransactionValue(
    1000, 3, 60_000, TransactionState.ONGOING, frozenset({("t", 0)}), 1_700_000_000_000, 1_700_000_000_000
)


@given(entries)
def test_what_is_written_is_read(entry: Entry) -> None:
    assert decode(*encode(entry)) == entry


def test_the_bytes_are_kafkas() -> None:
    key, value = encode(("txn-1", ONGOING))
    assert key == KEY
    assert value == bytes.fromhex(
        "0001 00000000000003e8 0003 0000ea60 0102 02 74 02 00000000 000000018bcfe56800 0000018bcfe56800 00"
    )
    _, value = encode(
        (
            "txn-1",
            ONGOING._replace(
                state=TransactionState.PREPARE_COMMIT,
                partitions=frozenset({("u", 1), ("t", 2), ("t", 0)}),
                previous_producer_id=5,
                next_producer_id=6,
                client_version=TV2,
            ),
        )
    )
    assert value == bytes.fromhex(
        "0001 00000000000003e8 0003 0000ea60 02"
        "03 02 74 03 00000000 00000002 00  02 75 02 00000001 00"
        "0000018bcfe56800 0000018bcfe56800"
        "03  00 08 0000000000000005  01 08 0000000000000006  02 02 0002"
    )
    _, value = encode(("x", TransactionValue(7, 0, 1, TransactionState.EMPTY, frozenset(), 5)))
    assert value == bytes.fromhex(
        "0001 0000000000000007 0000 00000001 00 00 0000000000000005 ffffffffffffffff 00"
    )
    assert encode(("x", None))[1] is None


def test_version_0_is_read() -> None:
    old = bytes.fromhex(
        "0000 00000000000003e8 0003 0000ea60 01"
        "00000001 0001 74 00000001 00000000"
        "0000018bcfe56800 0000018bcfe56800"
    )
    assert decode(KEY, old) == ("txn-1", ONGOING)
    empty = bytes.fromhex("0000 0000000000000007 0000 00000001 00 ffffffff 0000000000000005 ffffffffffffffff")
    assert decode(KEY, empty) == (
        "txn-1",
        TransactionValue(7, 0, 1, TransactionState.EMPTY, frozenset(), 5, client_version=TV1),
    )


def test_a_tagged_field_that_is_not_known_is_stepped_over() -> None:
    _, value = encode(("x", ONGOING))
    assert value is not None
    assert decode(KEY, value[:-1] + bytes.fromhex("02  02 02 0002  09 01 ff")) == (
        "txn-1",
        ONGOING._replace(client_version=TV2),
    )


def test_keys_of_other_versions_are_stepped_over() -> None:
    assert decode(b"\x00\x01\x00\x01x", b"\x00\x00") is None


@pytest.mark.parametrize("version", [b"\x00\x02", b"\xff\xff"])
def test_a_value_of_the_future_is_not_guessed_at(version: bytes) -> None:
    with pytest.raises(UnreadableRecord, match="no version"):
        decode(KEY, version)


@pytest.mark.parametrize("number", [6, 7, 8, 255])
def test_a_state_that_is_never_written_is_damage(number: int) -> None:
    _, value = encode(("x", ONGOING))
    assert value is not None
    with pytest.raises(UnreadableRecord, match="never written"):
        decode(KEY, value[:16] + bytes([number]) + value[17:])


def test_a_record_without_a_key_is_damage() -> None:
    with pytest.raises(UnreadableRecord, match="without a key"):
        decode(None, b"\x00\x01")


@pytest.mark.parametrize("tag", [0, 1, 2])
def test_a_tagged_field_of_the_wrong_size_is_damage(tag: int) -> None:
    _, value = encode(("x", ONGOING))
    assert value is not None
    with pytest.raises(UnreadableRecord):
        decode(KEY, value[:-1] + bytes([1, tag, 3]) + b"abc")


@given(st.binary(max_size=60), st.none() | st.binary(max_size=60))
def test_any_bytes_are_a_record_or_none(key: bytes, value: bytes | None) -> None:
    with contextlib.suppress(UnreadableRecord):
        decode(key, value)


@given(values, st.data())
def test_a_damaged_value_is_a_value_or_unreadable(value: TransactionValue, data: st.DataObject) -> None:
    _, written = encode(("x", value))
    assert written is not None
    at = data.draw(st.integers(0, len(written) - 1))
    damaged = written[:at] + bytes([data.draw(st.integers(0, 255))]) + written[at + 1 :]
    with contextlib.suppress(UnreadableRecord):
        decode(KEY, damaged)


@given(values, st.data())
def test_a_record_that_is_cut_off_is_found(value: TransactionValue, data: st.DataObject) -> None:
    key, written = encode(("x", value))
    assert written is not None
    with pytest.raises(UnreadableRecord):
        decode(key, written[: data.draw(st.integers(0, len(written) - 1))])


def test_states_have_kafkas_numbers_and_names() -> None:
    assert [(number, BY_NUMBER[number].label) for number in range(8)] == [
        (0, "Empty"),
        (1, "Ongoing"),
        (2, "PrepareCommit"),
        (3, "PrepareAbort"),
        (4, "CompleteCommit"),
        (5, "CompleteAbort"),
        (6, "Dead"),
        (7, "PrepareEpochFence"),
    ]
    assert set(BY_LABEL.values()) == set(TransactionState)
