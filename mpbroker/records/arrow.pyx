"""Decodes record batches in a memory range into buffers of Apache Arrow's layout.

The range may be a mapped part of a segment: nothing outside of [pos, end) is read, even if bytes are damaged.
The first call imports pyarrow, whose allocator allocates the buffers. malloc would return the pages of large
buffers to the kernel after each batch and fault them in again, which halves the speed.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uintptr_t
from libc.string cimport memset

from mpbroker.records cimport batch as c
from mpbroker.records.aborted cimport AbortedRanges

from typing import NamedTuple, TYPE_CHECKING

from mpbroker.records.batch import reason_text
from mpbroker.records.compression import DEFAULT_LIMIT_BYTES, Codec, decompress
from mpbroker.records.errors import CompressionError, CorruptBatch

if TYPE_CHECKING:
    from collections.abc import Collection

cdef extern from "mpbroker/records/arrow_columns.h" nogil:
    enum:
        COPY_SLACK_BYTES

    ctypedef struct BinaryColumn:
        int32_t *offsets
        uint8_t *data
        uint8_t *validity
        int64_t used
        int64_t nulls

    ctypedef struct ArrowColumns:
        BinaryColumn key
        BinaryColumn value
        int64_t *offset
        int64_t *timestamp_us
        int32_t *timestamp_type
        int32_t *header_lists
        uint8_t *header_validity
        int64_t header_nulls
        BinaryColumn header_key
        BinaryColumn header_value
        int64_t headers
        int64_t rows

    int append_records(ArrowColumns *columns, const uint8_t *p, const uint8_t *end, const c.BatchInfo *info,
                       int64_t base_offset, int64_t lo, int64_t hi) noexcept
    int64_t count_headers(const uint8_t *p, const uint8_t *end, int32_t count) noexcept

COLUMNS = ("key", "value", "offset", "timestamp", "timestampType", "headers")
HEADER_KEY_GROWTH = 3  # a byte that is not UTF-8 becomes U+FFFD, which has three bytes

# A few stored bytes may be very many unpacked ones: each batch of a range alone may be as large as its limit.
cdef int64_t UNPACKED_FACTOR = 16
cdef int64_t LARGEST_COLUMN_BYTES = INT32_MAX // HEADER_KEY_GROWTH  # Arrow's offsets are int32

_allocate = None


class FixedBuffers(NamedTuple):
    """The buffer of a column of numbers without nulls."""

    data: object


class BinaryBuffers(NamedTuple):
    """The buffers of a column of bytes or text; validity is None if there are no nulls."""

    nulls: int
    validity: object
    offsets: object
    data: object


class HeaderBuffers(NamedTuple):
    """The buffers of the headers column: for each record a list of (key, value), or null without headers."""

    nulls: int
    validity: object
    lists: object
    header_count: int
    key: BinaryBuffers
    value: BinaryBuffers


cdef class _Growable:
    """A resizable Arrow buffer. With `zeroed`, new bytes are set to 0."""

    cdef object buffer
    cdef uint8_t *address
    cdef int64_t capacity
    cdef bint zeroed

    def __init__(self, int64_t capacity, bint zeroed=False):
        global _allocate
        if _allocate is None:
            from pyarrow import allocate_buffer
            _allocate = allocate_buffer
        self.zeroed = zeroed
        self.buffer = _allocate(capacity, resizable=True)
        self.took(0, capacity)

    cdef void took(self, int64_t before, int64_t capacity):
        self.address = <uint8_t *><uintptr_t>self.buffer.address
        self.capacity = capacity
        if self.zeroed:
            memset(self.address + before, 0, capacity - before)

    cdef int ensure(self, int64_t size) except -1:
        cdef int64_t before = self.capacity
        cdef int64_t wanted = max(size, 2 * before)
        if size > before:
            self.buffer.resize(wanted)
            self.took(before, wanted)
        return 0

    cdef object cut(self, int64_t size):
        self.buffer.resize(size, shrink_to_fit=False)
        return self.buffer


cdef class _Binary:
    """The three buffers of a BinaryColumn (a column of bytes or text)."""

    cdef _Growable offsets
    cdef _Growable data
    cdef _Growable validity

    def __init__(self, int64_t rows, int64_t data_bytes):
        self.offsets = _Growable(4 * (rows + 1))
        self.data = _Growable(data_bytes + COPY_SLACK_BYTES)
        self.validity = _Growable((rows + 7) // 8, zeroed=True)

    cdef int ensure(self, BinaryColumn *column, int64_t rows, int64_t more_bytes) except -1:
        self.offsets.ensure(4 * (rows + 1))
        self.data.ensure(column.used + more_bytes + COPY_SLACK_BYTES)
        self.validity.ensure((rows + 7) // 8)
        column.offsets = <int32_t *>self.offsets.address
        column.data = self.data.address
        column.validity = self.validity.address
        return 0

    cdef object cut(self, BinaryColumn *column, int64_t rows):
        column.offsets[rows] = <int32_t>column.used
        return BinaryBuffers(
            column.nulls,
            self.validity.cut((rows + 7) // 8) if column.nulls else None,
            self.offsets.cut(4 * (rows + 1)),
            self.data.cut(column.used),
        )


cdef class _Decoder:
    """The growing buffers of the wanted columns, to which records are appended."""

    cdef ArrowColumns into
    cdef int64_t stream_bytes
    cdef _Binary key
    cdef _Binary value
    cdef _Growable offset
    cdef _Growable timestamp
    cdef _Growable timestamp_type
    cdef _Growable header_lists
    cdef _Growable header_validity
    cdef _Binary header_key
    cdef _Binary header_value

    def __init__(self, columns, int64_t rows, int64_t data_bytes):
        memset(&self.into, 0, sizeof(self.into))
        self.key = _Binary(rows, data_bytes) if "key" in columns else None
        self.value = _Binary(rows, data_bytes) if "value" in columns else None
        self.offset = _Growable(8 * rows) if "offset" in columns else None
        self.timestamp = _Growable(8 * rows) if "timestamp" in columns else None
        self.timestamp_type = _Growable(4 * rows) if "timestampType" in columns else None
        if "headers" in columns:
            self.header_lists = _Growable(4 * (rows + 1))
            self.header_validity = _Growable((rows + 7) // 8, zeroed=True)
            self.header_key = _Binary(rows, 16 * rows)
            self.header_value = _Binary(rows, 16 * rows)

    cdef int make_room(self, const c.BatchInfo *info, const uint8_t *p, int64_t size) except -1:
        """Make room in every column for a batch's decompressed records, `size` bytes at `p`."""
        cdef int64_t rows = self.into.rows + info.count
        cdef int64_t headers
        if self.key is not None:
            self.key.ensure(&self.into.key, rows, size)
        if self.value is not None:
            self.value.ensure(&self.into.value, rows, size)
        if self.offset is not None:
            self.offset.ensure(8 * rows)
            self.into.offset = <int64_t *>self.offset.address
        if self.timestamp is not None:
            self.timestamp.ensure(8 * rows)
            self.into.timestamp_us = <int64_t *>self.timestamp.address
        if self.timestamp_type is not None:
            self.timestamp_type.ensure(4 * rows)
            self.into.timestamp_type = <int32_t *>self.timestamp_type.address
        if self.header_lists is not None:
            headers = self.into.headers + count_headers(p, p + size, info.count)
            self.header_lists.ensure(4 * (rows + 1))
            self.header_validity.ensure((rows + 7) // 8)
            self.into.header_lists = <int32_t *>self.header_lists.address
            self.into.header_validity = self.header_validity.address
            self.header_key.ensure(&self.into.header_key, headers, HEADER_KEY_GROWTH * size)
            self.header_value.ensure(&self.into.header_value, headers, size)
        return 0

    cdef bint take(
        self, const uint8_t[::1] batch, const c.BatchInfo *info, int64_t base_offset, int64_t lo, int64_t hi,
        int64_t position, int64_t limit
    ) except -1:
        """Append the records of a batch whose offsets are in [lo, hi), and return True.

        Return False and append nothing if a column would overflow. Raises CorruptBatch.
        """
        cdef const uint8_t *p = &batch[0] + <int>c.BATCH_HEADER_BYTES
        cdef int64_t size = info.length - c.BATCH_HEADER_BYTES
        cdef bytes unpacked
        cdef int reason
        limit = min(limit, LARGEST_COLUMN_BYTES)
        if info.codec and size:
            unpacked = _unpack(batch[c.BATCH_HEADER_BYTES:], info.codec, position, limit)
            p = <const uint8_t *>PyBytes_AS_STRING(unpacked)
            size = PyBytes_GET_SIZE(unpacked)
        if self.stream_bytes + size > LARGEST_COLUMN_BYTES:
            if self.stream_bytes:
                return False
            raise CorruptBatch(position, f"its {size} bytes of records are more than a column may hold")
        if info.count < 0 or info.count > size // c.SMALLEST_RECORD_BYTES:
            raise CorruptBatch(position, reason_text(c.REASON_RECORD_LENGTH))
        self.make_room(info, p, size)
        with nogil:
            reason = append_records(&self.into, p, p + size, info, base_offset, lo, hi)
        if reason:
            raise CorruptBatch(position, reason_text(reason))
        self.stream_bytes += size
        return True

    cdef dict cut(self):
        cdef int64_t rows = self.into.rows
        found = {}
        if rows == 0:
            return found
        if self.key is not None:
            found["key"] = self.key.cut(&self.into.key, rows)
        if self.value is not None:
            found["value"] = self.value.cut(&self.into.value, rows)
        if self.offset is not None:
            found["offset"] = FixedBuffers(self.offset.cut(8 * rows))
        if self.timestamp is not None:
            found["timestamp"] = FixedBuffers(self.timestamp.cut(8 * rows))
        if self.timestamp_type is not None:
            found["timestampType"] = FixedBuffers(self.timestamp_type.cut(4 * rows))
        if self.header_lists is not None:
            self.into.header_lists[rows] = <int32_t>self.into.headers
            found["headers"] = HeaderBuffers(
                self.into.header_nulls,
                self.header_validity.cut((rows + 7) // 8) if self.into.header_nulls else None,
                self.header_lists.cut(4 * (rows + 1)),
                self.into.headers,
                self.header_key.cut(&self.into.header_key, self.into.headers),
                self.header_value.cut(&self.into.header_value, self.into.headers),
            )
        return found


def _unpack(const uint8_t[::1] stream, int codec, int64_t position, limit) -> bytes:
    if codec > c.LAST_CODEC:
        raise CorruptBatch(position, reason_text(c.REASON_CODEC))
    try:
        return decompress(Codec(codec), stream, limit)
    except CompressionError as error:
        raise CorruptBatch(position, str(error)) from error


cdef int64_t _next_frame(const uint8_t *p, int64_t rest, int64_t position) except -1:
    """Return the length of the batch at p; 0 if the `rest` bytes have no whole batch. Raises CorruptBatch."""
    cdef int64_t length
    cdef int reason
    cdef int verdict = c.whole_batch(p, rest, False, &length, &reason)
    if verdict == c.BATCH_TRAILING:
        return 0
    if verdict != c.BATCH_OK:
        raise CorruptBatch(position, reason_text(reason))
    return length


cdef _Decoder _decoder(columns, int64_t range_bytes, int64_t max_rows, int64_t max_bytes):
    """Return a decoder with buffers of the size of the limits; a larger batch enlarges them.

    Raises ValueError for a limit below 1 or an unknown column.
    """
    if max_rows < 1 or max_bytes < 1:
        raise ValueError("max_rows and max_bytes have to be positive")
    unknown = set(columns).difference(COLUMNS)
    if unknown:
        raise ValueError(f"no such columns: {sorted(unknown)}; there are {COLUMNS}")
    cdef int64_t rows = min(max_rows, range_bytes // c.SMALLEST_RECORD_BYTES + 1)
    return _Decoder(frozenset(columns), rows, min(max_bytes, range_bytes))


def decode_range(
    const uint8_t[::1] buf, int64_t pos, int64_t end, int64_t lo_offset, int64_t hi_offset, int64_t max_rows,
    int64_t max_bytes, columns: Collection[str] = COLUMNS, *, bint check_crc=True,
    int64_t decompressed_limit=DEFAULT_LIMIT_BYTES, AbortedRanges aborted=None
) -> tuple[int, int, dict[str, FixedBuffers | BinaryBuffers | HeaderBuffers]]:
    """Decode the records with offsets in [lo_offset, hi_offset) from the batches in [pos, end).

    Return (new position, rows, buffers by column name). 0 rows mean that there are no more records. Stop at
    hi_offset, at a batch that `end` cuts off, and before a batch with which max_rows, or max_bytes of stored
    batches, would be exceeded; decode at least one batch. Stop also when the decompressed records take
    16 times max_bytes. Skip control batches and batches of aborted transactions, but check their CRCs: a
    flipped bit must not hide a batch. Raises CorruptBatch with the position, ValueError for a bad range,
    limit or column.
    """
    if not 0 <= pos <= end <= buf.shape[0]:
        raise ValueError(f"the range [{pos}, {end}) does not lie within {buf.shape[0]} bytes")
    max_bytes = min(max_bytes, LARGEST_COLUMN_BYTES)
    cdef _Decoder decoder = _decoder(columns, end - pos, max_rows, max_bytes)
    cdef int64_t taken = 0
    cdef int64_t length, base_offset
    cdef bint has_records
    cdef c.BatchInfo info
    cdef const uint8_t *p
    while pos < end:
        p = &buf[pos]
        length = _next_frame(p, end - pos, pos)
        if length == 0:
            break
        c.read_header(p, <int32_t>length, &info)
        base_offset = c.load_i64(p + <int>c.BASE_OFFSET_AT)
        if base_offset >= hi_offset:
            break
        # Look at the base offset too: a damaged last offset delta must not hide the batch from the check.
        if base_offset >= lo_offset or base_offset + info.last_offset_delta >= lo_offset:
            has_records = not info.attributes & c.CONTROL_BIT and not (
                aborted is not None
                and info.attributes & c.TRANSACTIONAL_BIT
                and aborted.covers(info.producer_id, base_offset)
            )
            if has_records and taken and (
                decoder.into.rows + info.count > max_rows
                or taken + length > max_bytes
                or decoder.stream_bytes >= UNPACKED_FACTOR * max_bytes
            ):
                break
            if check_crc and not c.crc_matches(p, length):
                raise CorruptBatch(pos, reason_text(c.REASON_CRC))
            if has_records:
                if not decoder.take(buf[pos : pos + length], &info, base_offset, lo_offset, hi_offset, pos,
                                    decompressed_limit):
                    break
                if decoder.into.rows:
                    taken += length
            if aborted is not None and info.attributes & c.TRANSACTIONAL_BIT:
                aborted.note_batch(p, length, &info, has_records, pos)
        pos += length
    return pos, decoder.into.rows, decoder.cut()
