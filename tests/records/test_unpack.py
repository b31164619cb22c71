"""The native check of compressed batches decides as the reference in Python does, or leaves them to it."""

from __future__ import annotations

import gzip
import random
import struct
import time
import zlib

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpbroker.records.batch import (
    BATCH_HEADER_BYTES,
    BATCH_OK,
    CRC_AT,
    CRC_COVERS_FROM,
    NO_TIMESTAMP,
    RECORD_COUNT_AT,
    checksum,
    scan_batch,
    scan_records,
)
from mpbroker.records.builder import build_batch, with_records
from mpbroker.records.compression import SNAPPY_HEADER, Codec, compress, decompress
from mpbroker.records.errors import CompressionError, InvalidRecords
from mpbroker.records.record import NewRecord
from mpbroker.records.stream import seal
from mpbroker.records.unpack import LEFT, LIBRARIES, ROOM_BYTES, TOO_LARGE, BatchUnpacker
from mpbroker.records.validation import TopicPolicy, validate

PACKING = [codec for codec in Codec if codec is not Codec.NONE]
NOW = 1_700_000_000_000
UNPACKER = BatchUnpacker()

record_lists = st.lists(
    st.builds(
        NewRecord,
        value=st.none() | st.binary(max_size=3000),
        key=st.none() | st.binary(max_size=30),
        timestamp=st.just(-1) | st.integers(0, 2 * NOW),
        headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=10)), max_size=3).map(
            tuple
        ),
    ),
    min_size=1,
    max_size=40,
)


def sealed(stream: bytes, codec: Codec, count: int) -> bytes:
    """A batch of a stream that is packed already."""
    batch = with_records(stream)
    seal(
        batch,
        base_offset=0,
        leader_epoch=-1,
        attributes=codec,
        last_offset_delta=count - 1,
        base_timestamp=NOW,
        max_timestamp=NOW,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=count,
    )
    return bytes(batch)


def records_stream(count: int, size: int = 100) -> bytes:
    records = [NewRecord(random.Random(i).randbytes(size // 2) * 2, b"k", NOW + i) for i in range(count)]
    return bytes(build_batch(records))[BATCH_HEADER_BYTES:]


def agrees(batch: bytes) -> int:
    """Compare with the reference, and return the native verdict. Whatever is accepted has to be the same."""
    found = UNPACKER.scan(batch)
    header = scan_batch(batch)
    if found.verdict != BATCH_OK:
        return found.verdict
    try:
        stream = decompress(Codec(header.codec), batch[BATCH_HEADER_BYTES : header.length])
    except CompressionError:
        # The system's libzstd is another version than the reference's, and newer ones detect more damage.
        if header.codec != Codec.ZSTD:
            raise
        return BATCH_OK
    walk = scan_records(stream, header.record_count, header.base_timestamp)
    assert (walk.reason, walk.consecutive) == ("", True)
    assert found == header._replace(
        verdict=BATCH_OK,
        max_timestamp=walk.max_timestamp,
        min_timestamp=walk.min_timestamp,
        has_null_key=walk.has_null_key,
        max_timestamp_wrong=walk.max_timestamp != header.header_max_timestamp,
    )
    accepted = validate(batch, TopicPolicy(timestamp_after_max_ms=(1 << 63) - 1), now_ms=0)
    assert (accepted.rebuilt, accepted.record_count) == (False, found.record_count)
    assert accepted.max_timestamp == found.max_timestamp
    return found.verdict


def is_refused(batch: bytes) -> bool:
    try:
        return validate(batch, TopicPolicy(timestamp_after_max_ms=(1 << 63) - 1), now_ms=0).rebuilt
    except InvalidRecords:
        return True


def test_all_libraries_are_here() -> None:
    assert UNPACKER.missing() == []


@pytest.mark.parametrize("codec", PACKING)
@settings(max_examples=60, deadline=None)
@given(records=record_lists)
def test_good_batches_are_accepted_with_the_same_facts(codec: Codec, records: list[NewRecord]) -> None:
    assert agrees(bytes(build_batch(records, codec=codec))) == BATCH_OK


@pytest.mark.parametrize("codec", PACKING)
def test_every_truncation(codec: Codec) -> None:
    stream = records_stream(20)
    packed = compress(codec, stream)
    assert agrees(sealed(packed, codec, 20)) == BATCH_OK
    for size in range(len(packed)):
        assert agrees(sealed(packed[:size], codec, 20)) == LEFT


@pytest.mark.parametrize("codec", PACKING)
def test_flipped_bits(codec: Codec) -> None:
    chance = random.Random(18)
    packed = compress(codec, records_stream(30))
    accepted = 0
    for _ in range(3000):
        flipped = bytearray(packed)
        for _ in range(chance.randint(1, 3)):
            flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
        batch = sealed(bytes(flipped), codec, 30)
        verdict = agrees(batch)
        accepted += verdict == BATCH_OK
        # lz4: the reference does not miss what follows the last block.
        assert verdict == BATCH_OK or is_refused(batch) or codec is Codec.LZ4
    # The frames of gzip and lz4 have checksums of what they unpack to.
    assert (accepted > 0) == (codec in (Codec.SNAPPY, Codec.ZSTD))


@pytest.mark.parametrize("codec", PACKING)
def test_other_counts_than_there_are_records(codec: Codec) -> None:
    packed = compress(codec, records_stream(5))
    assert [agrees(sealed(packed, codec, count)) for count in (4, 5, 6)] == [LEFT, BATCH_OK, LEFT]
    assert agrees(sealed(packed, codec, (1 << 31) - 1)) == TOO_LARGE


@pytest.mark.parametrize("codec", PACKING)
def test_the_room_is_exact(codec: Codec) -> None:
    for size in range(ROOM_BYTES - 20, ROOM_BYTES + 1):
        stream = bytes(build_batch([NewRecord(bytes(size), None, NOW)]))[BATCH_HEADER_BYTES:]
        expected = BATCH_OK if len(stream) <= ROOM_BYTES else TOO_LARGE
        assert agrees(sealed(compress(codec, stream), codec, 1)) == expected


@pytest.mark.parametrize("codec", PACKING)
def test_a_bomb_is_too_large_and_what_follows_is_not_affected(codec: Codec) -> None:
    bomb = compress(codec, bytes(16 << 20))
    assert len(bomb) < ROOM_BYTES
    assert agrees(sealed(bomb, codec, 1)) == TOO_LARGE
    assert agrees(sealed(compress(codec, records_stream(3)), codec, 3)) == BATCH_OK


def test_streams_of_several_members() -> None:
    one, two = records_stream(2)[:90], records_stream(2)[90:]
    assert agrees(sealed(gzip.compress(one) + gzip.compress(two), Codec.GZIP, 2)) == BATCH_OK
    frames = compress(Codec.ZSTD, one) + struct.pack("<II", 0x184D2A50, 3) + b"abc"
    assert agrees(sealed(frames + compress(Codec.ZSTD, two), Codec.ZSTD, 2)) == BATCH_OK
    assert agrees(sealed(zlib.compress(one + two), Codec.GZIP, 2)) == LEFT
    assert agrees(sealed(bytes(cramjam.lz4.compress(one + two)), Codec.LZ4, 2)) == BATCH_OK
    assert agrees(sealed(bytes(cramjam.snappy.compress_raw(one + two)), Codec.SNAPPY, 2)) == BATCH_OK


@pytest.mark.parametrize("blocks_bytes", [1, 7, 1000, 1 << 20])
def test_snappy_blocks_of_any_size(blocks_bytes: int) -> None:
    stream, parts = records_stream(40), [SNAPPY_HEADER]
    for at in range(0, len(stream), blocks_bytes):
        block = bytes(cramjam.snappy.compress_raw(stream[at : at + blocks_bytes]))
        parts += (len(block).to_bytes(4), block)
    assert agrees(sealed(b"".join(parts), Codec.SNAPPY, 40)) == BATCH_OK


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 300))
def test_snappy_elements_at_random(elements: bytes, size: int) -> None:
    prefix = bytes((size & 0x7F | 0x80, size >> 7)) if size >= 0x80 else bytes((size,))
    agrees(sealed(prefix + elements, Codec.SNAPPY, 1))


def test_many_empty_members_take_no_longer_than_their_bytes() -> None:
    """Quadratic work took a minute for 5 MB; a deadline of many times what is needed is no race."""
    members = gzip.compress(b"") * 50_000
    started = time.process_time()
    assert agrees(sealed(members[:ROOM_BYTES], Codec.GZIP, 1)) == LEFT
    with pytest.raises(CompressionError):
        decompress(Codec.GZIP, members * 5 + b"x")
    assert decompress(Codec.GZIP, members + gzip.compress(b"end")) == b"end"
    assert time.process_time() - started < 20


def test_offsets_that_are_not_consecutive_are_left() -> None:
    good = records_stream(1)
    assert agrees(sealed(compress(Codec.ZSTD, good + good), Codec.ZSTD, 2)) == LEFT


def test_without_timestamps() -> None:
    batch = bytes(build_batch([NewRecord(b"v", None, NO_TIMESTAMP)], codec=Codec.LZ4))
    assert agrees(batch) == BATCH_OK
    assert UNPACKER.scan(batch).has_null_key


def test_a_wrong_crc_is_told_before_anything_is_unpacked() -> None:
    batch = bytearray(build_batch([NewRecord(b"v")], codec=Codec.ZSTD))
    batch[-1] ^= 1
    assert UNPACKER.scan(batch) == scan_batch(batch)
    struct.pack_into(">I", batch, CRC_AT, checksum(memoryview(batch)[CRC_COVERS_FROM:]))
    assert UNPACKER.scan(batch).record_count == struct.unpack_from(">i", batch, RECORD_COUNT_AT)[0]


@pytest.mark.parametrize("missing", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_codec_without_its_library_is_left_to_python(missing: Codec) -> None:
    unpacker = BatchUnpacker({**LIBRARIES, missing: "libmissing.so.0"})
    assert unpacker.missing() == [LIBRARIES[missing]]
    for codec in PACKING:
        batch = bytes(build_batch([NewRecord(b"v")], codec=codec))
        assert unpacker.scan(batch).verdict == (LEFT if codec is missing else BATCH_OK)
