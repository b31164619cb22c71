"""The codecs of a record batch, with a bound on the size they decompress to (Kafka: common/compress).

Only the bytes behind the batch header are compressed, as one stream:
gzip     RFC 1952 members, one or more.
snappy   the framing of snappy-java ("xerial"): magic, version, compatible version, then blocks, each
         behind its size. A bare block without the framing, which some clients send, is read too.
lz4      LZ4 frames of independent blocks; the Java client refuses dependent ones.
zstd     Zstandard frames.

lz4 and zstd decompress into a private mapping no larger than the bound, so that a decompression bomb gets an
error instead of more memory. Only pages that were written take memory.
"""

from __future__ import annotations

import mmap
import struct
import threading
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import cramjam

from mpbroker.records.errors import CompressionError

if TYPE_CHECKING:
    from typing_extensions import Buffer

DEFAULT_LIMIT_BYTES: Final = 100 << 20
KEPT_SCRATCH_BYTES: Final = 1 << 20

SNAPPY_HEADER: Final = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
SNAPPY_BLOCK_BYTES: Final = 32 << 10

# zlib copies what lies behind a member, for each member anew. Pieces that begin small and double keep that
# linear, also for a stream of many empty members.
GZIP_FIRST_PIECE_BYTES: Final = 256
GZIP_PIECE_BYTES: Final = 1 << 20

LZ4_FAST_LEVEL: Final = 1
"""The level to pass for Kafka's default, 9, which means the fast compressor. Others mean the high one."""


class Codec(IntEnum):
    """The codec, in bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


DEFAULT_LEVELS: Final = {Codec.GZIP: -1, Codec.LZ4: 9, Codec.ZSTD: 3}
"""Kafka's defaults of compression.gzip.level, compression.lz4.level and compression.zstd.level."""


class _Scratch(threading.local):
    """A mapping per thread that decompressors write to. It is private, so that a forked child has its own."""

    def __init__(self) -> None:
        self.map: mmap.mmap | None = None

    def of(self, size: int) -> mmap.mmap:
        if self.map is None or len(self.map) < size:
            self.map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return self.map


_scratch = _Scratch()


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Return the data as one stream of the codec. `level`: Kafka's default if None."""
    if level is None:
        level = DEFAULT_LEVELS.get(codec, 0)
    return _COMPRESSORS[codec](memoryview(data).cast("B"), level)


def decompress(codec: Codec, data: Buffer, limit: int = DEFAULT_LIMIT_BYTES) -> bytes:
    """Return the decompressed stream.

    Raises CompressionError if it is malformed or decompresses to more than `limit` bytes.
    """
    view = memoryview(data).cast("B")
    try:
        return _DECOMPRESSORS[codec](view, limit)
    except (cramjam.DecompressionError, zlib.error) as error:
        raise CompressionError(f"{codec.name.lower()}: {error} (bound: {limit} bytes)") from error


def _gzip_compress(data: memoryview, level: int) -> bytes:
    return zlib.compress(data, level, wbits=31)


def _snappy_compress(data: memoryview, _level: int) -> bytes:
    parts = [SNAPPY_HEADER]
    for at in range(0, len(data), SNAPPY_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + SNAPPY_BLOCK_BYTES]))
        parts += (len(block).to_bytes(4), block)
    return b"".join(parts)


def _lz4_compress(data: memoryview, level: int) -> bytes:
    compressor = cramjam.lz4.Compressor(
        level=LZ4_FAST_LEVEL if level == DEFAULT_LEVELS[Codec.LZ4] else level,
        content_checksum=False,
        block_linked=False,
    )
    compressor.compress(bytes(data))
    return bytes(compressor.finish())


def _zstd_compress(data: memoryview, level: int) -> bytes:
    return bytes(cramjam.zstd.compress(data, level))


def _plain(data: memoryview, limit: int) -> bytes:
    if len(data) > limit:
        raise CompressionError(f"{len(data)} bytes of records exceed the bound of {limit}")
    return bytes(data)


def _gzip_decompress(data: memoryview, limit: int) -> bytes:
    parts: list[bytes] = []
    room, at = limit, 0
    while True:
        member, piece = zlib.decompressobj(wbits=31), GZIP_FIRST_PIECE_BYTES
        while not member.eof:
            if at == len(data):
                raise CompressionError("gzip: the stream is cut off")
            fed = data[at : at + piece]
            part = member.decompress(fed, room + 1)
            if len(part) > room:
                raise CompressionError(f"gzip: holds more than the bound of {limit} bytes")
            if part:
                parts.append(part)
            room -= len(part)
            at += len(fed) - len(member.unused_data)
            piece = min(2 * piece, GZIP_PIECE_BYTES)
        if at == len(data):
            return b"".join(parts)


def _into_scratch(unpack: Callable[[memoryview, memoryview], int], data: memoryview, limit: int) -> bytes:
    scratch = _scratch.of(max(limit, 1))
    with memoryview(scratch) as whole, whole[:limit] as bounded:
        try:
            size = unpack(data, bounded)
        except cramjam.DecompressionError:
            scratch.madvise(mmap.MADV_DONTNEED)
            raise
        unpacked = bytes(bounded[:size])
    if size > KEPT_SCRATCH_BYTES:
        scratch.madvise(mmap.MADV_DONTNEED)
    return unpacked


def _lz4_decompress(data: memoryview, limit: int) -> bytes:
    return _into_scratch(cramjam.lz4.decompress_into, data, limit)


def _zstd_decompress(data: memoryview, limit: int) -> bytes:
    return _into_scratch(cramjam.zstd.decompress_into, data, limit)


def _snappy_block(block: memoryview, room: int, limit: int) -> bytes:
    """Decompress one raw block. It begins with its decompressed size, so check the bound first."""
    if cramjam.snappy.decompress_raw_len(block) > room:
        raise CompressionError(f"snappy: holds more than the bound of {limit} bytes")
    return bytes(cramjam.snappy.decompress_raw(block))


def _snappy_decompress(data: memoryview, limit: int) -> bytes:
    if data[: len(SNAPPY_HEADER) - 8] != SNAPPY_HEADER[:-8]:
        return _snappy_block(data, limit, limit)
    if len(data) < len(SNAPPY_HEADER):
        raise CompressionError("snappy: the stream header is cut off")
    parts, room, at = [], limit, len(SNAPPY_HEADER)
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], signed=True)
        block = data[at + 4 : at + 4 + size]
        if size <= 0 or len(block) < size:
            raise CompressionError("snappy: a block is cut off")
        parts.append(_snappy_block(block, room, limit))
        room -= len(parts[-1])
        at += 4 + size
    return b"".join(parts)


_COMPRESSORS: Final[dict[Codec, Callable[[memoryview, int], bytes]]] = {
    Codec.NONE: lambda data, _level: bytes(data),
    Codec.GZIP: _gzip_compress,
    Codec.SNAPPY: _snappy_compress,
    Codec.LZ4: _lz4_compress,
    Codec.ZSTD: _zstd_compress,
}
_DECOMPRESSORS: Final[dict[Codec, Callable[[memoryview, int], bytes]]] = {
    Codec.NONE: _plain,
    Codec.GZIP: _gzip_decompress,
    Codec.SNAPPY: _snappy_decompress,
    Codec.LZ4: _lz4_decompress,
    Codec.ZSTD: _zstd_decompress,
}
