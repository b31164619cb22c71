"""The native check of compressed batches decides as the reference in Python does, or leaves them to it."""

from __future__ import annotations

import gzip
import random
import struct
import zlib
from typing import Any

import cramjam
import lz4.frame
import pytest
import zstandard
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
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import SNAPPY_HEADER, Codec, compress, decompress
from mpbroker.records.errors import CompressionError, InvalidRecords
from mpbroker.records.record import NewRecord
from mpbroker.records.unpack import (
    LEFT,
    LIBRARIES,
    LIBRARY_NAMES,
    ROOM_BYTES,
    TOO_LARGE,
    BatchUnpacker,
    Libraries,
    Unpacking,
)
from mpbroker.records.validation import TopicPolicy, validate
from tests.support import record_reading
from tests.support.forms import rounds
from tests.support.record_reading import NOW

PACKING = [codec for codec in Codec if codec is not Codec.NONE]
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
    return bytes(record_reading.sealed(stream, count, codec))


def records_stream(count: int, size: int = 100) -> bytes:
    records = [NewRecord(random.Random(i).randbytes(size // 2) * 2, b"k", NOW + i) for i in range(count)]
    return bytes(build_batch(records))[BATCH_HEADER_BYTES:]


def reference(batch: bytes) -> bytes | None:
    """Unpack the batch's stream by cramjam and zlib; None if they refuse it, or it holds nothing."""
    header = scan_batch(batch)
    try:
        return decompress(Codec(header.codec), batch[BATCH_HEADER_BYTES : header.length], ROOM_BYTES) or None
    except CompressionError:
        return None


def in_pieces(batch: bytes, piece_bytes: int, limit: int = ROOM_BYTES) -> bytes | None:
    """Unpack the batch's stream natively, a piece at a time; None if it is refused, or holds nothing."""
    header = scan_batch(batch)
    unpacking = Unpacking(header.codec, batch[BATCH_HEADER_BYTES : header.length], limit)
    try:
        while not unpacking.step(piece_bytes):
            pass
    except CompressionError:
        return None
    return bytes(unpacking.stream) or None


def is_refused(batch: bytes) -> bool:
    try:
        return validate(batch, TopicPolicy(timestamp_after_max_ms=(1 << 63) - 1), now_ms=0).rebuilt
    except InvalidRecords:
        return True


def agrees(batch: bytes) -> int:
    """Compare with the reference, and return the native verdict."""
    found = UNPACKER.scan(batch)
    header = scan_batch(batch)
    stream = reference(batch)
    assert in_pieces(batch, 1 << 20) == stream
    assert in_pieces(batch, 999) == stream
    if stream is None:
        assert found.verdict in (LEFT, TOO_LARGE)
        return found.verdict
    walk = scan_records(stream, header.record_count, header.base_timestamp)
    if walk.reason or not walk.consecutive:
        assert found.verdict in (LEFT, TOO_LARGE)
        return found.verdict
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


def test_all_libraries_are_here() -> None:
    assert LIBRARIES.missing() == []


@pytest.mark.parametrize("codec", PACKING)
@settings(max_examples=rounds(60), deadline=None)
@given(records=record_lists)
def test_good_batches_are_accepted_with_the_same_facts(codec: Codec, records: list[NewRecord]) -> None:
    assert agrees(bytes(build_batch(records, codec=codec))) == BATCH_OK


@pytest.mark.parametrize("codec", PACKING)
def test_every_truncation(codec: Codec) -> None:
    packed = compress(codec, records_stream(20))
    assert agrees(sealed(packed, codec, 20)) == BATCH_OK
    for size in range(len(packed)):
        assert agrees(sealed(packed[:size], codec, 20)) == LEFT


@pytest.mark.parametrize("codec", PACKING)
@pytest.mark.parametrize(
    "behind",
    [
        *(b"\0", bytes(4), bytes(16), bytes(100), b"(\xb5/\xfd", b"\x04\x22\x4d\x18"),
        b"\x1f\x8b\x08" + bytes(15),
        b"\x1f\x8b\x07" + bytes(16),
    ],
)
def test_bytes_behind_the_stream(codec: Codec, behind: bytes) -> None:
    """GZIPInputStream and SnappyInputStream ignore what is too short, or begins like no member at all."""
    is_ignored = codec is Codec.GZIP or (codec is Codec.SNAPPY and len(behind) < 4)
    verdict = agrees(sealed(compress(codec, records_stream(3)) + behind, codec, 3))
    assert verdict == (BATCH_OK if is_ignored else LEFT)


@pytest.mark.parametrize(
    "behind", [b"\x1f\x8b\x08" + bytes(16), compress(Codec.GZIP, b"more")[:-1], compress(Codec.GZIP, b"more")]
)
def test_a_second_member_that_is_malformed_cut_off_or_too_much(behind: bytes) -> None:
    assert agrees(sealed(compress(Codec.GZIP, records_stream(3)) + behind, Codec.GZIP, 3)) == LEFT


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.ZSTD])
def test_streams_one_after_the_other(codec: Codec) -> None:
    stream = records_stream(30)
    parts = [compress(codec, stream[at : at + 100]) for at in range(0, len(stream), 100)]
    assert len(parts) > 2
    assert agrees(sealed(b"".join(parts), codec, 30)) == BATCH_OK
    assert agrees(sealed(b"".join(parts[:-1]) + parts[-1][:10], codec, 30)) == LEFT


def test_a_snappy_stream_without_blocks_between_others() -> None:
    packed = compress(Codec.SNAPPY, records_stream(3))
    assert agrees(sealed(SNAPPY_HEADER * 2 + packed + SNAPPY_HEADER, Codec.SNAPPY, 3)) == BATCH_OK
    assert agrees(sealed(packed + SNAPPY_HEADER[:15], Codec.SNAPPY, 3)) == LEFT


def lz4_frames() -> dict[str, bytes]:
    stream = records_stream(30)
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "content checksum": {"content_checksum": True},
        "block checksums": {"block_checksum": True},
        "large blocks": {"block_size": lz4.frame.BLOCKSIZE_MAX4MB},
        "no content size": {"store_size": False},
    }
    apart = {"block_linked": False}
    return {name: lz4.frame.compress(stream, **apart, **settings) for name, settings in kinds.items()}


def test_lz4_frames_that_kafka_cannot_read() -> None:
    """Blocks that depend on each other are what these libraries make by default."""
    stream = records_stream(1_000)
    linked = lz4.frame.compress(stream, block_size=lz4.frame.BLOCKSIZE_MAX64KB)
    for frame in (linked, bytes(cramjam.lz4.compress(stream))):
        assert not frame[4] & 0x20
        assert agrees(sealed(frame, Codec.LZ4, 1_000)) == LEFT


def test_streams_that_unpack_to_nothing_take_room_of_their_request() -> None:
    nothing = struct.pack("<II", 0x184D2A50, 0) * 50_000
    batch = sealed(nothing + zstandard.ZstdCompressor().compress(records_stream(1)), Codec.ZSTD, 1)
    assert len(batch) < ROOM_BYTES // 2
    verdicts = [UNPACKER.scan(batch, begins_request=number == 0).verdict for number in range(4)]
    assert verdicts == [BATCH_OK, BATCH_OK, TOO_LARGE, TOO_LARGE]


def test_tiny_frames_are_unpacked_many_at_a_time() -> None:
    nothing = struct.pack("<II", 0x184D2A50, 0) * 50_000
    unpacking = Unpacking(Codec.ZSTD, nothing + zstandard.ZstdCompressor().compress(b"x"), ROOM_BYTES)
    steps = 1
    while not unpacking.step(1 << 20):
        steps += 1
    assert steps < 5
    assert bytes(unpacking.stream) == b"x"


def zstd_frames() -> dict[str, bytes]:
    stream = records_stream(30)
    made = {
        "checksum": zstandard.ZstdCompressor(write_checksum=True).compress(stream),
        "checksum, no content size": zstandard.ZstdCompressor(
            write_checksum=True, write_content_size=False
        ).compress(stream),
        "checksum, level 19": zstandard.ZstdCompressor(level=19, write_checksum=True).compress(stream),
    }
    return {**made, "skippable": struct.pack("<II", 0x184D2A5F, 5) + b"12345" + made["checksum"]}


def streams() -> dict[str, tuple[Codec, bytes]]:
    """Streams of 30 records, with checksums where the format has them."""
    found = {"gzip": (Codec.GZIP, gzip.compress(records_stream(30), mtime=0))}
    found |= {"gzip stored": (Codec.GZIP, gzip.compress(records_stream(30), 0, mtime=0))}
    found |= {"snappy": (Codec.SNAPPY, compress(Codec.SNAPPY, records_stream(30)))}
    found |= {f"lz4 {name}": (Codec.LZ4, frame) for name, frame in lz4_frames().items()}
    return found | {f"zstd {name}": (Codec.ZSTD, frame) for name, frame in zstd_frames().items()}


STREAMS = streams()


@pytest.mark.parametrize("name", STREAMS)
def test_other_writers_streams(name: str) -> None:
    codec, packed = STREAMS[name]
    assert agrees(sealed(packed, codec, 30)) == BATCH_OK


@pytest.mark.parametrize("name", STREAMS)
def test_flipped_bits(name: str) -> None:
    """Flip each bit of the first bytes, where headers are, and some bits of all."""
    codec, packed = STREAMS[name]
    chance = random.Random(18)
    flips = [[bit] for bit in range(8 * 40)]
    flips += [[chance.randrange(8 * len(packed)) for _ in range(chance.randint(1, 3))] for _ in range(700)]
    for bits in flips:
        flipped = bytearray(packed)
        for bit in bits:
            flipped[bit // 8] ^= 1 << bit % 8
        agrees(sealed(bytes(flipped), codec, 30))


def test_flipped_bits_of_zstd_without_a_checksum() -> None:
    """What a decoder notices without a checksum differs between versions of the library.

    Both ways through the broker use the same one, so they must not differ.
    """
    packed = compress(Codec.ZSTD, records_stream(30))
    chance = random.Random(19)
    accepted = 0
    for _ in range(3000):
        flipped = bytearray(packed)
        flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
        batch = sealed(bytes(flipped), Codec.ZSTD, 30)
        verdict = UNPACKER.scan(batch).verdict
        assert (verdict == BATCH_OK) == (not is_refused(batch))
        accepted += verdict == BATCH_OK
    assert accepted


def xxhash32(data: bytes) -> int:
    """Return the checksum of fewer than 16 bytes (xxhash_spec.md)."""
    primes = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
    hashed, words = primes[4] + len(data), len(data) // 4 * 4
    parts = [(word * primes[2], 17, primes[3]) for (word,) in struct.iter_unpack("<I", data[:words])]
    parts += [(byte * primes[4], 11, primes[0]) for byte in data[words:]]
    for added, turned, prime in parts:
        hashed = (hashed + added) & 0xFFFFFFFF
        hashed = ((hashed << turned | hashed >> 32 - turned) & 0xFFFFFFFF) * prime & 0xFFFFFFFF
    for shift, prime in ((15, primes[1]), (13, primes[2])):
        hashed = (hashed ^ hashed >> shift) * prime & 0xFFFFFFFF
    return hashed ^ hashed >> 16


def lz4_descriptor(frame: bytes, flags: int, fields: bytes) -> bytes:
    """Replace flags and optional fields of a frame without any, and mend the checksum of its header."""
    header = bytes((flags, frame[5])) + fields
    checksum = xxhash32(header) >> 8 & 0xFF
    return frame[:4] + header + bytes((checksum,)) + frame[7:]


def test_lz4_headers_that_lie() -> None:
    stream = records_stream(30)
    frame = lz4.frame.compress(stream, store_size=False)
    flags = frame[4]
    sizes = [(len(stream), BATCH_OK), (len(stream) - 1, LEFT), (len(stream) + 1, LEFT), (1 << 60, LEFT)]
    for size, verdict in sizes:
        with_size = lz4_descriptor(frame, flags | 8, struct.pack("<Q", size))
        assert agrees(sealed(with_size, Codec.LZ4, 30)) == verdict
    agrees(sealed(lz4_descriptor(frame, flags | 1, b"dict"), Codec.LZ4, 30))
    agrees(sealed(lz4_descriptor(frame, flags | 2, b""), Codec.LZ4, 30))


def test_zstd_headers_that_lie() -> None:
    stream = records_stream(30)
    compressor = zstandard.ZstdCompressor(write_checksum=False)
    frame = bytearray(compressor.compress(stream))
    assert frame[4] == 0x60, "a single segment with a content size of two bytes"
    for size in (0, 1, len(stream) - 257, len(stream) - 255, 0xFFFF):
        frame[5:7] = struct.pack("<H", size & 0xFFFF)
        assert agrees(sealed(bytes(frame), Codec.ZSTD, 30)) in (LEFT, TOO_LARGE)
    trained = zstandard.ZstdCompressionDict(b"r" * 1000 + stream[:500])
    with_dictionary = zstandard.ZstdCompressor(dict_data=trained).compress(stream)
    assert agrees(sealed(with_dictionary, Codec.ZSTD, 30)) == LEFT


@pytest.mark.parametrize(
    ("window", "is_read", "in_turn"),
    [
        (0x00, False, False),
        (0x18, True, True),
        (13 << 3, True, True),
        (13 << 3 | 1, True, False),
        (17 << 3, True, False),
        (17 << 3 | 1, False, False),
        (0xFF, False, False),
    ],
)
def test_zstd_windows(window: int, is_read: bool, in_turn: bool) -> None:
    """The turn reads windows to 8 MiB, by which the memory of its context is bounded; others, to 128 MiB."""
    frame = bytearray(zstandard.ZstdCompressor(write_content_size=False).compress(records_stream(30)))
    assert frame[4] == 0, "a window and no content size"
    frame[5] = window
    batch = sealed(bytes(frame), Codec.ZSTD, 30)
    assert (UNPACKER.scan(batch).verdict == BATCH_OK) == in_turn
    assert (in_pieces(batch, 1000) is not None) == is_read
    assert (reference(batch) is not None) == is_read
    assert is_refused(batch) != is_read


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
    assert agrees(sealed(frames + compress(Codec.ZSTD, two)[:-1], Codec.ZSTD, 2)) == LEFT
    assert agrees(sealed(zlib.compress(one + two), Codec.GZIP, 2)) == LEFT
    assert agrees(sealed(lz4.frame.compress(one + two, block_linked=False), Codec.LZ4, 2)) == BATCH_OK
    assert agrees(sealed(compress(Codec.LZ4, one) + compress(Codec.LZ4, two), Codec.LZ4, 2)) == LEFT
    skipped = struct.pack("<II", 0x184D2A50, 3) + b"abc" + compress(Codec.LZ4, one + two)
    assert agrees(sealed(skipped, Codec.LZ4, 2)) == LEFT
    assert agrees(sealed(bytes(cramjam.snappy.compress_raw(one + two)), Codec.SNAPPY, 2)) == BATCH_OK


@pytest.mark.parametrize("codec", PACKING)
@pytest.mark.parametrize("piece_bytes", [1, 100, 5000])
def test_pieces_are_as_small_as_wanted(codec: Codec, piece_bytes: int) -> None:
    """A literal of snappy is copied whole; there are none here that are longer than 60 bytes."""
    stream = records_stream(200)
    unpacking, before = Unpacking(codec, compress(codec, stream), len(stream)), 0
    while not unpacking.step(piece_bytes):
        made = len(unpacking.stream)
        assert made - before <= piece_bytes + (64 if codec is Codec.SNAPPY else 0)
        before = made
    assert unpacking.stream == stream
    assert unpacking.step(1)


@pytest.mark.parametrize("codec", PACKING)
def test_one_byte_more_than_the_limit(codec: Codec) -> None:
    stream = records_stream(200)
    batch = sealed(compress(codec, stream), codec, 200)
    for piece_bytes in (100, len(stream) - 1, len(stream), 1 << 20):
        assert in_pieces(batch, piece_bytes, len(stream)) == stream
        assert in_pieces(batch, piece_bytes, len(stream) - 1) is None


def test_without_a_library() -> None:
    nothing = Libraries(dict.fromkeys(LIBRARY_NAMES, "libnothing.so.0"))
    assert nothing.missing() == list(LIBRARY_NAMES.values())
    assert nothing.has(Codec.SNAPPY)
    unpacker = BatchUnpacker(nothing)
    for codec in PACKING:
        batch = sealed(compress(codec, records_stream(3)), codec, 3)
        assert unpacker.scan(batch).verdict == (BATCH_OK if codec is Codec.SNAPPY else LEFT)
        if codec is not Codec.SNAPPY:
            with pytest.raises(CompressionError, match=r"libnothing|there is no lib"):
                Unpacking(codec, b"x", 10, nothing).step(1)


@pytest.mark.parametrize("blocks_bytes", [1, 7, 1000, 1 << 20])
def test_snappy_blocks_of_any_size(blocks_bytes: int) -> None:
    stream, parts = records_stream(40), [SNAPPY_HEADER]
    for at in range(0, len(stream), blocks_bytes):
        block = bytes(cramjam.snappy.compress_raw(stream[at : at + blocks_bytes]))
        parts += (len(block).to_bytes(4), block)
    assert agrees(sealed(b"".join(parts), Codec.SNAPPY, 40)) == BATCH_OK


@settings(max_examples=rounds(300), deadline=None)
@given(st.binary(max_size=60), st.integers(0, 300))
def test_snappy_elements_at_random(elements: bytes, size: int) -> None:
    prefix = bytes((size & 0x7F | 0x80, size >> 7)) if size >= 0x80 else bytes((size,))
    agrees(sealed(prefix + elements, Codec.SNAPPY, 1))


def test_many_empty_members_are_read_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that copies what is behind each member, for each anew, takes a minute for 5 MB."""
    fed, decompressobj = [], zlib.decompressobj

    class Counting:
        def __init__(self, wbits: int) -> None:
            self._member = decompressobj(wbits=wbits)

        def decompress(self, data: memoryview, most: int) -> bytes:
            fed.append(len(data))
            return self._member.decompress(data, most)

        def __getattr__(self, name: str) -> object:
            return getattr(self._member, name)

    monkeypatch.setattr("mpbroker.records.compression.zlib.decompressobj", Counting)
    members = gzip.compress(b"") * 5000
    assert decompress(Codec.GZIP, members + gzip.compress(b"end")) == b"end"
    assert sum(fed) < 20 * len(members)


def test_many_empty_members() -> None:
    members = gzip.compress(b"") * 5000
    stream = records_stream(3)
    assert agrees(sealed(members + gzip.compress(stream) + members, Codec.GZIP, 3)) == BATCH_OK
    assert agrees(sealed(members, Codec.GZIP, 1)) == LEFT


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
