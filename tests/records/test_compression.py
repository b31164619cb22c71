"""The codecs: both ways, in the framings that others write, and never beyond the bound."""

import gzip
import subprocess
import sys
import zlib
from pathlib import Path

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpbroker.records.compression import SNAPPY_BLOCK_BYTES, SNAPPY_HEADER, Codec, compress, decompress
from mpbroker.records.errors import CompressionError

PACKING = [codec for codec in Codec if codec is not Codec.NONE]
TEXT = b'{"user": 12345, "action": "view"}' * 5000


@settings(max_examples=60, deadline=None)
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
        if codec is Codec.SNAPPY and size == len(SNAPPY_HEADER):
            continue
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
    assert decompress(Codec.LZ4, bytes(cramjam.lz4.compress(TEXT))) == TEXT
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
