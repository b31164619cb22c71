"""Rows of Arrow columns become the batches that the builder makes of the same records."""

from __future__ import annotations

import array
import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.records.builder import BATCH_HEADER_BYTES, build_batch
from mpbroker.records.encode import Encoded, Encoder, assign_targets
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.record import NewRecord
from mpbroker.records.stream import seal
from mpbroker.writing.rows import HEADERS, binary, headers, numbers, plain

CONTENT = st.none() | st.binary(max_size=300)
HEADER = st.tuples(st.text(max_size=5), CONTENT)
TIMES = st.none() | st.integers(-(1 << 50), 1 << 50)
ROW = st.tuples(CONTENT, CONTENT, TIMES, st.none() | st.lists(HEADER, max_size=3), st.integers(0, 4))
BINARY = pa.binary()
NOW_MS = 1_700_000_000_000


def sealed(one: Encoded) -> bytearray:
    seal(
        one.data,
        base_offset=0,
        leader_epoch=-1,
        attributes=0,
        last_offset_delta=one.records - 1,
        base_timestamp=one.base_timestamp,
        max_timestamp=one.max_timestamp,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=one.records,
    )
    return one.data


def encode(encoder: Encoder, rows: list[tuple], skipped: int = 0, kind: pa.DataType = BINARY) -> list:
    """The rows but for the first `skipped` of them, which Arrow's arrays have in front."""
    key = plain(pa.array([row[0] for row in rows], kind)[skipped:])
    value = plain(pa.array([row[1] for row in rows], kind)[skipped:])
    times = pa.array([row[2] for row in rows], pa.timestamp("us", tz="UTC"))[skipped:]
    entries = [row[3] and [{"key": k, "value": v} for k, v in row[3]] for row in rows]
    column = pa.array(entries, HEADERS)[skipped:]
    found, _kept = headers(column)
    targets = array.array("i", [row[4] for row in rows[skipped:]])
    return encoder.append(targets, binary(key), binary(value), numbers(times), NOW_MS, found)


def expected(row: tuple) -> NewRecord:
    ms = NOW_MS if row[2] is None else row[2] // 1000
    return NewRecord(key=row[0], value=row[1], timestamp=ms, headers=tuple(row[3] or ()))


@given(st.lists(ROW, max_size=40), st.integers(0, 10), st.sampled_from([pa.binary(), pa.large_binary()]))
def test_each_target_gets_what_the_builder_makes(rows: list[tuple], skipped: int, kind: pa.DataType) -> None:
    encoder = Encoder(1 << 20)
    assert encode(encoder, rows, min(skipped, len(rows)), kind) == []
    assert encode(encoder, rows, kind=kind) == []
    made = {one.target: sealed(one) for one in encoder.finish()}
    both = rows[min(skipped, len(rows)) :] + rows
    wanted = {target: [expected(row) for row in both if row[4] == target] for target in range(5)}
    assert made == {target: build_batch(records) for target, records in wanted.items() if records}
    assert encoder.finish() == []


@given(st.lists(ROW, min_size=1, max_size=60), st.integers(BATCH_HEADER_BYTES, 2000))
def test_full_batches_come_out_at_once_and_in_order(rows: list[tuple], batch_bytes: int) -> None:
    encoder = Encoder(batch_bytes)
    batches = encode(encoder, rows)
    assert all(len(one.data) >= batch_bytes for one in batches)
    batches += encoder.finish()
    for target in range(5):
        found = [
            NewRecord(key=record.key, value=record.value, timestamp=record.timestamp, headers=record.headers)
            for one in batches
            if one.target == target
            for batch in iterate_batches(sealed(one))
            for record in batch.records()
        ]
        assert found == [expected(row) for row in rows if row[4] == target]


@pytest.mark.parametrize("entry", [{"key": None, "value": b"x"}, None])
def test_a_header_without_a_key_is_refused(entry: dict[str, bytes | None] | None) -> None:
    column = pa.array([[entry]], HEADERS)
    found, _kept = headers(column)
    with pytest.raises(ValueError, match="Null header keys are not permitted"):
        Encoder(1000).append(array.array("i", [0]), None, None, None, 0, found)


def test_rows_find_their_partitions() -> None:
    keys = pa.array([b"foobar", None, b"foobar", None, b"21"], pa.binary())
    partitions = pa.array([None, None, 2, 0, None], pa.int32())
    topics = pa.array([0, 0, 0, 1, 1], pa.int32())
    counts, firsts, keyless = array.array("i", [3, 10]), array.array("i", [0, 3]), array.array("i", [1, 4])
    targets = array.array("i", [0] * 5)
    bad = assign_targets(
        5, numbers(topics), firsts, counts, keyless, binary(keys), numbers(partitions), targets
    )
    # murmur2 of the keys is -790332482 and -973932308 (Kafka: UtilsTest).
    positive = [-790332482 & 0x7FFFFFFF, -973932308 & 0x7FFFFFFF]
    assert bad == -1
    assert targets.tolist() == [positive[0] % 3, 1, 2, 3, 3 + positive[1] % 10]


@pytest.mark.parametrize("partition", [-1, 3])
def test_a_partition_that_is_not_there_is_told(partition: int) -> None:
    targets = array.array("i", [0] * 2)
    one, zero, three = (array.array("i", [number]) for number in (1, 0, 3))
    column = pa.array([0, partition], pa.int32())
    assert assign_targets(2, None, zero, three, one, None, numbers(column), targets) == 1
    assert targets[1] == -2


def test_two_million_rows_a_second_at_the_least() -> None:
    """It does many more; a loop in Python would do a tenth of this."""
    import time

    values = pa.array([random.randbytes(100)] * 20_000, pa.binary())
    targets = array.array("i", [row % 8 for row in range(20_000)])
    best = float("inf")
    for _ in range(10):
        encoder = Encoder(256 << 10)
        started = time.perf_counter()
        encoder.append(targets, None, binary(values), None, NOW_MS)
        best = min(best, time.perf_counter() - started)
    assert best < 0.01
