"""Each rule about a produced batch, with its error; and that nothing but a rule is enough to be refused."""

import random
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest

from mpbroker.records import batch as layout
from mpbroker.records.batch import (
    BATCH_COMPRESSED,
    BATCH_CORRUPT,
    BATCH_OK,
    BATCH_TRAILING,
    CRC_AT,
    CRC_COVERS_FROM,
    checksum,
    scan_batch,
    scan_records,
)
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec, compress
from mpbroker.records.errors import (
    CORRUPT_MESSAGE,
    INVALID_RECORD,
    INVALID_TIMESTAMP,
    MESSAGE_TOO_LARGE,
    UNSUPPORTED_COMPRESSION_TYPE,
    InvalidRecords,
)
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.record import LOG_APPEND_TIME, NewRecord
from mpbroker.records.stream import RecordWalker, RecordWriter, Renumbering
from mpbroker.records.validation import (
    PACKED_AT_ONCE_BYTES,
    RECORD_ERRORS_MAX,
    UNPACKED_AT_ONCE_BYTES,
    TopicPolicy,
    validate,
    validate_in_pieces,
)
from tests.support.record_reading import NOW, iterate_records, sealed

RECORDS = [NewRecord(b"one", b"k", NOW), NewRecord(b"two", b"l", NOW + 7), NewRecord(b"three", b"m", NOW + 3)]


def mend(batch: bytearray) -> bytearray:
    struct.pack_into(">I", batch, CRC_AT, checksum(memoryview(batch)[CRC_COVERS_FROM:]))
    return batch


def changed(at: int, form: str, value: int, batch: bytearray | None = None) -> bytearray:
    batch = build_batch(RECORDS) if batch is None else batch
    struct.pack_into(form, batch, at, value)
    return mend(batch)


def refusal(batch: bytes | bytearray, policy: TopicPolicy | None = None, **options: bool) -> InvalidRecords:
    with pytest.raises(InvalidRecords) as caught:
        validate(batch, policy or TopicPolicy(), now_ms=NOW, **options)
    return caught.value


def control() -> bytearray:
    return build_batch(RECORDS, control=True)


GOOD_RECORD = bytes.fromhex("0c 00 00 00 01 01 00".replace(" ", ""))

HEADER_RULES: list[tuple[str, Callable[[], bytes | bytearray], int]] = [
    ("no bytes", lambda: b"", INVALID_RECORD),
    ("less than a length", lambda: bytes(11), INVALID_RECORD),
    ("length below the smallest", lambda: bytes(61), CORRUPT_MESSAGE),
    ("negative length", lambda: bytes(8) + b"\xff" * 53, CORRUPT_MESSAGE),
    ("cut off", lambda: build_batch(RECORDS)[:-1], INVALID_RECORD),
    ("magic 3", lambda: changed(layout.MAGIC_AT, ">b", 3), CORRUPT_MESSAGE),
    ("magic -1", lambda: changed(layout.MAGIC_AT, ">b", -1), CORRUPT_MESSAGE),
    ("magic 1", lambda: changed(layout.MAGIC_AT, ">b", 1), INVALID_RECORD),
    ("base offset 7", lambda: build_batch(RECORDS, base_offset=7), INVALID_RECORD),
    ("shorter than a header", lambda: bytes(11) + b"\x20" + bytes(4) + b"\x02" + bytes(27), CORRUPT_MESSAGE),
    ("wrong CRC", lambda: build_batch(RECORDS)[:-1] + b"\x01", CORRUPT_MESSAGE),
    ("codec 5", lambda: changed(layout.ATTRIBUTES_AT, ">h", 5), INVALID_RECORD),
    ("control", control, INVALID_RECORD),
    ("empty", lambda: build_batch([]), INVALID_RECORD),
    ("negative count", lambda: changed(layout.RECORD_COUNT_AT, ">i", -1), INVALID_RECORD),
    ("count too small", lambda: changed(layout.RECORD_COUNT_AT, ">i", 2), INVALID_RECORD),
    ("last offset delta too large", lambda: changed(layout.LAST_OFFSET_DELTA_AT, ">i", 3), INVALID_RECORD),
    (
        "last offset delta wraps",
        lambda: changed(layout.LAST_OFFSET_DELTA_AT, ">i", 0x7FFFFFFF),
        INVALID_RECORD,
    ),
    ("producer without sequence", lambda: build_batch(RECORDS, producer_id=0), INVALID_RECORD),
    ("two batches", lambda: build_batch(RECORDS) + build_batch(RECORDS), INVALID_RECORD),
    ("rubbish behind it", lambda: build_batch(RECORDS) + bytes(61), CORRUPT_MESSAGE),
]


@pytest.mark.parametrize(
    ("make", "code"), [rule[1:] for rule in HEADER_RULES], ids=[r[0] for r in HEADER_RULES]
)
def test_header_rule(make: Callable[[], bytes | bytearray], code: int) -> None:
    assert refusal(make()).code == code


RECORD_RULES: list[tuple[str, str, int]] = [
    ("a record less", "0c000000010100", 2),
    ("a byte behind the last", "0c00000001010000", 1),
    ("length beyond the end", "0e000000010100", 1),
    ("length too small", "0a000000010100", 1),
    ("negative length", "01000000010100", 1),
    ("key beyond the record", "0c000000140100", 1),
    ("value beyond the record", "0c000000010400", 1),
    ("fields end early", "0e00000001010000", 1),
    ("negative header count", "0c000000010101", 1),
    ("more headers than bytes", "0c00000001011e", 1),
    ("header with a null key", "1000000001010201" + "01", 1),
    ("header value beyond the record", "1000000001010200" + "04", 1),
    ("varint of six bytes", "160000" + "808080808000" + "010100", 1),
    ("varint wider than 32 bits", "1400" + "00" + "8080808010" + "010100", 1),
    ("varlong of eleven bytes", "2000" + "80" * 10 + "00" + "00" + "010100", 1),
    ("offset delta of the first is 1", "0c000002010100", 1),
    ("length is an endless varint", "ffffffffff7f", 1),
]


@pytest.mark.parametrize(("stream", "count"), [r[1:] for r in RECORD_RULES], ids=[r[0] for r in RECORD_RULES])
def test_record_rule(stream: str, count: int) -> None:
    batch = sealed(bytes.fromhex(stream), count)
    assert refusal(batch).code == INVALID_RECORD
    if "offset delta" not in scan_batch(batch).reason:
        for codec in (Codec.GZIP, Codec.ZSTD):
            packed = sealed(compress(codec, bytes.fromhex(stream)), count, codec)
            assert scan_batch(packed).verdict == BATCH_COMPRESSED
            assert refusal(packed).code == INVALID_RECORD


def test_the_record_all_those_are_made_from_is_good() -> None:
    assert scan_batch(sealed(GOOD_RECORD, 1)).verdict == BATCH_OK
    overlong = bytes.fromhex("1400" + "00" + "8080808000" + "010100")
    assert scan_batch(sealed(overlong, 1)).verdict == BATCH_OK


def test_bad_record_is_named() -> None:
    error = refusal(sealed(GOOD_RECORD + bytes.fromhex("0c000004010100"), 2))
    assert [entry.batch_index for entry in error.record_errors] == [1]
    assert "record 1" in error.message


def test_size_limit_is_inclusive() -> None:
    batch = build_batch([NewRecord(b"x" * 1000, b"k", NOW)])
    assert validate(batch, TopicPolicy(max_message_bytes=len(batch)), now_ms=NOW).record_count == 1
    assert refusal(batch, TopicPolicy(max_message_bytes=len(batch) - 1)).code == MESSAGE_TOO_LARGE


def test_a_piece_of_a_second_batch_is_cut_off() -> None:
    batch = build_batch(RECORDS)
    for piece in (b"\x00", bytes(11), batch[:16], batch[:-1]):
        assert scan_batch(batch + piece).verdict == BATCH_TRAILING
        assert bytes(validate(batch + piece, TopicPolicy(), now_ms=NOW + 100).data) == batch


def test_every_bit_from_the_crc_on_is_guarded_and_no_bit_before_it() -> None:
    batch = build_batch(RECORDS)
    for at in range(17, len(batch)):
        for bit in range(8):
            flipped = bytearray(batch)
            flipped[at] ^= 1 << bit
            assert scan_batch(flipped).verdict == BATCH_CORRUPT
    for at in (*range(8), *range(12, 16)):
        flipped = bytearray(batch)
        flipped[at] ^= 0xFF
        assert len(list(iterate_batches(flipped))) == 1


def test_null_keys_on_a_compacted_topic() -> None:
    batch = build_batch([NewRecord(b"a", b"k", NOW), NewRecord(b"b", None, NOW), NewRecord(b"c", None, NOW)])
    assert validate(batch, TopicPolicy(), now_ms=NOW).record_count == 3
    error = refusal(batch, TopicPolicy(compact=True))
    assert error.code == INVALID_RECORD
    assert [entry.batch_index for entry in error.record_errors] == [1, 2]


@pytest.mark.parametrize("codec", list(Codec))
def test_timestamps_out_of_range(codec: Codec) -> None:
    policy = TopicPolicy(timestamp_before_max_ms=10, timestamp_after_max_ms=20)
    times = [NOW, NOW - 10, NOW - 11, NOW + 20, NOW + 21, -1]
    batch = build_batch([NewRecord(b"v", b"k", time) for time in times], codec=codec)
    error = refusal(batch, policy)
    assert error.code == INVALID_TIMESTAMP
    assert [entry.batch_index for entry in error.record_errors] == [2, 4]
    append_time = TopicPolicy(
        timestamp_before_max_ms=10, timestamp_after_max_ms=20, timestamp_type=LOG_APPEND_TIME
    )
    assert validate(batch, append_time, now_ms=NOW).record_count == len(times)


def test_timestamp_errors_outweigh_null_keys() -> None:
    batch = build_batch([NewRecord(b"v", None, NOW), NewRecord(b"v", b"k", NOW - 1000)])
    error = refusal(batch, TopicPolicy(compact=True, timestamp_before_max_ms=10))
    assert error.code == INVALID_TIMESTAMP
    assert [entry.batch_index for entry in error.record_errors] == [0, 1]


def test_append_time_set_by_a_client() -> None:
    stamped = build_batch(RECORDS, append_time=NOW)
    assert refusal(stamped, TopicPolicy(timestamp_type=LOG_APPEND_TIME)).code == INVALID_TIMESTAMP
    assert refusal(build_batch(RECORDS, append_time=-1)).code == INVALID_TIMESTAMP
    data = validate(stamped, TopicPolicy(), now_ms=NOW).data
    assert [record.timestamp for record in iterate_records(data)] == [NOW, NOW + 7, NOW + 3]


@pytest.mark.parametrize("codec", list(Codec))
def test_wrong_max_timestamp_is_corrected_with_a_new_crc(codec: Codec) -> None:
    wrong = changed(layout.MAX_TIMESTAMP_AT, ">q", NOW - 5, build_batch(RECORDS, codec=codec))
    for data in (wrong, bytes(wrong)):
        accepted = validate(data, TopicPolicy(), now_ms=NOW)
        (batch,) = iterate_batches(accepted.data)
        assert batch.header.max_timestamp == accepted.max_timestamp == NOW + 7
        assert not accepted.rebuilt


def test_a_good_batch_is_not_touched() -> None:
    batch = bytes(build_batch(RECORDS))
    accepted = validate(batch, TopicPolicy(), now_ms=NOW)
    assert accepted.data.obj is batch
    assert bytes(accepted.data) == batch


@pytest.mark.parametrize("target", list(Codec))
@pytest.mark.parametrize("source", list(Codec))
def test_compression_type_of_the_topic(source: Codec, target: Codec) -> None:
    batch = build_batch(
        RECORDS, codec=source, producer_id=9, producer_epoch=2, base_sequence=5, transactional=True
    )
    accepted = validate(batch, TopicPolicy(compression=target), now_ms=NOW)
    assert accepted.rebuilt == (source is not target)
    (rebuilt,) = iterate_batches(accepted.data)
    (original,) = iterate_batches(batch)
    assert rebuilt.codec is target
    assert rebuilt.records() == original.records()
    assert rebuilt.is_transactional
    for field in ("producer_id", "producer_epoch", "base_sequence", "max_timestamp", "record_count"):
        assert getattr(rebuilt.header, field) == getattr(original.header, field)


def test_rebuilt_batch_is_measured_again() -> None:
    batch = build_batch([NewRecord(bytes(5000), b"k", NOW)], codec=Codec.ZSTD)
    assert (
        refusal(batch, TopicPolicy(compression=Codec.NONE, max_message_bytes=4000)).code == MESSAGE_TOO_LARGE
    )


def test_inner_offsets_of_a_compressed_batch_are_made_consecutive() -> None:
    stream = bytes.fromhex("0c000002010100" + "1600000a026b0276020268000000"[:24])
    batch = sealed(compress(Codec.LZ4, stream), 2, Codec.LZ4)
    accepted = validate(batch, TopicPolicy(), now_ms=NOW)
    assert accepted.rebuilt
    records = list(iterate_records(accepted.data))
    assert [record.offset for record in records] == [0, 1]
    assert records[1].key == b"k"
    assert records[1].value == b"v"
    assert records[1].headers == (("h", b""),)


@pytest.mark.parametrize("renumbers", [False, True])
@pytest.mark.parametrize("target", list(Codec))
@pytest.mark.parametrize("source", [codec for codec in Codec if codec is not Codec.NONE])
def test_large_batches_are_rebuilt_in_pieces(source: Codec, target: Codec, renumbers: bool) -> None:
    chance = random.Random(18)
    records = [NewRecord(chance.randbytes(100).hex().encode(), b"k", NOW + i) for i in range(2000)]
    writer = RecordWriter(NOW)
    for offset, record in enumerate(records):
        writer.add(record, 2 * offset if renumbers else offset)
    stream = bytes(writer.finish())[layout.BATCH_HEADER_BYTES :]
    batch = sealed(compress(source, stream), len(records), source)
    pieces = validate_in_pieces(batch, TopicPolicy(compression=target), now_ms=NOW)
    count = 0
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            accepted = end.value
            break
        count += 1
    assert accepted.rebuilt == (source is not target or renumbers)
    if accepted.rebuilt:
        assert count >= (1 + renumbers) * (len(stream) // PACKED_AT_ONCE_BYTES)
    found = list(iterate_records(accepted.data))
    assert [(r.offset, r.timestamp, r.key, r.value) for r in found] == [
        (offset, record.timestamp, record.key, record.value) for offset, record in enumerate(records)
    ]


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_large_batches_are_unpacked_walked_and_checked_in_pieces(codec: Codec) -> None:
    count = 5 * UNPACKED_AT_ONCE_BYTES // len(GOOD_RECORD)
    keyless = b"".join(
        b"%c%s" % (2 * len(body), body)
        for body in (b"\0\0" + varint(offset) + b"\1\0\0" for offset in range(count))
    )
    batch = sealed(compress(codec, keyless), count, codec)
    large = TopicPolicy(max_message_bytes=16 << 20)
    assert sum(1 for _ in validate_in_pieces(batch, large, now_ms=NOW)) >= 2 * 4
    pieces, seen = validate_in_pieces(batch, msgspec.structs.replace(large, compact=True), now_ms=NOW), []
    with pytest.raises(InvalidRecords) as caught:
        seen.extend(pieces)
    assert len(seen) >= 3 * 4
    assert [error.batch_index for error in caught.value.record_errors] == list(range(RECORD_ERRORS_MAX))
    assert f"{count} records are refused" in caught.value.message
    assert caught.value.faults == count


def with_headers(offset: int, headers: bytes, count: int) -> bytes:
    body = b"\0\0" + varint(offset) + b"\1\1" + varint(count) + headers
    return varint(len(body)) + body


def test_a_record_with_millions_of_headers_is_walked_in_pieces() -> None:
    """Check what comes behind it as well, and that rules and renumbering pass over its headers."""
    count = 4 * UNPACKED_AT_ONCE_BYTES // 2
    large = with_headers(1, bytes(2 * count), count)
    stream = with_headers(0, b"", 0) + large + with_headers(2, bytes(8), 4)
    walker = RecordWalker(stream, 3, 0)
    pieces = 0
    while not walker.step(UNPACKED_AT_ONCE_BYTES):
        pieces += 1
    assert pieces >= 3
    assert walker.result() == scan_records(stream, 3, 0)
    assert walker.result().reason == ""
    batch = sealed(compress(Codec.ZSTD, stream), 3, Codec.ZSTD)
    policy = TopicPolicy(max_message_bytes=16 << 20)
    assert validate(batch, policy, now_ms=NOW).record_count == 3
    with pytest.raises(InvalidRecords, match="3 records are refused"):
        validate(batch, msgspec.structs.replace(policy, compact=True), now_ms=NOW)
    renumbered = Renumbering(stream, 3)
    assert b"".join(iter(partial(renumbered.take, PACKED_AT_ONCE_BYTES), b"")) == stream


@pytest.mark.parametrize(
    ("spoiled", "reason"),
    [
        (lambda headers: headers[:-4] + b"\1" + headers[-3:], "header"),
        (lambda headers: headers[:-1] + varint(1), "header"),
        (lambda headers: headers + b"\0", "end"),
        (lambda headers: headers[:-1], "header"),
    ],
)
def test_headers_that_are_malformed_behind_many_good_ones(
    spoiled: Callable[[bytes], bytes], reason: str
) -> None:
    """Check that a walk in pieces finds what a walk at once finds."""
    count = 20_000
    stream = with_headers(0, b"", 0) + with_headers(1, spoiled(bytes(2 * count)), count)
    walker = RecordWalker(stream, 2, 0)
    while not walker.step(1024):
        pass
    assert walker.result() == scan_records(stream, 2, 0)
    assert walker.result().bad_record == 1
    assert reason in walker.result().reason


def varint(number: int) -> bytes:
    """Return a number that is not negative as records have it."""
    raw, out = 2 * number, bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes((*out, raw))


PEAK = """
import pathlib, sys
from mpbroker.records.compression import Codec
from mpbroker.records.errors import InvalidRecords
from mpbroker.records.validation import TopicPolicy, validate

def peak_kib():
    return int(pathlib.Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

batch = sys.stdin.buffer.read()
policy = TopicPolicy(compact=sys.argv[1] == "refused", max_message_bytes=64 << 20)
if sys.argv[1] == "rebuilt":
    policy = TopicPolicy(compression=Codec.GZIP, compression_level=1, max_message_bytes=64 << 20)
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak is what is there now
before = peak_kib()
try:
    validate(batch, policy, now_ms=1_700_000_000_000)
except InvalidRecords as error:
    assert sys.argv[1] == "refused", error
print(peak_kib() - before)
"""


@pytest.mark.process
@pytest.mark.parametrize("how", ["renumbered", "refused", "rebuilt"])
def test_memory_of_a_batch_is_bounded_by_what_it_unpacks_to(how: str) -> None:
    """A Python record and error for each of millions of records took fifty times the bytes of the records."""
    count = 3_000_000
    batch = sealed(compress(Codec.ZSTD, GOOD_RECORD * count), count, Codec.ZSTD)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", PEAK, how], input=bytes(batch), capture_output=True, check=True, cwd=root
    )
    assert count * len(GOOD_RECORD) / 2 < int(done.stdout) << 10 <= 3 * count * len(GOOD_RECORD)


def test_zstd_where_it_is_not_allowed() -> None:
    batch = build_batch(RECORDS, codec=Codec.ZSTD)
    assert refusal(batch, zstd_allowed=False).code == UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_bad_or_boundless_streams_are_refused(codec: Codec) -> None:
    assert refusal(sealed(b"rubbish", 1, codec)).code == INVALID_RECORD
    bomb = build_batch([NewRecord(bytes(1 << 20), b"k", NOW)], codec=codec)
    assert refusal(bomb, TopicPolicy(max_decompressed_bytes=1 << 19)).code == INVALID_RECORD


def test_stamping_and_assigning() -> None:
    batch = build_batch(RECORDS)
    layout.stamp_append_time(batch, NOW + 99)
    layout.assign_offset_and_epoch(batch, 1 << 40, 12)
    (read,) = iterate_batches(batch)
    assert read.append_time == NOW + 99
    assert (read.header.base_offset, read.header.leader_epoch) == (1 << 40, 12)
    assert {record.timestamp for record in read.records()} == {NOW + 99}
    assert read.records()[2].offset == (1 << 40) + 2
