"""Checks, reads, writes, searches and renumbers the uncompressed records of a batch.

Only functions of batch.h, which defines the layout of a record, read and write its fields.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from mpbroker.records cimport batch as c

from mpbroker.records.batch import WalkScan, reason_text
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.record import Record
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpbroker.records.record import NewRecord

cdef enum:
    # Records, and headers of a record that has many, between two checks of the bytes that a piece has taken.
    WALKED_AT_ONCE = 64
    HEADERS_AT_ONCE = 4096
    LENGTH_BYTES_MAX = 10      # of a record's length
    RECORD_HEAD_BYTES_MAX = 21  # of a record's length, attributes, timestamp and offset


cdef object _bytes_or_none(const uint8_t *p, int64_t size):
    return None if p == NULL else PyBytes_FromStringAndSize(<const char *>p, size)


cdef tuple _headers(const c.RecordView *record, const uint8_t *end):
    """Return the headers of a record. `read_record` has accepted the record, so every field is valid."""
    cdef const uint8_t *at = record.headers
    cdef const uint8_t *field
    cdef int64_t size, _
    found = []
    for _ in range(record.header_count):
        size = c.read_bytes(&at, end, &field)
        key = PyBytes_FromStringAndSize(<const char *>field, size).decode("utf-8", "replace")
        size = c.read_bytes(&at, end, &field)
        found.append((key, _bytes_or_none(field, size)))
    return tuple(found)


def read_records(
    const uint8_t[::1] data, int32_t count, int64_t base_offset, int64_t base_timestamp,
    append_time: int | None = None
) -> list[Record]:
    """Return the `count` records of an uncompressed stream.

    `append_time` (ms), if not None, is the timestamp of all records. Raises CorruptBatch if a record is
    malformed or the records do not fill the data.
    """
    cdef const uint8_t *start = &data[0] if data.shape[0] else NULL
    cdef const uint8_t *at = start
    cdef const uint8_t *end = start + data.shape[0]
    cdef c.RecordView view
    cdef int reason
    cdef int32_t i
    cdef int timestamp_type = append_time is not None
    records = []
    for i in range(count):
        reason = c.read_record(&at, end, &view)
        if reason:
            raise CorruptBatch(0 if at == NULL else at - start, f"record {i}: {reason_text(reason)}")
        records.append(Record(
            base_offset + view.offset_delta,
            append_time if timestamp_type else c.add_wrapping(base_timestamp, view.timestamp_delta),
            timestamp_type,
            _bytes_or_none(view.key, view.key_bytes),
            _bytes_or_none(view.value, view.value_bytes),
            _headers(&view, at) if view.header_count else (),
        ))
    if at != end:
        raise CorruptBatch(at - start, reason_text(c.REASON_BATCH_END))
    return records


cdef inline int64_t _field_bytes(object field) except -1:
    """Return the encoded size of a nullable field in bytes, with its length prefix."""
    if field is None:
        return 1
    return c.varlong_bytes(PyBytes_GET_SIZE(field)) + PyBytes_GET_SIZE(field)


cdef inline uint8_t *_write_field(uint8_t *p, object field):
    if field is None:
        return c.write_varlong(p, -1)
    p = c.write_varlong(p, PyBytes_GET_SIZE(field))
    memcpy(p, PyBytes_AS_STRING(field), PyBytes_GET_SIZE(field))
    return p + PyBytes_GET_SIZE(field)


def _as_bytes(field) -> bytes | None:
    return None if field is None else bytes(field)


cdef class RecordWriter:
    """A writer of the records of a batch. It leaves room for the batch header before the first record."""

    cdef bytearray out
    cdef int64_t used
    cdef int64_t base_timestamp
    cdef readonly int32_t count
    cdef readonly int64_t max_timestamp

    def __init__(self, base_timestamp: int):
        self.out = bytearray(4096)
        self.used = c.BATCH_HEADER_BYTES
        self.base_timestamp = base_timestamp
        self.max_timestamp = c.NO_TIMESTAMP

    cdef uint8_t *reserve(self, int64_t size) except NULL:
        cdef int64_t have = PyByteArray_GET_SIZE(self.out)
        if self.used + size > have:
            PyByteArray_Resize(self.out, max(2 * have, self.used + size))
        return <uint8_t *>PyByteArray_AS_STRING(self.out) + self.used

    cpdef add(self, record: NewRecord, int64_t offset_delta=-1):
        """Append a record. Its offset delta is its index in the batch if `offset_delta` is negative."""
        key, value, headers = record.key, record.value, record.headers
        if key is not None and type(key) is not bytes:
            key = bytes(key)
        if value is not None and type(value) is not bytes:
            value = bytes(value)
        cdef int64_t timestamp = record.timestamp
        cdef int64_t delta = c.subtract_wrapping(timestamp, self.base_timestamp)
        cdef int64_t place = self.count if offset_delta < 0 else offset_delta
        cdef int64_t size = 1 + c.varlong_bytes(delta) + c.varlong_bytes(place)
        size += _field_bytes(key) + _field_bytes(value) + c.varlong_bytes(len(headers))
        if headers:
            headers = [(name.encode(), _as_bytes(content)) for name, content in headers]
            for name, content in headers:
                size += _field_bytes(name) + _field_bytes(content)
        cdef uint8_t *start = self.reserve(size + c.varlong_bytes(size))
        cdef uint8_t *p = c.write_varlong(start, size)
        p[0] = 0
        p = c.write_varlong(c.write_varlong(p + 1, delta), place)
        p = c.write_varlong(_write_field(_write_field(p, key), value), len(headers))
        for name, content in headers:
            p = _write_field(_write_field(p, name), content)
        self.used += p - start
        self.count += 1
        self.max_timestamp = max(self.max_timestamp, timestamp)

    def finish(self) -> bytearray:
        """Return BATCH_HEADER_BYTES zeros and the records. The writer is empty afterwards."""
        out = self.out
        PyByteArray_Resize(out, self.used)
        self.out = bytearray(4096)
        self.used = c.BATCH_HEADER_BYTES
        self.count = 0
        self.max_timestamp = c.NO_TIMESTAMP
        return out


cdef class RecordWalker:
    """Checks `count` uncompressed records, a piece at a time. The records must fill the data exactly."""

    cdef const uint8_t[::1] data
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef c.RecordWalk walk
    cdef int64_t base_timestamp
    cdef int32_t count
    cdef int reason

    def __init__(self, const uint8_t[::1] data, int32_t count, int64_t base_timestamp):
        self.data, self.count, self.base_timestamp = data, count, base_timestamp
        self.at = &data[0] if data.shape[0] else NULL
        self.end = self.at + data.shape[0]
        c.begin_walk(&self.walk)

    cdef bint goes_on(self) noexcept nogil:
        return self.walk.done < self.count or self.walk.headers_left != 0

    def step(self, int64_t most_bytes) -> bool:
        """Check about `most_bytes` bytes more. Return True after the last record, or a malformed one."""
        cdef const uint8_t *start = self.at
        cdef c.RecordWalk *walk = &self.walk
        cdef int32_t upto
        with nogil:
            while self.reason == 0 and self.goes_on() and self.at - start < most_bytes:
                if walk.headers_left:
                    self.reason = c.walk_headers(&self.at, HEADERS_AT_ONCE, walk)
                    continue
                upto = min(self.count - walk.done, WALKED_AT_ONCE) + walk.done
                self.reason = c.walk_some(&self.at, self.end, upto, self.base_timestamp, walk)
        if self.reason == 0 and self.goes_on():
            return False
        if self.reason == 0 and self.at != self.end:
            self.reason = c.REASON_BATCH_END
        return True

    def result(self) -> WalkScan:
        """Return the result, after `step` has returned True."""
        cdef c.RecordWalk walk = self.walk
        c.end_walk(&walk)
        return WalkScan(
            reason_text(self.reason), walk.bad_record, walk.max_timestamp, walk.min_timestamp,
            bool(walk.has_null_key), bool(walk.consecutive),
        )


cdef class RecordRules:
    """Applies a topic's rules to records that `RecordWalker` has accepted, a piece at a time.

    With `keyed` each record needs a key. A timestamp other than -1 must be in [earliest, latest]. With
    `refuses_all` every record is refused. `refused_count` counts the refused records, and `refused` has
    (index, timestamp, whether the key is missing) of the first `most` of them.
    """

    cdef const uint8_t[::1] data
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef int64_t base_timestamp, earliest, latest
    cdef int32_t count, done, most
    cdef bint keyed, refuses_all
    cdef readonly list refused  # type: list[tuple[int, int, bool]]
    cdef readonly int32_t refused_count, keyless_count

    def __init__(
        self, const uint8_t[::1] data, int32_t count, int64_t base_timestamp, *, bint keyed,
        int64_t earliest, int64_t latest, bint refuses_all, int32_t most
    ):
        self.data, self.count, self.base_timestamp = data, count, base_timestamp
        self.keyed, self.earliest, self.latest, self.refuses_all = keyed, earliest, latest, refuses_all
        self.most, self.refused = most, []
        self.at = &data[0] if data.shape[0] else NULL
        self.end = self.at + data.shape[0]

    def step(self, int64_t most_bytes) -> bool:
        """Check about `most_bytes` bytes more. Return True after the last record. Raises CorruptBatch."""
        cdef const uint8_t *start = self.at
        cdef c.RecordView view
        cdef int64_t timestamp
        cdef bint keyless
        while self.done < self.count and self.at - start < most_bytes:
            if c.read_accepted(&self.at, self.end, &view):
                raise CorruptBatch(0, f"record {self.done} is malformed")
            timestamp = c.add_wrapping(self.base_timestamp, view.timestamp_delta)
            keyless = self.keyed and view.key == NULL
            if keyless or self.refuses_all or (
                timestamp != c.NO_TIMESTAMP and not self.earliest <= timestamp <= self.latest
            ):
                self.refused_count += 1
                self.keyless_count += keyless
                if self.refused_count <= self.most:
                    self.refused.append((self.done, timestamp, bool(keyless)))
            self.done += 1
        return self.done == self.count


cdef class TimeSearch:
    """The search in `count` records, from `from_offset` on, for the first one at the time `wanted` or later.

    `append_time` (ms), if not None, is the timestamp of all records. The caller may decompress the stream
    between steps, and pass the bytes decompressed so far. `timestamp` and `offset` belong to the first record
    with the largest timestamp so far, and are -1 before any record.
    """

    cdef int64_t base_offset, base_timestamp, wanted, from_offset, stamp, at
    cdef int32_t count, done
    cdef bint stamped
    cdef readonly int64_t timestamp, offset

    def __init__(
        self, int32_t count, int64_t base_offset, int64_t base_timestamp, append_time: int | None, *,
        int64_t wanted,
        int64_t from_offset
    ):
        self.count, self.base_offset, self.base_timestamp = count, base_offset, base_timestamp
        self.wanted, self.from_offset = wanted, from_offset
        self.stamped, self.stamp = append_time is not None, append_time or 0
        self.timestamp = self.offset = -1

    def step(self, const uint8_t[::1] data, int64_t most_bytes, bint is_whole) -> bool:
        """Search about `most_bytes` bytes more. Return True if the record is found, or after the last record.

        `data` is the beginning of the stream, or with `is_whole` the whole stream. Raises CorruptBatch if a
        record is malformed or the records do not fill the stream.
        """
        cdef int64_t upto = self.at + most_bytes
        cdef const uint8_t *start = &data[0] if data.shape[0] else NULL
        cdef bint found = False, good = True
        with nogil:
            while good and not found and self.done < self.count and self.at < upto:
                if not is_whole and data.shape[0] - self.at < RECORD_HEAD_BYTES_MAX:
                    break
                good = self.look(start, data.shape[0], is_whole, &found)
        if not good:
            raise CorruptBatch(self.at, f"record {self.done} is malformed")
        if is_whole and self.done == self.count and self.at != data.shape[0]:
            raise CorruptBatch(self.at, reason_text(c.REASON_BATCH_END))
        return found or self.done == self.count

    cdef bint look(self, const uint8_t *start, int64_t size, bint is_whole, bint *found) noexcept nogil:
        """Compare the next record's timestamp, and skip the record. Return False if it is malformed."""
        cdef const uint8_t *p = start + self.at
        cdef const uint8_t *end = start + size
        cdef int64_t length, timestamp, offset
        if self.at >= size:
            return False
        length = c.read_varint(&p, end)
        if p == NULL or length < 1 or is_whole and length > end - p:
            return False
        self.at = p - start + length
        if self.at < size:
            end = start + self.at
        p += 1
        timestamp = c.add_wrapping(self.base_timestamp, c.read_varlong(&p, end))
        offset = self.base_offset + c.read_varint(&p, end)
        if p == NULL:
            return False
        self.done += 1
        if offset >= self.from_offset:
            timestamp = self.stamp if self.stamped else timestamp
            if self.offset < 0 or timestamp > self.timestamp:
                self.timestamp, self.offset = timestamp, offset
            found[0] = timestamp >= self.wanted
        return True


cdef class Renumbering:
    """Rewrites records with the offset deltas 0, 1, 2, …, a piece at a time; other fields are copied."""

    cdef const uint8_t[::1] data
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef int32_t count, done

    def __init__(self, const uint8_t[::1] data, int32_t count):
        self.data, self.count = data, count
        self.at = &data[0] if data.shape[0] else NULL
        self.end = self.at + data.shape[0]

    def take(self, int64_t most_bytes) -> bytearray:
        """Return about `most_bytes` bytes of whole rewritten records; b"" after the last record.

        Raises CorruptBatch if a record is malformed.
        """
        cdef const uint8_t *rest
        cdef c.RecordView view
        cdef uint8_t head[32]
        cdef uint8_t *p
        cdef int64_t body, used = 0
        out = bytearray(most_bytes)
        while self.done < self.count and used < most_bytes:
            rest = self.at
            if c.read_accepted(&self.at, self.end, &view):
                raise CorruptBatch(0, f"record {self.done} is malformed")
            c.read_varint(&rest, self.at)
            head[0] = rest[0]
            rest += 1
            c.read_varlong(&rest, self.at)
            c.read_varint(&rest, self.at)
            p = c.write_varlong(c.write_varlong(head + 1, view.timestamp_delta), self.done)
            body = (p - head) + (self.at - rest)
            if used + body + LENGTH_BYTES_MAX > PyByteArray_GET_SIZE(out):
                PyByteArray_Resize(out, used + body + LENGTH_BYTES_MAX)
            p = c.write_varlong(<uint8_t *>PyByteArray_AS_STRING(out) + used, body)
            memcpy(p, head, body - (self.at - rest))
            memcpy(p + body - (self.at - rest), rest, self.at - rest)
            used = p + body - <uint8_t *>PyByteArray_AS_STRING(out)
            self.done += 1
        PyByteArray_Resize(out, used)
        return out


def seal(
    uint8_t[::1] batch, *, int64_t base_offset, int32_t leader_epoch, int16_t attributes,
    int32_t last_offset_delta, int64_t base_timestamp, int64_t max_timestamp, int64_t producer_id,
    int16_t producer_epoch, int32_t base_sequence, int32_t count
) -> None:
    """Write the header and CRC of a batch to its first BATCH_HEADER_BYTES, after its records were written."""
    cdef c.BatchInfo info
    if batch.shape[0] < c.BATCH_HEADER_BYTES:
        raise ValueError("no room for the header")
    info.attributes = attributes
    info.last_offset_delta = last_offset_delta
    info.base_timestamp = base_timestamp
    info.max_timestamp = max_timestamp
    info.producer_id = producer_id
    info.producer_epoch = producer_epoch
    info.base_sequence = base_sequence
    info.count = count
    c.write_header(&batch[0], batch.shape[0], base_offset, leader_epoch, &info)
