"""Validates compressed batches for the native produce path, and decompresses streams a piece at a time.

See `unpack.h`.
"""

import mmap

from mpbroker.records.batch cimport BATCH_COMPRESSED, validate_batch

from mpbroker.records.batch import BatchScan, reason_text
from mpbroker.records.errors import CompressionError

ROOM_BYTES = UNPACK_ROOM_BYTES
TOO_LARGE = UNPACK_TOO_LARGE
LEFT = UNPACK_LEFT
LIBRARY_NAMES = {1: "libz.so.1", 3: "liblz4.so.1", 4: "libzstd.so.1"}
_CODEC_NAMES = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}


cdef class Libraries:
    """The compression libraries. `names` has each library's file name, by the codec's number."""

    def __init__(self, names: dict[int, str] = LIBRARY_NAMES):
        cdef bytes zlib = names[1].encode(), lz4 = names[3].encode(), zstd = names[4].encode()
        self.found = load_codecs(&self.codecs, zlib, lz4, zstd)

    def has(self, int codec) -> bool:
        """Return whether streams of the codec can be decompressed."""
        return bool(self.found >> codec & 1)

    def missing(self) -> list[str]:
        """Return the names of the libraries that were not found."""
        return [name for codec, name in LIBRARY_NAMES.items() if not self.has(codec)]


LIBRARIES = Libraries()  # type: Libraries


cdef class BatchUnpacker:
    """Checks compressed batches with a buffer and codec contexts of its own, for one thread."""

    def __init__(self, Libraries libraries=LIBRARIES):
        unpacker_end(&self.ref)
        self.libraries = libraries
        unpacker_init(&self.ref, &libraries.codecs)
        if not unpacker_add_room(&self.ref):
            raise MemoryError(f"no memory for {UNPACK_ROOM_BYTES} bytes to unpack records to")

    def __dealloc__(self):
        unpacker_end(&self.ref)

    def scan(
        self, const uint8_t[::1] data, int32_t max_message_bytes=0x7fffffff, *, bint begins_request=True
    ) -> BatchScan:
        """Check the record data of one partition like `scan_batch`, and check compressed records, too.

        If `begins_request` is False, the data belongs to the same request as the data of the last call, and
        both share the buffer's UNPACK_ROOM_BYTES.
        """
        cdef BatchInfo info
        cdef int verdict
        cdef const uint8_t *p = NULL
        if data.shape[0]:
            p = &data[0]
        if begins_request:
            unpacker_reset(&self.ref)
        with nogil:
            verdict = validate_batch(p, data.shape[0], max_message_bytes, &info)
            if verdict == BATCH_COMPRESSED:
                verdict = unpack_batch(&self.ref, p, &info)
        return BatchScan(
            verdict, reason_text(info.reason), info.bad_record, info.length, info.count,
            info.last_offset_delta, info.attributes, info.codec, info.base_timestamp, info.max_timestamp,
            info.min_timestamp, info.header_max_timestamp, info.producer_id, info.producer_epoch,
            info.base_sequence, bool(info.has_null_key), bool(info.max_timestamp_wrong),
        )


cdef class Unpacking:
    """A compressed stream that is decompressed a piece at a time, to a mapping of its own.

    Only written pages of the mapping take memory. `limit` is the largest decompressed size in bytes. `step`
    raises CompressionError if the codec's library is missing (see `Libraries.has`).
    """

    cdef Unpacker ref
    cdef Libraries libraries
    cdef const uint8_t[::1] data
    cdef uint8_t[::1] out
    cdef object map
    cdef int codec
    cdef int64_t limit
    cdef int result

    def __init__(self, int codec, const uint8_t[::1] data, int64_t limit, Libraries libraries=LIBRARIES):
        cdef const uint8_t *p = NULL
        unpacker_end(&self.ref)
        self.libraries, self.data, self.codec, self.limit = libraries, data, codec, limit
        self.map = mmap.mmap(-1, limit + 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.out = self.map
        if data.shape[0]:
            p = &data[0]
        unpacker_init(&self.ref, &libraries.codecs)
        self.result = unpack_begin(&self.ref, codec, p, data.shape[0], &self.out[0], limit)

    def __dealloc__(self):
        unpacker_end(&self.ref)

    def step(self, int64_t most_bytes) -> bool:
        """Decompress about `most_bytes` bytes more. Return True at the end of the stream.

        Raises CompressionError if the stream is malformed or decompresses to more than the limit.
        """
        if self.result == UNPACK_MORE:
            with nogil:
                self.result = unpack_step(&self.ref, most_bytes)
        if self.result == UNPACK_MORE:
            return False
        if self.result != UNPACK_DONE:
            raise CompressionError(f"{_CODEC_NAMES.get(self.codec, self.codec)}: {self._problem()}")
        return True

    def _problem(self) -> str:
        if self.result == UNPACK_OVER:
            return f"holds more than the bound of {self.limit} bytes"
        if self.result == UNPACK_NONE:
            return f"there is no {LIBRARY_NAMES.get(self.codec, 'library')}, or no memory for its context"
        return f"the stream is malformed or cut off, {self.ref.at} bytes after its start"

    @property
    def stream(self) -> memoryview:
        """Return the bytes decompressed so far."""
        return memoryview(self.map)[: self.ref.at]
