"""The codecs: both ways, in the framings that others write, and never beyond the bound."""

import gzip
import random
import subprocess
import sys
import zlib
from pathlib import Path

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpbroker.records.compression import (
    SNAPPY_BLOCK_BYTES,
    SNAPPY_HEADER,
    Codec,
    compress,
    decompress,
    packing,
)
from mpbroker.records.errors import CompressionError
from mpbroker.records.pack import ZstdPacking
from mpbroker.records.unpack import LIBRARY_NAMES, Libraries
from mpbroker.records.validation import PACKED_AT_ONCE_BYTES as PIECE_BYTES
from tests.support.forms import rounds

PACKING = [codec for codec in Codec if codec is not Codec.NONE]
TEXT = b'{"user": 12345, "action": "view"}' * 5000


@settings(max_examples=rounds(60), deadline=None)
@given(st.binary(max_size=100_000), st.sampled_from(list(Codec)))
def test_round_trip(data: bytes, codec: Codec) -> None:
    assert decompress(codec, compress(codec, data), len(data)) == data


@pytest.mark.parametrize(
    ("codec", "level"),
    [(Codec.GZIP, 1), (Codec.GZIP, 9), (Codec.LZ4, 1), (Codec.LZ4, 12), (Codec.ZSTD, -5), (Codec.ZSTD, 19)],
)
def test_levels(codec: Codec, level: int) -> None:
    assert decompress(codec, compress(codec, TEXT, level)) == TEXT


@pytest.mark.parametrize("codec", PACKING)
def test_the_bound_is_exact(codec: Codec) -> None:
    packed = compress(codec, TEXT)
    assert decompress(codec, packed, len(TEXT)) == TEXT
    with pytest.raises(CompressionError, match=codec.name.lower()):
        decompress(codec, packed, len(TEXT) - 1)


@pytest.mark.parametrize("codec", PACKING)
def test_every_truncation_and_rubbish_is_one_error(codec: Codec) -> None:
    packed = compress(codec, TEXT[:300] + bytes(range(256)))
    for size in range(len(packed)):
        if codec is Codec.SNAPPY and 0 <= size - len(SNAPPY_HEADER) < 4:
            continue  # nothing, and what is too short for a block
        with pytest.raises(CompressionError):
            decompress(codec, packed[:size])
    for rubbish in (b"", b"\xff" * 40, b"rubbish"):
        with pytest.raises(CompressionError):
            decompress(codec, rubbish)


def test_lz4_blocks_are_independent_for_the_java_client() -> None:
    frame = compress(Codec.LZ4, TEXT)
    assert frame[:4] == bytes.fromhex("04224d18")
    assert frame[4] & 0b1110_0001 == 0b0110_0000


def test_snappy_is_framed_as_by_snappy_java() -> None:
    stream = compress(Codec.SNAPPY, TEXT)
    assert stream.startswith(bytes.fromhex("82534e415050590000000001 00000001".replace(" ", "")))
    blocks, at = 0, len(SNAPPY_HEADER)
    while at < len(stream):
        size = int.from_bytes(stream[at : at + 4])
        assert cramjam.snappy.decompress_raw_len(stream[at + 4 : at + 4 + size]) <= SNAPPY_BLOCK_BYTES
        at += 4 + size
        blocks += 1
    assert blocks == -(-len(TEXT) // SNAPPY_BLOCK_BYTES)


def test_bare_snappy_block() -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT


def test_streams_of_several_members() -> None:
    assert decompress(Codec.GZIP, gzip.compress(b"one") + gzip.compress(b"two")) == b"onetwo"
    assert decompress(Codec.ZSTD, compress(Codec.ZSTD, b"one") + compress(Codec.ZSTD, b"two")) == b"onetwo"
    # What Kafka's clients cannot read is refused: this library makes blocks that depend on each other.
    with pytest.raises(CompressionError, match="dependent blocks"):
        decompress(Codec.LZ4, bytes(cramjam.lz4.compress(TEXT)))
    with pytest.raises(CompressionError):
        decompress(Codec.GZIP, zlib.compress(b"no gzip"))


BOMB = """
import resource, sys
from mpbroker.records.compression import Codec, compress, decompress
from mpbroker.records.errors import CompressionError
codec = Codec(int(sys.argv[1]))
bomb = sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(codec, bomb, 8 << 20)
except CompressionError:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.process
@pytest.mark.parametrize("codec", PACKING)
def test_a_bomb_takes_no_more_memory_than_the_bound(codec: Codec) -> None:
    bomb = compress(codec, bytes(200 << 20), 1 if codec is Codec.GZIP else None)
    assert len(bomb) < 12 << 20
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", BOMB, str(int(codec))],
        input=bomb,
        capture_output=True,
        check=True,
        cwd=root,
        env={"PYTHONPATH": str(root)},
    )
    assert int(done.stdout) * 1024 < 40 << 20


def test_zstd_makes_a_block_of_each_piece_where_a_level_is_slow() -> None:
    """A block of the library's own size takes a tenth of a second with the highest levels."""
    data = memoryview(random.Random(18).randbytes(1 << 19).hex().encode())
    for level, makes in ((3, False), (15, False), (16, True), (22, True)):
        whole, sizes = ZstdPacking(level, len(data)), []
        for at in range(0, len(data), PIECE_BYTES):
            whole.add(data[at : at + PIECE_BYTES])
            sizes.append(whole.size)
        assert (len(set(sizes)) == len(sizes)) == makes
        assert decompress(Codec.ZSTD, whole.finish()) == data


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("piece_bytes", [1000, PIECE_BYTES, 100_000])
def test_pieces_of_any_size_make_one_stream(codec: Codec, piece_bytes: int) -> None:
    data = memoryview(random.Random(18).randbytes(150_000).hex().encode())
    whole = packing(codec, len(data))
    for at in range(0, len(data), piece_bytes):
        whole.add(data[at : at + piece_bytes])
    assert decompress(codec, whole.finish()) == data


def test_zstd_holds_its_writer_to_the_size_that_was_told() -> None:
    whole = ZstdPacking(3, 10)
    whole.add(b"12345")
    with pytest.raises(CompressionError, match="5 bytes of the content are missing"):
        whole.finish()
    with pytest.raises(CompressionError, match="more than"):
        whole.add(b"1234567")


def test_pieces_without_libzstd(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = Libraries(dict.fromkeys(LIBRARY_NAMES, "libnothing.so.0"))
    monkeypatch.setattr("mpbroker.records.compression.LIBRARIES", nothing)
    assert decompress(Codec.ZSTD, compress(Codec.ZSTD, TEXT)) == TEXT
