"""What is built is valid, reads back as it was, and decodes into the same Arrow columns."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpbroker.records.arrow import decode_range
from mpbroker.records.arrow_batches import SCHEMA, arrow_batches
from mpbroker.records.batch import BATCH_COMPRESSED, BATCH_OK, scan_batch
from mpbroker.records.builder import build_batch, build_transaction_marker
from mpbroker.records.compression import Codec
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.markers import COMMIT
from mpbroker.records.record import NewRecord, Record
from mpbroker.records.validation import MAX_LONG, TopicPolicy, validate
from tests.support.forms import rounds
from tests.support.record_reading import iterate_records

NOW = 1700000000000
ANY_TIME = TopicPolicy(timestamp_after_max_ms=MAX_LONG)

field = st.none() | st.binary(max_size=40) | st.binary(min_size=120, max_size=20000)
header = st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20))
new_records = st.builds(
    NewRecord,
    value=field,
    key=field,
    timestamp=st.just(-1) | st.integers(0, 1 << 45),
    headers=st.lists(header, max_size=3).map(tuple),
)
codecs = st.sampled_from(list(Codec))


def expected(records: list[NewRecord], base_offset: int) -> list[Record]:
    return [
        Record(base_offset + i, r.timestamp, 0, r.key, r.value, tuple(r.headers))
        for i, r in enumerate(records)
    ]


@settings(max_examples=rounds(150), deadline=None)
@given(st.lists(new_records, min_size=1, max_size=70), codecs)
def test_build_validate_iterate(records: list[NewRecord], codec: Codec) -> None:
    batch = build_batch(records, codec=codec)
    scan = scan_batch(batch)
    assert scan.verdict == (BATCH_OK if codec is Codec.NONE else BATCH_COMPRESSED)
    assert scan.max_timestamp == max(r.timestamp for r in records)
    if codec is Codec.NONE:
        assert scan.min_timestamp == min((r.timestamp for r in records if r.timestamp != -1), default=-1)
        assert scan.has_null_key == any(r.key is None for r in records)
    accepted = validate(batch, ANY_TIME, now_ms=NOW)
    assert not accepted.rebuilt
    assert bytes(accepted.data) == batch
    assert list(iterate_records(batch)) == expected(records, 0)


ends = st.sampled_from([-1, 0, 1, MAX_LONG - 1, MAX_LONG])


@settings(max_examples=rounds(100), deadline=None)
@given(st.lists(ends | st.integers(0, MAX_LONG), min_size=1, max_size=4))
def test_the_least_and_the_largest_of_any_timestamps(timestamps: list[int]) -> None:
    records = [NewRecord(value=b"", timestamp=one) for one in timestamps]
    scan = scan_batch(build_batch(records))
    assert scan.verdict == BATCH_OK
    assert scan.max_timestamp == max(timestamps)
    assert scan.min_timestamp == min((one for one in timestamps if one != -1), default=-1)


def as_records(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    columns = [
        batch.column(name) if name != "timestamp" else batch.column(name).cast(pa.int64())
        for name in SCHEMA.names
    ]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def as_row(record: Record) -> tuple[Any, ...]:
    headers = [{"key": key, "value": value} for key, value in record.headers] or None
    return (
        record.key,
        record.value,
        record.offset,
        record.timestamp * 1000,
        record.timestamp_type,
        headers,
    )


@settings(max_examples=rounds(100), deadline=None)
@given(
    st.lists(st.tuples(st.lists(new_records, min_size=1, max_size=20), codecs, st.booleans()), max_size=8),
    st.integers(0, 100),
    st.integers(0, 160),
    st.integers(1, 50),
    st.integers(1, 100_000),
)
def test_arrow_equals_iteration(
    batches: list[tuple[list[NewRecord], Codec, bool]], lo: int, hi: int, max_rows: int, max_bytes: int
) -> None:
    log, offset = bytearray(), 0
    for records, codec, stamped in batches:
        append_time = NOW if stamped else None
        log += build_batch(records, codec=codec, base_offset=offset, append_time=append_time)
        offset += len(records)
        log += build_transaction_marker(
            COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=NOW, base_offset=offset
        )
        offset += 1
    log += build_batch([NewRecord(b"cut off")], base_offset=offset)[:-1]
    rows: list[tuple[Any, ...]] = []
    data = bytes(log)
    for decoded in arrow_batches(data, lo_offset=lo, hi_offset=hi, max_rows=max_rows, max_bytes=max_bytes):
        decoded.validate(full=True)
        rows += as_records(decoded)
    assert rows == [as_row(record) for record in iterate_records(log) if lo <= record.offset < hi]


def test_arrow_columns_can_be_chosen_ordered_and_added_to() -> None:
    data = build_batch([NewRecord(b"v", b"k", NOW), NewRecord(None, None, NOW)], base_offset=5)
    schema = pa.schema([SCHEMA.field("offset"), pa.field("topic", pa.string()), SCHEMA.field("value")])
    constants = {"topic": lambda rows: pa.array(["t"] * rows)}
    (batch,) = arrow_batches(data, schema, constants=constants)
    assert batch.schema == schema
    assert batch.to_pylist() == [
        {"offset": 5, "topic": "t", "value": b"v"},
        {"offset": 6, "topic": "t", "value": None},
    ]
    with pytest.raises(ValueError, match="topic"):
        next(arrow_batches(data, schema))
    with pytest.raises(ValueError, match="offset"):
        next(arrow_batches(data, pa.schema([pa.field("offset", pa.int32())])))


def test_arrow_stops_at_whole_batches_and_goes_on() -> None:
    data = b"".join(bytes(build_batch([NewRecord(b"v")] * 10, base_offset=10 * i)) for i in range(5))
    position, rows, _ = decode_range(data, 0, len(data), 0, 1000, 25, 1 << 20)
    assert rows == 20
    position, rows, _ = decode_range(data, position, len(data), 0, 1000, 5, 1 << 20)
    assert rows == 10
    position, rows, columns = decode_range(data, position, len(data), 45, 48, 1000, 1 << 20, ["offset"])
    assert rows == 3
    assert list(memoryview(columns["offset"].data).cast("q")) == [45, 46, 47]
    assert decode_range(data, position, len(data), 0, 1000, 1, 1)[1] == 0


def test_header_keys_that_are_no_utf8_are_replaced_as_python_does() -> None:
    keys = [
        b"\xff",
        b"a\xe2\x82b",
        b"\xf0\x9f\x98",
        b"\xed\xa0\x80",
        b"\xc0\xaf",
        b"ok \xe2\x82\xac",
        b"\xf4\x90\x80\x80",
    ]
    marker = build_batch([NewRecord(b"v", headers=(("X" * len(key), None),)) for key in keys])
    data = bytes(marker)
    for key in keys:
        data = data.replace(b"X" * len(key), key, 1)
    (batch,) = arrow_batches(data, check_crc=False)
    batch.validate(full=True)
    found = [row[0]["key"] for row in batch.column("headers").to_pylist()]
    assert found == [key.decode("utf-8", "replace") for key in keys]
    assert [record.headers[0][0] for record in iterate_records(data, check_crc=False)] == found


@pytest.mark.parametrize("codec", list(Codec))
def test_corrupt_batch_is_named_by_its_position(codec: Codec) -> None:
    first = build_batch([NewRecord(b"v" * 50)])
    second = build_batch([NewRecord(b"w" * 50)], codec=codec, base_offset=1)
    second[-2] ^= 0x40
    data = bytes(first + second)
    with pytest.raises(CorruptBatch, match=f"position {len(first)}: the CRC") as caught:
        list(arrow_batches(data))
    assert caught.value.position == len(first)
    with pytest.raises(CorruptBatch, match=f"position {len(first)}: the CRC"):
        list(iterate_batches(data))


def test_arrow_bounds_what_it_decompresses() -> None:
    bomb = build_batch([NewRecord(bytes(1 << 20))], codec=Codec.ZSTD)
    with pytest.raises(CorruptBatch, match="position 0"):
        list(arrow_batches(bomb, decompressed_limit=1 << 19))
