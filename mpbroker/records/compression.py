"""Compresses and decompresses the records of a batch, up to a limit on their size (Kafka: common/compress).

`decompress` decompresses a whole stream. Readers use it, and it is the reference for `unpack.h`, with which
the broker validates batches. Compression can be done in pieces (`Packing`).

Only the bytes after the batch header are compressed, as one stream:
gzip     RFC 1952 members, one or more. Other bytes after them are ignored, as by Java's GZIPInputStream.
snappy   The framing of snappy-java ("xerial"): magic, version, compatible version, then blocks, each
         preceded by its size; another stream may follow. A single block without the framing, which some
         clients send, is read too.
lz4      One LZ4 frame that fills the stream. The written blocks are independent, since the Java client
         refuses dependent blocks.
zstd     Zstandard frames.

lz4 and zstd decompress into a private mapping of the size of the limit, so that a decompression bomb causes
an error and does not take more memory. Only written pages take memory.
"""

from __future__ import annotations

import mmap
import struct
import threading
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol

import cramjam

from mpbroker.records.errors import CompressionError
from mpbroker.records.pack import ZstdPacking
from mpbroker.records.unpack import LIBRARIES

if TYPE_CHECKING:
    from typing_extensions import Buffer

DEFAULT_LIMIT_BYTES: Final = 100 << 20
KEPT_SCRATCH_BYTES: Final = 1 << 20

SNAPPY_HEADER: Final = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
SNAPPY_BLOCK_BYTES: Final = 32 << 10
SNAPPY_SIZE_BYTES: Final = 4
SNAPPY_MAGIC: Final = SNAPPY_HEADER[:-8]
GZIP_MAGIC: Final = b"\x1f\x8b\x08"
# A further member of no more bytes than a header, a block and a trailer is ignored.
GZIP_SMALLEST_BYTES: Final = 18
LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
# Version, block independence and dictionary id in the flags of a frame, and the only values that Kafka reads.
LZ4_FLAGS_READ, LZ4_FLAGS_KAFKA = 0xE3, 0x60

# For each member zlib copies the rest of its input. Pieces that begin small and double keep that linear, also
# for a stream of many empty members.
GZIP_FIRST_PIECE_BYTES: Final = 256
GZIP_PIECE_BYTES: Final = 1 << 20

LZ4_FAST_LEVEL: Final = 1
"""The library's level for Kafka's default level 9, with which Kafka's LZ4 uses its fast compressor."""


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
    """A thread's mapping to which decompressors write. It is private, so that forked processes share none."""

    def __init__(self) -> None:
        self.map: mmap.mmap | None = None

    def of(self, size: int) -> mmap.mmap:
        if self.map is None or len(self.map) < size:
            self.map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return self.map


_scratch = _Scratch()


class Packing(Protocol):
    """A stream that is compressed a piece at a time: `add` takes a piece, `finish` returns the result."""

    def add(self, data: memoryview) -> object: ...

    def finish(self) -> Buffer: ...


def packing(codec: Codec, size: int, level: int | None = None) -> Packing:
    """Return a Packing for pieces of `size` bytes in total. `level` None is Kafka's default level."""
    if level is None:
        level = DEFAULT_LEVELS.get(codec, 0)
    return _PACKINGS[codec](size, level)


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Return the data compressed as one stream. `level` None is Kafka's default level."""
    view = memoryview(data).cast("B")
    whole = packing(codec, len(view), level)
    whole.add(view)
    return bytes(whole.finish())


def decompress(codec: Codec, data: Buffer, limit: int = DEFAULT_LIMIT_BYTES) -> bytes:
    """Return the decompressed stream.

    Raises CompressionError if `data` is malformed or decompresses to more than `limit` bytes.
    """
    view = memoryview(data).cast("B")
    try:
        return _DECOMPRESSORS[codec](view, limit)
    except (cramjam.DecompressionError, zlib.error) as error:
        raise CompressionError(f"{codec.name.lower()}: {error} (bound: {limit} bytes)") from error


class _Plain:
    def __init__(self, _size: int, _level: int) -> None:
        self._data = bytearray()

    def add(self, data: memoryview) -> None:
        self._data += data

    def finish(self) -> bytearray:
        return self._data


class _Gzip:
    def __init__(self, _size: int, level: int) -> None:
        self._stream = zlib.compressobj(level, wbits=31)
        self._data = bytearray()

    def add(self, data: memoryview) -> None:
        self._data += self._stream.compress(data)

    def finish(self) -> bytearray:
        self._data += self._stream.flush()
        return self._data


class _Snappy:
    """Compresses blocks of SNAPPY_BLOCK_BYTES; writes the compressed size before each block."""

    def __init__(self, _size: int, _level: int) -> None:
        self._data = bytearray(SNAPPY_HEADER)
        self._waiting = bytearray()

    def add(self, data: memoryview) -> None:
        if not self._waiting:
            whole = len(data) - len(data) % SNAPPY_BLOCK_BYTES
            for at in range(0, whole, SNAPPY_BLOCK_BYTES):
                self._add_block(data[at : at + SNAPPY_BLOCK_BYTES])
            data = data[whole:]
        self._waiting += data
        while len(self._waiting) >= SNAPPY_BLOCK_BYTES:
            self._add_block(memoryview(self._waiting[:SNAPPY_BLOCK_BYTES]))
            del self._waiting[:SNAPPY_BLOCK_BYTES]

    def _add_block(self, data: memoryview) -> None:
        block = bytes(cramjam.snappy.compress_raw(data))
        self._data += len(block).to_bytes(4)
        self._data += block

    def finish(self) -> bytearray:
        if self._waiting:
            self._add_block(memoryview(self._waiting))
        return self._data


class _Lz4:
    def __init__(self, _size: int, level: int) -> None:
        self._frame = cramjam.lz4.Compressor(
            level=LZ4_FAST_LEVEL if level == DEFAULT_LEVELS[Codec.LZ4] else level,
            content_checksum=False,
            block_linked=False,
        )

    def add(self, data: memoryview) -> None:
        self._frame.compress(bytes(data))

    def finish(self) -> bytes:
        return bytes(self._frame.finish())


class _ZstdAtOnce:
    """Compresses all data in `finish`, on hosts without libzstd. (cramjam's streams take more memory.)"""

    def __init__(self, _size: int, level: int) -> None:
        self._level = level
        self._data = bytearray()

    def add(self, data: memoryview) -> None:
        self._data += data

    def finish(self) -> bytes:
        return bytes(cramjam.zstd.compress(self._data, self._level))


def _zstd(size: int, level: int) -> Packing:
    return ZstdPacking(level, size) if LIBRARIES.has(Codec.ZSTD) else _ZstdAtOnce(size, level)


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
        if len(data) - at <= GZIP_SMALLEST_BYTES or bytes(data[at : at + 3]) != GZIP_MAGIC:
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
    _check_lz4_end(data)
    return _into_scratch(cramjam.lz4.decompress_into, data, limit)


def _check_lz4_end(data: memoryview) -> None:
    """Raise CompressionError if the data is not exactly one frame of the kind that Kafka's clients read.

    The decoder itself accepts a frame without an end mark, and ignores bytes after a frame.
    (lz4_Frame_format.md; Kafka: Lz4BlockInputStream)
    """
    flags = data[4] if len(data) > 4 else 0
    if bytes(data[:4]) != LZ4_MAGIC:
        raise CompressionError("lz4: the stream does not begin with a frame")
    if flags & LZ4_FLAGS_READ != LZ4_FLAGS_KAFKA:
        raise CompressionError("lz4: the frame has dependent blocks, a dictionary or another version")
    at = 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    while (size := int.from_bytes(data[at : at + 4], "little")) and at + 4 <= len(data):
        at += 4 + (size & 0x7FFFFFFF) + (4 if flags & 0x10 else 0)
    if at + 4 + (4 if flags & 0x04 else 0) != len(data):
        raise CompressionError("lz4: the frame is cut off, or bytes follow it")


def _zstd_decompress(data: memoryview, limit: int) -> bytes:
    return _into_scratch(cramjam.zstd.decompress_into, data, limit)


def _snappy_block(block: memoryview, room: int, limit: int) -> bytes:
    """Decompress one raw block. Raise CompressionError, which names `limit`, for more than `room` bytes."""
    if cramjam.snappy.decompress_raw_len(block) > room:
        raise CompressionError(f"snappy: holds more than the bound of {limit} bytes")
    return bytes(cramjam.snappy.decompress_raw(block))


def _snappy_decompress(data: memoryview, limit: int) -> bytes:
    if data[: len(SNAPPY_MAGIC)] != SNAPPY_MAGIC:
        return _snappy_block(data, limit, limit)
    parts, room, at = [], limit, 0
    while len(data) - at >= SNAPPY_SIZE_BYTES:
        if data[at : at + len(SNAPPY_MAGIC)] == SNAPPY_MAGIC:
            at += len(SNAPPY_HEADER)
            if at > len(data):
                raise CompressionError("snappy: the stream header is cut off")
            continue
        size = int.from_bytes(data[at : at + 4], signed=True)
        block = data[at + 4 : at + 4 + size]
        if size <= 0 or len(block) < size:
            raise CompressionError("snappy: a block is cut off")
        parts.append(_snappy_block(block, room, limit))
        room -= len(parts[-1])
        at += 4 + size
    return b"".join(parts)


_PACKINGS: Final[dict[Codec, Callable[[int, int], Packing]]] = {
    Codec.NONE: _Plain,
    Codec.GZIP: _Gzip,
    Codec.SNAPPY: _Snappy,
    Codec.LZ4: _Lz4,
    Codec.ZSTD: _zstd,
}
_DECOMPRESSORS: Final[dict[Codec, Callable[[memoryview, int], bytes]]] = {
    Codec.NONE: _plain,
    Codec.GZIP: _gzip_decompress,
    Codec.SNAPPY: _snappy_decompress,
    Codec.LZ4: _lz4_decompress,
    Codec.ZSTD: _zstd_decompress,
}
