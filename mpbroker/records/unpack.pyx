"""Native validation of compressed batches, for the produce turn and for tests. See `unpack.h`."""

from mpbroker.records.batch cimport BATCH_COMPRESSED, BatchInfo, validate_batch

from mpbroker.records.batch import BatchScan, reason_text

ROOM_BYTES = UNPACK_ROOM_BYTES
TOO_LARGE = UNPACK_TOO_LARGE
LEFT = UNPACK_LEFT
LIBRARIES = {1: "libz.so.1", 3: "liblz4.so.1", 4: "libzstd.so.1"}


cdef class BatchUnpacker:
    """A buffer and the contexts of the codecs, for one thread. `libraries`: file names by number of codec."""

    def __init__(self, dict libraries=LIBRARIES):
        cdef bytes zlib = libraries[1].encode(), lz4 = libraries[3].encode(), zstd = libraries[4].encode()
        unpacker_end(&self.ref)
        self.found = load_codecs(&self.codecs, zlib, lz4, zstd)
        if not unpacker_begin(&self.ref, &self.codecs):
            raise MemoryError(f"no memory for {UNPACK_ROOM_BYTES} bytes to unpack records to")

    def __dealloc__(self):
        unpacker_end(&self.ref)

    def missing(self) -> list[str]:
        """Return the libraries that are not there: batches of their codecs take the way through Python."""
        return [library for codec, library in LIBRARIES.items() if not self.found >> codec & 1]

    def scan(self, const uint8_t[::1] data, int32_t max_message_bytes=0x7fffffff) -> BatchScan:
        """Check the record data of one partition like `scan_batch`, and walk compressed records, too."""
        cdef BatchInfo info
        cdef int verdict
        cdef const uint8_t *p = NULL
        if data.shape[0]:
            p = &data[0]
        with nogil:
            verdict = validate_batch(p, data.shape[0], max_message_bytes, &info)
            if verdict == BATCH_COMPRESSED:
                unpacker_reset(&self.ref)
                verdict = unpack_batch(&self.ref, p, &info)
        return BatchScan(
            verdict, reason_text(info.reason), info.bad_record, info.length, info.count,
            info.last_offset_delta, info.attributes, info.codec, info.base_timestamp, info.max_timestamp,
            info.min_timestamp, info.header_max_timestamp, info.producer_id, info.producer_epoch,
            info.base_sequence, bool(info.has_null_key), bool(info.max_timestamp_wrong),
        )
